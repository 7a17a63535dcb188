"""Which releases a peer follows: learners with real keys vote; each of them, a seed and a joiner count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nouns import beat, release
from still_host import membership, still_host

from peers.runtime.presence import Postings
from peers.runtime.releases.agreement import Agreement
from swarm.core.agreement.releases import rank
from swarm.events import Bus, Event, Noted, Released
from swarm.limits import RELEASE_LIMIT
from swarm.membership.identity import Keyring
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Ports
from swarm.protocol import Key, Phase, Role
from swarm.settings.config import Config, DelayLaw, Run, Window
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import Blocks
from swarm.types import Ballot, Digest, PeerId, Release

KEYS = {
    key.me: key for key in (Keyring(Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32)) for k in range(8))
}
NAMES = sorted(KEYS)
LEARNERS, SEED, STRANGERS = NAMES[:5], NAMES[5], NAMES[6:]
"""Learners: the first one by its id is the oldest one."""

OLD, NEW, OTHER, NEWER = (Digest(letter * 64) for letter in "abcd")
CONFIG = Config(run=Run(window=Window(seconds=60.0)))
RUN = CONFIG.run
TIMEOUT, MATCH, WINDOW = RUN.release.timeout, RUN.averaging.match, RUN.window.seconds


class SigningNetwork(MemoryNetwork):
    """Its peers sign with real keys."""

    def __init__(self) -> None:
        super().__init__(Random(1), SimLinks(DelayLaw(), 1e6, Random(1)))

    def ports(self, name: str, *args: Any, **more: Any) -> Ports:
        return replace(super().ports(name, *args, **more), keyring=KEYS[PeerId(name)])


class Swarm:
    """Learners that gather groups at version 1, and a seed, each of which heard all the others."""

    def __init__(self, network: MemoryNetwork, learners: int) -> None:
        self.emitted, self._seq = list[Event](), count(1)
        bus = Bus()
        bus.add(self.emitted.append)
        self.hosts = {
            peer: still_host(
                network, peer, Role.LEARNER, CONFIG, incarnation=k, membership=membership(peer, Role.LEARNER)
            )
            for k, peer in enumerate(LEARNERS[:learners])
        }
        self.hosts[SEED] = still_host(network, SEED, Role.SEED, CONFIG, bus=bus, observes=True)
        for peer in self.learners:
            status = self.hosts[peer].status
            status.version, status.weights, status.phase = 1, OLD, Phase.GATHERING
        first = self.release(version=1, weights=OLD, parent=NEWER)
        self.announce(first, *self.hosts)
        for peer in self.learners:
            self.tell(peer)

    @property
    def learners(self) -> list[PeerId]:
        return [peer for peer in self.hosts if peer != SEED]

    def __getitem__(self, peer: PeerId) -> Agreement:
        return self.hosts[peer].releases.agreement

    @property
    def seed(self) -> Agreement:
        return self[SEED]

    def tell(self, sender: PeerId, *to: PeerId, votes: bool = True, **changes: Any) -> None:
        """These peers, or all, receive a heartbeat of a learner."""
        its = self.hosts[sender]
        its.status.phase = changes.get("phase", its.status.phase)
        told = beat(
            incarnation=its.who.incarnation,
            seq=next(self._seq),
            version=its.status.version,
            weights=its.status.weights,
            speed=its.status.speed,
            vote=self[sender].mine if votes else None,
            at=its.now(),
        )
        told = msgspec.structs.replace(told, **{"phase": its.status.phase} | changes)
        for peer in to or self.hosts:
            if peer != sender:
                hearer = self.hosts[peer]
                assert hearer.roster.receive(sender, told, hearer.now())
                hearer.releases.agreement.receive(sender, told)

    def vote(self, voter: PeerId, choice: str, parent: Digest = OLD, version: int = 2) -> None:
        """All others are told."""
        self[voter].vote(version, parent, choice)
        self.tell(voter)

    def keep_busy(self) -> None:
        """The learners have gradients: they follow no single vote."""
        for peer in self.learners:
            self.hosts[peer].status.phase = Phase.MATCHING

    def release(self, publisher: PeerId = LEARNERS[0], **changes: Any) -> Release:
        good: dict[str, Any] = {"version": 2, "weights": NEW, "parent": OLD, "publisher": publisher}
        return release(released=self.hosts[SEED].now(), **good | changes)

    def announce(self, made: Release, *to: PeerId) -> None:
        sealed = self.hosts[made.publisher].seal(made, RELEASE_LIMIT)
        for peer in to:
            self.hosts[peer].releases.receive(sealed)


def play(body: Callable[[Swarm], Awaitable[None]], learners: int = 3) -> None:
    async def main() -> None:
        await body(Swarm(SigningNetwork(), learners))

    run(main())


async def pass_time(swarm: Swarm, seconds: float) -> None:
    """All are heard meanwhile, as often as at a usual pace."""
    any_host = swarm.hosts[SEED]
    until = any_host.steady() + seconds
    while (left := until - any_host.steady()) > 0:
        await any_host.ports.clock.sleep(min(left, RUN.pace.beat))
        for peer in swarm.learners:
            swarm.tell(peer)


# --- which releases count -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "counts"),
    [
        ((), False),
        ((NEW,), False),
        ((NEW, NEW), True),
        (("publisher", "publisher"), True),
        (("publisher", NEW), True),
        ((NEW, OTHER, OTHER), False),
        ((NEW, OTHER, NEW), True),
        ((NEW, LEARNERS[1], LEARNERS[1]), False),
    ],
)
def test_a_release_counts_when_most_of_three_learners_voted_for_its_weights_or_its_publisher(
    choices: Collection[str], counts: bool
) -> None:
    async def body(swarm: Swarm) -> None:
        made = swarm.release()
        for voter, choice in zip(LEARNERS, choices, strict=False):
            swarm[voter].vote(2, OLD, made.publisher if choice == "publisher" else choice)
            swarm.tell(voter, SEED)
        assert swarm.seed.counts(made) is counts
        swarm.announce(made, SEED)
        assert (swarm.seed.candidates.awaited((), 0.0) == made) is counts
        assert swarm.seed.is_refused(2, NEW) is not counts and not swarm.seed.is_refused(2, OTHER)

    play(body)


def test_votes_for_a_version_made_from_another_one_are_none_for_it() -> None:
    async def body(swarm: Swarm) -> None:
        for voter in LEARNERS[:3]:
            swarm[voter].vote(2, OLD, NEW)
            swarm.tell(voter, SEED)
        assert swarm.seed.counts(swarm.release())
        assert not swarm.seed.counts(swarm.release(parent=OTHER))
        assert not swarm.seed.counts(swarm.release(version=3)), "nor for another version"
        assert not swarm.seed.counts(swarm.release(version=1002))

    play(body)


@pytest.mark.parametrize(("there", "counts"), [(1, False), (2, True)])
def test_learners_that_are_at_a_release_or_beyond_it_count_for_it(there: int, counts: bool) -> None:
    async def body(swarm: Swarm) -> None:
        made, later = swarm.release(), swarm.release(version=3, weights=NEWER, parent=NEW)
        for release_, point in ((made, (2, NEW)), (later, (3, NEWER))):
            for peer in LEARNERS[:there]:
                status = swarm.hosts[peer].status
                status.version, status.weights = point
                swarm.tell(peer, SEED, version=point[0], weights=point[1])
            assert swarm.seed.counts(release_) is counts
            assert swarm.seed.counts(made) is (counts and release_ is made), "where its line is not known"
        swarm.announce(later, SEED)
        assert swarm.seed.counts(made) is counts and not swarm.seed.counts(swarm.release(weights=OTHER))

    play(body)


def test_of_two_learners_one_is_enough_and_alone_its_own() -> None:
    async def body(swarm: Swarm) -> None:
        assert not swarm.seed.counts(swarm.release())
        swarm.vote(LEARNERS[1], NEW)
        assert swarm.seed.counts(swarm.release())

    play(body, learners=2)
    play(alone, learners=1)


async def alone(swarm: Swarm) -> None:
    swarm[LEARNERS[0]].vote(2, OLD, NEW)
    assert swarm[LEARNERS[0]].counts(swarm.release())


def test_a_peer_that_knows_no_learner_follows_any_release_and_all_follow_version_0() -> None:
    async def body(swarm: Swarm) -> None:
        assert swarm.seed.counts(swarm.release(version=0)) and not swarm.seed.counts(swarm.release())
        for peer in LEARNERS[:3]:
            swarm.tell(peer, SEED, phase=Phase.LEAVING)
        assert swarm.seed.counts(swarm.release())

    play(body)


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.STARTING, Phase.LEAVING, Phase.STOPPED])
def test_a_learner_that_rests_or_leaves_is_no_elector(phase: Phase) -> None:
    async def body(swarm: Swarm) -> None:
        assert sorted(swarm.seed.electors()) == LEARNERS[:3]
        swarm.tell(LEARNERS[2], phase=phase)
        assert sorted(swarm.seed.electors()) == sorted(swarm[LEARNERS[0]].electors()) == LEARNERS[:2]
        assert LEARNERS[2] not in swarm[LEARNERS[2]].electors()

    play(body)


def test_a_learner_without_a_version_is_no_elector_until_it_votes_nor_one_that_was_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(swarm: Swarm) -> None:
        gone, new = LEARNERS[1:3]
        swarm.tell(new, SEED, version=-1)
        assert sorted(swarm.seed.electors()) == LEARNERS[:2]
        swarm[new].vote(2, OLD, NEW)
        swarm.tell(new, SEED, version=-1)
        assert sorted(swarm.seed.electors()) == LEARNERS[:3]
        trust = swarm.hosts[SEED].trust
        monkeypatch.setattr(trust, "revoked", lambda peer: "by the owner" if peer == gone else None)
        assert sorted(swarm.seed.electors()) == [LEARNERS[0], new]

    play(body)


def test_peers_without_a_vote_follow_a_learner_that_took_the_place_of_dead_ones_and_the_others_wait() -> None:
    async def body(swarm: Swarm) -> None:
        made = swarm.release()
        until = swarm.hosts[SEED].steady() + RUN.pace.patience + 1.0
        while swarm.hosts[SEED].steady() < until:
            assert not swarm.seed.counts(made)
            await swarm.hosts[SEED].ports.clock.sleep(RUN.pace.beat)
            swarm.tell(LEARNERS[0])
        swarm.vote(LEARNERS[0], NEW)
        assert swarm.seed.counts(made) and not swarm[LEARNERS[0]].counts(made)

    play(body, learners=4)


def test_other_roles_have_no_vote() -> None:
    async def body(swarm: Swarm) -> None:
        swarm.seed.receive(STRANGERS[0], beat(role=Role.SAMPLER, version=1, weights=OLD))
        assert sorted(swarm.seed.electors()) == LEARNERS[:3]

    play(body)


# --- a joiner, alone with releases and public keys ----------------------------------------------------------


def ballots(swarm: Swarm, voters: Collection[PeerId], made: Release) -> tuple[Ballot, ...]:
    """Of voters whose votes the publisher alone was told."""
    swarm.keep_busy()
    for voter in voters:
        swarm[voter].vote(made.version, made.parent, made.weights)
        if voter != made.publisher:
            swarm.tell(voter, made.publisher)
    return swarm[made.publisher].ballots(made)


def counted_by_a_joiner(
    voters: int, spoil: Callable[[tuple[Ballot, ...]], tuple[Ballot, ...]] = lambda given: given
) -> bool:
    """Does a seed count a release that so many of five learners voted for, where it heard heartbeats without
    votes?"""
    found = list[bool]()

    async def body(swarm: Swarm) -> None:
        made = swarm.release()
        carried = ballots(swarm, LEARNERS[:voters], made)
        assert sorted(one.voter for one in carried) == LEARNERS[:voters]
        made = msgspec.structs.replace(made, ballots=spoil(carried))
        swarm.announce(made, SEED)
        assert not any(isinstance(event, Released) and event.release == made for event in swarm.emitted) or (
            swarm.seed.counts(made)
        )
        found.append(swarm.seed.counts(made))

    play(body, learners=5)
    return found[0]


@pytest.mark.parametrize(("voters", "counts"), [(0, False), (1, False), (2, False), (3, True), (5, True)])
def test_a_joiner_counts_the_votes_that_a_release_carries_and_refuses_one_that_a_minority_signed(
    voters: int, counts: bool
) -> None:
    assert counted_by_a_joiner(voters) is counts


SPOILT: dict[str, Callable[[tuple[Ballot, ...]], tuple[Ballot, ...]]] = {
    "repeated": lambda two: (*two, *two),
    "of a voter that signed nothing": lambda two: (*two, replaced(two[0], voter=LEARNERS[4])),
    "of strangers": lambda two: (*two, *map(signed_by, STRANGERS)),
    "of another version": lambda two: (*two, signed_by(LEARNERS[4], version=3)),
    "of another parent": lambda two: (*two, signed_by(LEARNERS[4], parent=OTHER)),
    "of other weights": lambda two: (*two, signed_by(LEARNERS[4], choice=OTHER)),
    "of another run": lambda two: (*two, signed_by(LEARNERS[4], of_run="0" * 64)),
    "of weights, shown as a yield": lambda two: (*two, replaced(signed_by(LEARNERS[4]), yields=True)),
}


def replaced(one: Ballot, **changes: Any) -> Ballot:
    return msgspec.structs.replace(one, **changes)


def signed_by(
    voter: PeerId, version: int = 2, parent: str = OLD, choice: str = NEW, of_run: str = "5" * 64
) -> Ballot:
    """A vote that its voter signed, whatever it is for."""
    signature = KEYS[voter].sign(f"vote {of_run} {version} {parent} {choice}".encode())
    return Ballot(voter=voter, yields=False, signature=signature)


@pytest.mark.parametrize(("voters", "posted"), [(1, True), (5, False)])
def test_the_board_has_a_release_whose_votes_fit_and_no_seed_ends_for_one_with_more(
    voters: int, posted: bool
) -> None:
    async def body(swarm: Swarm) -> None:
        host, blocks = swarm.hosts[SEED], Blocks.of(b"weights")
        host.releases.blobs.hold(2, blocks)
        made = swarm.release(weights=blocks.root, size=blocks.size)
        made = msgspec.structs.replace(made, ballots=ballots(swarm, LEARNERS[:voters], made))
        swarm.announce(made, SEED)
        for peer in swarm.learners:
            status = swarm.hosts[peer].status
            status.version, status.weights = 2, blocks.root
            swarm.tell(peer)
        assert host.releases.held == made
        posts = asyncio.ensure_future(
            Postings(host, host.beats, host.releases, host.presence, host.take).run()
        )
        await host.ports.clock.sleep(1.0)
        assert not posts.done()
        posts.cancel()
        board = swarm.hosts[LEARNERS[0]].ports.board
        assert {*await board.get(host.topic(Key.MEMBER))} == {SEED}
        assert bool(await board.get(host.topic(Key.NEWEST))) is posted

    play(body, learners=5)


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_votes_that_their_voter_did_not_sign_for_this_release_do_not_make_most(
    spoil: Callable[[tuple[Ballot, ...]], tuple[Ballot, ...]],
) -> None:
    assert not counted_by_a_joiner(2, spoil)
    assert counted_by_a_joiner(3, spoil), "what is spoilt takes nothing from the others"


def test_a_vote_that_a_third_learner_signed_itself_makes_most() -> None:
    assert counted_by_a_joiner(2, lambda two: (*two, signed_by(LEARNERS[4])))


def test_a_release_carries_yields_too_and_no_vote_with_a_false_signature() -> None:
    async def body(swarm: Swarm) -> None:
        me, other, third = LEARNERS[:3]
        swarm.keep_busy()
        swarm[other].vote(2, OLD, me)
        swarm.tell(other, me)
        swarm[third].vote(2, OLD, NEW)
        vote = swarm[third].mine
        assert vote is not None
        swarm.tell(third, me, vote=msgspec.structs.replace(vote, signature=bytes(64)))
        made = swarm.release(me)
        carried = swarm[me].ballots(made)
        assert [(one.voter, one.yields) for one in carried] == [(other, True)]
        assert swarm[me].ballots(swarm.release(me, weights=OTHER)) == carried, "it may step to anything"
        assert not swarm[me].ballots(swarm.release(other, weights=OTHER))

    play(body)


# --- this learner's vote ------------------------------------------------------------------------------------


def test_a_learner_has_one_vote_for_a_version_and_a_later_one_takes_its_place() -> None:
    async def body(swarm: Swarm) -> None:
        me, first, second = LEARNERS[2], swarm.release(), swarm.release(weights=OTHER)
        swarm.vote(LEARNERS[1], NEW)
        swarm.vote(me, NEW)
        mine = swarm[me].mine
        swarm.vote(me, NEW)
        assert swarm[me].mine is mine, "the same one is no other vote"
        assert swarm.seed.counts(first)
        swarm.vote(me, OTHER)
        assert swarm.seed.of(2, OLD)[me] == OTHER and not swarm.seed.counts(first)
        assert me in {one.voter for one in swarm[me].ballots(second)}
        swarm.vote(me, NEWER, parent=OTHER, version=3)
        assert me not in swarm.seed.of(2, OLD)

    play(body)


def test_a_vote_is_announced_at_once() -> None:
    async def body(swarm: Swarm) -> None:
        host = swarm.hosts[LEARNERS[0]]
        assert not host.beat_due
        swarm[LEARNERS[0]].vote(2, OLD, NEW)
        assert host.beat_due

    play(body)


def test_a_vote_for_another_learner_binds_for_a_time_out_and_one_for_this_one_does_not() -> None:
    async def body(swarm: Swarm) -> None:
        me, other = LEARNERS[:2]
        assert not swarm[me].bound(2, OLD)
        swarm[me].vote(2, OLD, other)
        assert swarm[me].bound(2, OLD) and not swarm[me].bound(3, NEW) and not swarm[me].bound(2, OTHER)
        await swarm.hosts[me].ports.clock.sleep(TIMEOUT - 0.1)
        assert swarm[me].bound(2, OLD)
        await swarm.hosts[me].ports.clock.sleep(0.2)
        assert not swarm[me].bound(2, OLD)
        swarm[me].vote(2, OLD, me)
        assert not swarm[me].bound(2, OLD)

    play(body)


def test_a_vote_for_another_learner_stays_while_it_binds_and_one_for_bytes_gives_way_to_other_bytes() -> None:
    async def body(swarm: Swarm) -> None:
        me, other = LEARNERS[:2]
        swarm[me].vote(2, OLD, other)
        swarm[me].vote(2, OLD, NEW)
        assert swarm[me].of(2, OLD)[me] == other
        await swarm.hosts[me].ports.clock.sleep(TIMEOUT + 0.1)
        for choice in (NEW, OTHER):
            swarm[me].vote(2, OLD, choice)
            assert swarm[me].of(2, OLD)[me] == choice

    play(body)


def test_a_learner_that_has_restarted_has_voted_for_nothing() -> None:
    async def body(swarm: Swarm) -> None:
        swarm.vote(LEARNERS[0], NEW)
        swarm.vote(LEARNERS[1], NEW)
        assert swarm.seed.counts(swarm.release())
        swarm.tell(LEARNERS[0], votes=False)
        assert not swarm.seed.counts(swarm.release())

    play(body)


def test_of_two_that_are_present_each_waits_for_the_other_and_of_three_two_agree() -> None:
    async def body(swarm: Swarm) -> None:
        me, other = LEARNERS[:2]
        swarm.keep_busy()
        assert not swarm[me].agrees(2, OLD, NEW, me, waits=False), "nobody voted"
        swarm.vote(me, NEW)
        few = len(swarm.learners) > 2
        assert swarm[me].agrees(2, OLD, NEW, me, waits=False) is not few
        assert not swarm[me].agrees(2, OLD, NEW, me, waits=True)
        assert not swarm[me].agrees(2, OLD, OTHER, waits=False)
        swarm.vote(other, me)
        assert swarm[me].agrees(2, OLD, NEW, me, waits=True)
        assert swarm[me].agrees(2, OLD, NEW, waits=False) is not few

    play(body, learners=2)
    play(body, learners=3)
    play(alone_agrees, learners=1)


async def alone_agrees(swarm: Swarm) -> None:
    me = LEARNERS[0]
    swarm[me].vote(2, OLD, me)
    assert swarm[me].agrees(2, OLD, me, waits=True)


def test_the_oldest_come_first_and_unknown_ones_last() -> None:
    async def body(swarm: Swarm) -> None:
        assert swarm[LEARNERS[1]].order([STRANGERS[0], *reversed(LEARNERS[:3])]) == [
            *LEARNERS[:3],
            STRANGERS[0],
        ]

    play(body)


def voted_after(
    seconds: float,
    votes: Collection[str],
    *,
    phase: Phase = Phase.GATHERING,
    groups: int = 0,
    meets: bool = True,
    speeds: tuple[float, float] = (1.0, 1.0),
    learners: int = 4,
) -> str | None:
    """The choice of the youngest of these learners, which has so many groups, so long after those before it
    voted so; its speed, and that of the others, are `speeds`."""
    found = list[str | None]()

    async def body(swarm: Swarm) -> None:
        me = LEARNERS[learners - 1]
        swarm.keep_busy()
        swarm[me].meets = meets
        host = swarm.hosts[me]
        host.status.phase, host.status.speed, host.status.inbox = phase, speeds[0], groups
        swarm[me].look()
        for voter, choice in zip(LEARNERS, votes, strict=False):
            swarm.hosts[voter].status.speed = speeds[1]
            swarm[voter].vote(2, OLD, choice)
            swarm.tell(voter, me)
        await host.ports.clock.sleep(seconds)
        swarm[me].look()
        mine = swarm[me].mine
        found.append(mine.choice if mine is not None else None)

    play(body, learners)
    return found[0]


FIRST, SECOND = LEARNERS[:2]


@pytest.mark.parametrize("phase", [Phase.GATHERING, Phase.LEARNING])
def test_a_learner_without_a_step_of_its_own_joins_two_votes_at_once(phase: Phase) -> None:
    assert voted_after(0.0, (OTHER, NEW, NEW), phase=phase, groups=5) == NEW


@pytest.mark.parametrize("phase", [Phase.MATCHING, Phase.STEPPING, Phase.RELEASING, Phase.EARLY])
def test_a_learner_with_a_gradient_or_a_step_joins_no_votes_before_its_own(phase: Phase) -> None:
    assert voted_after(10 * MATCH, (OTHER, NEW, NEW), phase=phase) is None
    assert voted_after(10 * MATCH, (FIRST,), phase=phase, meets=False) is None


def test_a_single_vote_for_a_step_alone_is_followed_once_a_round_of_this_version_would_have_begun() -> None:
    assert voted_after(MATCH - 0.1, (FIRST,)) is None
    assert voted_after(MATCH + 0.1, (FIRST,)) == FIRST
    assert voted_after(MATCH + 0.1, (FIRST, SECOND)) == FIRST, "of equal ones that of the oldest"
    assert voted_after(MATCH + 0.1, ()) is None


def test_a_single_vote_for_bytes_or_for_a_peer_that_is_no_elector_is_not_followed() -> None:
    assert voted_after(10 * MATCH, (NEW,)) is None
    assert voted_after(10 * MATCH, ("nobody",)) is None
    assert voted_after(10 * MATCH, ("nobody", SECOND)) is None, "the favourite is that of the oldest"


def test_a_learner_that_has_groups_follows_no_single_vote() -> None:
    assert voted_after(10 * MATCH, (FIRST,), groups=1) is None
    assert voted_after(10 * MATCH, (FIRST,), groups=1, meets=False) is None


def test_a_learner_that_computes_follows_no_single_vote_unless_it_is_slow() -> None:
    votes = FIRST, SECOND
    assert voted_after(10 * MATCH, votes, phase=Phase.LEARNING) is None
    assert voted_after(10 * MATCH, votes, phase=Phase.LEARNING, speeds=(0.6, 1.0)) is None
    assert voted_after(MATCH + 0.1, votes, phase=Phase.LEARNING, speeds=(0.4, 1.0)) == FIRST


def test_of_two_learners_one_that_does_not_expect_the_other_one_follows_its_vote_at_once() -> None:
    assert voted_after(0.0, (FIRST,), meets=False, groups=1, learners=2) == FIRST
    assert voted_after(0.0, (FIRST,), groups=1, learners=2) is None


def test_a_vote_that_decided_nothing_is_replaced_after_a_time_out_by_that_of_several() -> None:
    async def body(swarm: Swarm) -> None:
        me, *others = LEARNERS[:3]
        swarm.keep_busy()
        swarm.vote(me, NEW)
        for other in others:
            swarm[other].vote(2, OLD, OTHER)
            swarm.tell(other, me)
        await swarm.hosts[me].ports.clock.sleep(TIMEOUT - 0.1)
        swarm[me].look()
        assert swarm[me].of(2, OLD)[me] == NEW, "it binds until then"
        await swarm.hosts[me].ports.clock.sleep(0.2)
        swarm[me].look()
        assert swarm[me].of(2, OLD)[me] == OTHER

    play(body)


@pytest.mark.parametrize(("mine", "then"), [(NEW, NEW), (LEARNERS[1], LEARNERS[0])])
def test_a_yield_goes_to_the_favourite_after_a_time_out_and_a_vote_for_bytes_stays_against_a_single_one(
    mine: str, then: str
) -> None:
    async def body(swarm: Swarm) -> None:
        oldest, _, me = LEARNERS[:3]
        swarm.keep_busy()
        swarm[me].vote(2, OLD, mine)
        swarm[oldest].vote(2, OLD, oldest)
        swarm.tell(oldest, me)
        await swarm.hosts[me].ports.clock.sleep(TIMEOUT + 0.1)
        swarm[me].look()
        assert swarm[me].of(2, OLD)[me] == then

    play(body)


def test_crossing_votes_of_learners_that_would_step_alone_go_to_the_oldest_at_once() -> None:
    async def body(swarm: Swarm) -> None:
        oldest, others = swarm.learners[0], swarm.learners[1:]
        swarm.keep_busy()
        for peer in swarm.learners:
            swarm[peer].vote(2, OLD, peer)
        for peer in others[1:]:
            swarm.tell(peer)
            assert swarm[others[0]].of(2, OLD)[others[0]] == others[0], "not all votes are known"
        swarm.tell(others[0])
        swarm.tell(oldest)
        assert {swarm[peer].of(2, OLD)[peer] for peer in swarm.learners} == {oldest}

    play(body, learners=2)
    play(body, learners=4)


def test_votes_that_are_enough_and_votes_for_bytes_bind_for_their_time_out() -> None:
    async def body(swarm: Swarm) -> None:
        first, second, third = swarm.learners
        swarm.keep_busy()
        for peer, choice in ((third, second), (second, second), (first, first)):
            swarm.vote(peer, choice)
        assert swarm[third].of(2, OLD) == {first: first, second: second, third: second}
        for peer, choice in ((third, OTHER), (second, NEW), (first, NEWER)):
            swarm.vote(peer, choice, version=3)
        assert swarm[third].of(3, OLD) == {first: NEWER, second: NEW, third: OTHER}

    play(body)


def test_a_learner_that_is_behind_follows_a_single_vote_though_it_waits_with_a_gradient() -> None:
    async def body(swarm: Swarm) -> None:
        ahead, behind = LEARNERS[:2]
        swarm.keep_busy()
        swarm.vote(ahead, NEW)
        swarm.vote(LEARNERS[2], NEW)
        swarm.announce(swarm.release(), *swarm.hosts)
        status = swarm.hosts[ahead].status
        status.version, status.weights = 2, NEW
        swarm.vote(ahead, ahead, parent=NEW, version=3)
        assert behind not in swarm[behind].of(3, NEW)
        await pass_time(swarm, MATCH + 0.1)
        assert swarm[behind].of(3, NEW)[behind] == ahead

    play(body)


def test_a_learner_that_has_most_votes_and_does_not_step_is_passed_over_after_a_time_out() -> None:
    async def body(swarm: Swarm) -> None:
        first, second, third, me = swarm.learners
        swarm.keep_busy()
        for voter in (me, first, second):
            swarm.vote(voter, first)
        swarm.vote(third, third)
        await swarm.hosts[me].ports.clock.sleep(TIMEOUT + 0.1)
        swarm[me].look()
        assert swarm[me].of(2, OLD)[me] == third

    play(body, learners=4)


def test_peers_that_are_no_learners_never_vote() -> None:
    async def body(swarm: Swarm) -> None:
        for voter in LEARNERS[:3]:
            swarm.vote(voter, NEW)
        swarm.seed.look()
        assert swarm.seed.mine is None

    play(body)


# --- what comes of it ---------------------------------------------------------------------------------------


def told(swarm: Swarm) -> tuple[list[Release], list[str]]:
    """Releases, of version 2, and texts that the seed emitted."""
    noted = [event.text for event in swarm.emitted if isinstance(event, Noted)]
    made = [event.release for event in swarm.emitted if isinstance(event, Released)]
    return [one for one in made if one.version == 2], noted


def test_a_release_is_told_once_it_counts_and_reported_once_if_it_does_not_for_a_time_out() -> None:
    async def body(swarm: Swarm) -> None:
        made = swarm.release()
        swarm.keep_busy()
        swarm[LEARNERS[0]].vote(2, OLD, NEW)
        swarm.announce(made, SEED)
        await pass_time(swarm, TIMEOUT / 2)
        assert told(swarm) == ([], [])
        await pass_time(swarm, TIMEOUT)
        text = f"version 2 of {made.publisher} is not followed: 1 of 3 learners agree to it"
        assert told(swarm) == ([], [text])
        await pass_time(swarm, 2 * TIMEOUT)
        assert told(swarm) == ([], [text])
        swarm.vote(LEARNERS[1], NEW)
        assert told(swarm) == ([made], [text]), "it may count later"
        await pass_time(swarm, TIMEOUT)
        assert told(swarm) == ([made], [text])

    play(body)


def test_a_release_that_another_one_replaced_is_reported_and_an_old_one_is_forgotten_without_a_word() -> None:
    async def body(swarm: Swarm) -> None:
        late, of = swarm.release(LEARNERS[2], weights=Digest("e" * 64)), LEARNERS[1]
        swarm.announce(swarm.release(of, weights=OTHER), SEED)
        made, later = swarm.release(), swarm.release(version=3, weights=NEWER, parent=NEW)
        for peer in LEARNERS[:3]:
            status = swarm.hosts[peer].status
            status.version, status.weights = 3, NEWER
            swarm.tell(peer, SEED)
        for one in (made, later, late):
            swarm.announce(one, SEED)
        await pass_time(swarm, 2 * TIMEOUT)
        assert told(swarm) == ([made], [f"version 2 of {of} is not followed: 0 of 3 learners agree to it"])

    play(body)


def test_a_publisher_whose_releases_are_not_followed_is_reported_once_until_one_of_them_counts() -> None:
    async def body(swarm: Swarm) -> None:
        swarm.keep_busy()
        texts, publisher = list[str](), LEARNERS[0]

        async def announce(version: int, weights: Digest, most: bool) -> None:
            parent = swarm.hosts[publisher].status.weights
            for voter in LEARNERS[: 2 if most else 1]:
                swarm.vote(voter, weights, parent=Digest(parent), version=version)
            made = swarm.release(publisher, version=version, weights=weights, parent=Digest(parent))
            swarm.announce(made, *swarm.hosts)
            await pass_time(swarm, TIMEOUT + 1.0)

        await announce(2, OTHER, most=False)
        await announce(3, OTHER, most=False)
        texts.append(f"version 2 of {publisher} is not followed: 1 of 3 learners agree to it")
        assert told(swarm)[1] == texts
        await announce(2, NEW, most=True)
        await announce(3, NEWER, most=False)
        texts.append(f"version 3 of {publisher} is not followed: 1 of 3 learners agree to it")
        assert told(swarm)[1] == texts

    play(body)


def test_mine_is_worth_as_much_as_the_version_before_it_that_counts() -> None:
    async def body(swarm: Swarm) -> None:
        (first,) = swarm.seed.candidates.known(1, OLD)
        mine, then = swarm.release(), swarm.release(version=3, weights=NEWER, parent=NEW)
        assert swarm.seed.above((2, NEW)) == (), "of a version that is not known"
        for made in (mine, then):
            swarm.announce(made, SEED)
        assert swarm.seed.above((1, OLD)) == swarm.seed.above((2, NEW)) == rank(first)
        assert swarm.seed.above((3, NEWER)) == rank(first)
        for voter in LEARNERS[:2]:
            swarm[voter].vote(2, OLD, NEW)
            swarm.tell(voter, SEED)
        assert swarm.seed.above((2, NEW)) == swarm.seed.above((3, NEWER)) == rank(mine)

    play(body)


def part(swarm: Swarm) -> list[Release]:
    """Each learner is at a version 2 of its own; the second one's is the best."""
    made = [
        swarm.release(peer, weights=weights, groups=groups)
        for peer, weights, groups in zip(swarm.learners, (NEW, OTHER, NEWER), (1, 3, 2), strict=True)
    ]
    for one in made:
        swarm.announce(one, *swarm.hosts)
        status = swarm.hosts[one.publisher].status
        status.version, status.weights = 2, one.weights
        swarm.tell(one.publisher)
    return made


