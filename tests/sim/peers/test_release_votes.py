"""Votes against a release, by the heartbeats of five learners as a seed hears them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from nouns import beat, release
from still_host import still_host

from peers.runtime.host import Host
from peers.runtime.releases.votes import DENIED, Against, ReleaseVotes, Why, mark
from swarm.core.gradient_checks.same_mean import mark as mean_mark
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId, Release

LEARNERS = [PeerId(f"learner-{k}") for k in range(5)]
FALSE = release(version=3, weights=Digest("f" * 64), publisher=LEARNERS[0], learners=5)


def heard(*denials: tuple[Why, ...]) -> Against | None:
    """What a seed finds after the others, four or fewer, denied it so; () is a witness that does not."""

    async def main() -> Against | None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "seed-0", Role.SEED)
            votes, now = host.releases.doubts.votes, host.now()
            for k, (peer, whys) in enumerate(zip(LEARNERS, ((), *denials), strict=False)):
                denied = b"".join(mark(FALSE, why) for why in whys)
                its = beat(name=peer, role=Role.LEARNER, seq=k, version=2, denied=denied)
                assert host.roster.receive(peer, its, now)
            return votes.receive(FALSE)

    return run(main())


@pytest.mark.parametrize("why", [Why.OTHER_BYTES, Why.OTHER_MEAN])
def test_most_of_the_witnesses_refuse_it_and_name_who_says_that_it_got_their_mean(why: Why) -> None:
    assert heard((why,), (why,), (), ()) is None
    against = heard((why,), (why,), (why,), ())
    assert against is not None and against.names == (why is Why.OTHER_BYTES)
    assert against.reason.startswith("3 learners deny it: it is not what their round made")


def test_where_as_many_believe_its_publisher_as_not_it_is_named_for_no_lie() -> None:
    against = heard((Why.OTHER_BYTES,), (Why.OTHER_BYTES,), (Why.OTHER_MEAN,), (Why.OTHER_MEAN,))
    assert against is not None and not against.names


def test_a_learner_that_denies_it_for_two_reasons_has_one_vote() -> None:
    both = (Why.OTHER_BYTES, Why.OTHER_MEAN)
    assert heard(both, both, (), ()) is None
    assert heard(both, both, both, ()) is not None


def test_half_of_the_learners_refuse_what_was_made_beside_their_rounds() -> None:
    beside = (Why.BESIDE,)
    assert heard(beside, beside, (), ()) is None
    against = heard(beside, beside, beside, ())
    assert against is not None and against.names and "it comes of none" in against.reason
    assert heard(beside, (), ()) is None and heard(beside, beside, ()) is not None, "of four, two are half"


def denies(astray: bool) -> bool:
    """Does a learner deny what another member of its round released, which it had found false before?"""
    me, other, third = LEARNERS[:3]
    before, mine, theirs = (Digest(letter * 64) for letter in "abc")

    async def main() -> bool:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, me, Role.LEARNER)
            votes, status, now = host.releases.doubts.votes, host.status, host.now()
            status.version, status.weights, status.astray = 2, before, astray
            second = release(version=2, weights=before, parent=theirs, publisher=third, learners=3)
            host.releases.candidates.receive(second)
            host.releases.lines.lineage.receive(second)
            for peer in (other, third):
                its = beat(name=peer, version=2, weights=before, denied=b"", at=now)
                assert host.roster.receive(peer, its, now)
            votes.witness.averaged(1, {me, other, third}, now)
            votes.found_false(release(version=2, weights=theirs, publisher=other, learners=3))
            votes.meet()
            votes.met({me, other}, patient=False)
            votes.packed(3, mine)
            found = release(version=3, weights=theirs, parent=before, publisher=other, learners=2)
            host.releases.lines.lineage.receive(found)
            return votes.denies(found)

    return run(main())


def test_a_member_of_which_it_found_a_release_false_is_denied_by_a_learner_that_steps_as_the_others() -> None:
    assert denies(astray=False)
    assert not denies(astray=True), "its own bytes are not what the round made"


def got_another_mean(in_round: bool) -> set[PeerId]:
    """Who of three learners got another mean of the round to version 3: the others say the same one, I say
    another. I was `in_round` with them, or with a fourth one, while they met."""
    me, *others = LEARNERS[:3]
    weights = Digest("b" * 64)

    async def main() -> set[PeerId]:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, me, Role.LEARNER)
            votes, status, now = host.releases.doubts.votes, host.status, host.now()
            status.version, status.weights = 2, weights
            theirs, mine = (mean_mark(weights, made) for made in (b"theirs..", b"mine...."))
            for peer in (*others, LEARNERS[3]):
                its = beat(name=peer, version=2, weights=weights, at=now, mean=theirs)
                assert host.roster.receive(peer, its, now)
            votes.witness.averaged(1, {me, *others}, now)
            votes.met({me, *others} if in_round else {me, LEARNERS[3]}, patient=False)
            status.mean = mine
            return votes.got_another_mean(3)

    return run(main())


def test_members_of_another_round_of_my_version_say_nothing_about_the_mean_of_mine() -> None:
    assert got_another_mean(in_round=True) == {LEARNERS[0]}
    assert got_another_mean(in_round=False) == set()


# --- what a learner denies ----------------------------------------------------------------------------------

BEFORE, MADE, ALONE = (Digest(letter * 64) for letter in "abc")


def learner(body: Callable[[Host, ReleaseVotes], object], **third: Any) -> None:
    """A learner at version 2 that two others made with it. Both were heard before that; the `third` says this
    since."""
    me, *others = LEARNERS[:3]

    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, me, Role.LEARNER)
            votes = host.releases.doubts.votes
            host.status.version, host.status.weights = 2, BEFORE
            host.releases.lines.lineage.receive(release(version=2, weights=BEFORE, parent=MADE))
            for peer in others:
                its = beat(name=peer, version=2, weights=BEFORE, at=host.now())
                assert host.roster.receive(peer, its, host.now())
            await host.ports.clock.sleep(0.5)
            votes.witness.averaged(1, {me, *others}, host.now())
            await host.ports.clock.sleep(0.5)
            if third:
                said = beat(version=2, weights=BEFORE, seq=2, at=host.now(), **third)
                assert host.roster.receive(others[1], said, host.now())
            body(host, votes)

    run(main())


def alone(host: Host, version: int = 3, **more: Any) -> Release:
    """What one of them made beside the rounds, as my exchange hears it."""
    parent = BEFORE if version == 3 else MADE
    made = release(version=version, weights=ALONE, parent=parent, publisher=LEARNERS[1], **more)
    host.releases.candidates.receive(made)
    host.releases.lines.lineage.receive(made)
    host.releases.doubts.votes.receive(made)
    return made


def test_who_averages_denies_nobody_that_may_be_in_its_round() -> None:
    def body(host: Host, votes: ReleaseVotes) -> None:
        votes.meet()
        made = alone(host)
        assert votes.denied() == b""
        votes.met({LEARNERS[0], LEARNERS[2]}, patient=False)
        assert votes.denied() == mark(made)

    learner(body, denied=b"")


@pytest.mark.parametrize(
    "third", [{}, {"denied": b""}, {"denied": None}], ids=["silent", "stands", "gave up"]
)
def test_a_member_that_said_nothing_since_the_round_is_a_witness_as_one_is_that_says_so(third: Any) -> None:
    def body(host: Host, votes: ReleaseVotes) -> None:
        assert votes.denies(alone(host, version=2)) == (third != {"denied": None})

    learner(body, **third)


def test_a_heartbeat_denies_the_newest_ones_first_and_nothing_of_its_own() -> None:
    def body(host: Host, votes: ReleaseVotes) -> None:
        made = [alone(host, groups=groups) for groups in range(1, DENIED + 3)]
        own = release(version=3, weights=Digest("d" * 64), parent=BEFORE, publisher=LEARNERS[0])
        votes.receive(own)
        assert votes.denied() == b"".join(map(mark, reversed(made[-DENIED:])))

    learner(body, denied=b"")


def test_a_false_release_of_somebody_who_is_not_heard_any_more_is_doubted_for_a_while() -> None:
    def body(host: Host, votes: ReleaseVotes) -> None:
        votes.found_false(release(version=2, weights=ALONE, publisher=LEARNERS[4]))
        assert votes.is_doubted(LEARNERS[4]) and not votes.is_doubted(LEARNERS[3])

    learner(body)


def test_half_of_the_learners_are_not_most_of_them() -> None:
    def body(host: Host, votes: ReleaseVotes) -> None:
        assert votes.are_most(LEARNERS[:2]), "of three"
        assert host.roster.receive(LEARNERS[3], beat(version=2, weights=BEFORE, at=host.now()), host.now())
        assert not votes.are_most(LEARNERS[:2]) and votes.are_most(LEARNERS[:3]), "of four"

    learner(body)


def test_half_of_the_learners_at_a_release_are_too_many_to_deny_it() -> None:
    def body(host: Host, votes: ReleaseVotes) -> None:
        made = alone(host)
        assert votes.denies(made)
        there = beat(version=3, weights=ALONE, seq=3, at=host.now(), denied=b"")
        assert host.roster.receive(LEARNERS[2], there, host.now())
        assert not votes.denies(made)

    learner(body, denied=b"")


@pytest.mark.parametrize(
    ("got", "why"),
    [(b"mine....", Why.OTHER_BYTES), (b"another.", Why.OTHER_MEAN), (b"", Why.OTHER_BYTES)],
    ids=["my mean", "another mean", "says nothing"],
)
def test_who_says_that_it_got_another_mean_is_denied_for_that_and_is_no_liar(got: bytes, why: Why) -> None:
    def body(host: Host, votes: ReleaseVotes) -> None:
        host.status.mean = mean_mark(BEFORE, b"mine....")
        said = beat(version=2, weights=BEFORE, seq=2, at=host.now(), mean=got and mean_mark(BEFORE, got))
        assert host.roster.receive(LEARNERS[1], said, host.now())
        votes.packed(2, BEFORE)
        found = alone(host, version=2, learners=3)
        votes.found_false(found)
        assert votes._why(found) is why

    learner(body)