def test_learners_that_have_parted_vote_for_the_best_release_once_they_have_waited_in_vain() -> None:
    async def body(swarm: Swarm) -> None:
        swarm.keep_busy()
        first, best, third = part(swarm)
        assert not any(swarm[peer].counts(best) for peer in swarm.hosts)
        assert not swarm[best.publisher].vote_ahead(), "none is better"
        assert swarm[first.publisher].vote_ahead()
        assert swarm[first.publisher].bound(1, OLD), "it steps to nothing else meanwhile"
        swarm.tell(first.publisher)
        assert all(swarm[peer].counts(best) for peer in swarm.hosts)
        assert not any(swarm[peer].counts(one) for peer in swarm.hosts for one in (first, third))

    play(body)


def test_a_learner_that_is_behind_votes_for_a_release_that_is_versions_ahead_and_is_bound_by_that() -> None:
    async def body(swarm: Swarm) -> None:
        swarm.keep_busy()
        me, ahead = LEARNERS[:2]
        swarm.announce(last := swarm.release(ahead, version=5, weights=NEWER, parent=OTHER), *swarm.hosts)
        assert not swarm[me].vote_ahead(), "no learner is at it"
        status = swarm.hosts[ahead].status
        status.version, status.weights = 5, NEWER
        swarm.tell(ahead)
        assert not swarm.seed.counts(last) and swarm[me].vote_ahead()
        swarm.tell(me)
        assert swarm.seed.counts(last) and swarm[me].bound(2, OLD) and not swarm[me].bound(6, NEWER)
        await swarm.hosts[me].ports.clock.sleep(TIMEOUT + 0.1)
        assert not swarm[me].bound(2, OLD)

    play(body)


def test_a_swarm_that_stands_still_follows_no_release_of_one_learner() -> None:
    async def body(swarm: Swarm) -> None:
        await pass_time(swarm, WINDOW + 1.0)
        lie = swarm.release(LEARNERS[3], version=1002, weights=OTHER, parent=NEWER)
        swarm.announce(lie, *swarm.hosts)
        assert not any(swarm[peer].counts(lie) for peer in swarm.hosts)

    play(body, learners=4)


def test_a_copy_of_a_release_with_another_origin_counts_nowhere_and_takes_no_place() -> None:
    async def body(swarm: Swarm) -> None:
        true, liar = swarm.release(groups=8, learners=4), LEARNERS[3]
        swarm.keep_busy()
        false = swarm.release(liar, parent=OTHER, groups=10**6)
        swarm.announce(false, SEED)
        for voter in LEARNERS[:3]:
            swarm.vote(voter, NEW)
        swarm.announce(true, *swarm.hosts)
        for peer in LEARNERS[:3]:
            status = swarm.hosts[peer].status
            status.version, status.weights = 2, NEW
            swarm.tell(peer)
        swarm.announce(false, *swarm.hosts)
        older = swarm.release(liar, version=1, weights=OTHER, parent=NEWER)
        for peer, host in swarm.hosts.items():
            assert (
                swarm[peer].counts(true) and not swarm[peer].counts(false) and not swarm[peer].counts(older)
            )
            assert host.releases.named(2, NEW) == true
            assert host.releases.lines.lineage.parent((2, NEW)) == (1, OLD)

    play(body, learners=4)


def test_ballots_of_one_announcement_count_for_others_of_the_same_release() -> None:
    async def body(swarm: Swarm) -> None:
        made, stand_in = swarm.release(), swarm.release(LEARNERS[1])
        carried = ballots(swarm, LEARNERS[:3], made)
        swarm.announce(stand_in, SEED)
        assert not swarm.seed.counts(stand_in)
        swarm.announce(msgspec.structs.replace(made, ballots=carried), SEED)
        assert swarm.seed.counts(stand_in) and swarm.seed.counts(made)

    play(body, learners=5)
