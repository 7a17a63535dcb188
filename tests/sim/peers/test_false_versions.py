"""Who may be followed where: a learner that announces a version far ahead of the others, or one that goes on
from nothing, is refused and named; one that was cut off and is far ahead waits for the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest
from lying_publishers import LIAR, Liar
from nouns import beat, release
from role_swarms import EPOCH, Told, scenario
from still_host import still_host

from peers.runtime.host import Host
from peers.runtime.releases import doubts
from peers.runtime.releases.doubts import LEAD, QUIET, TRIES
from peers.runtime.releases.exchange import ReleaseExchange
from peers.runtime.releases.votes import Why, mark
from swarm.core.agreement.lineage import Fork
from swarm.core.agreement.releases import rank
from swarm.events import Adopted, Bus, Event, Forked, Judged, Noted, Rejected, Released, Trained
from swarm.limits import RELEASE_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import BatchSize, DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault
from swarm.types import Digest, PeerId, Release, Verdict

LIES: dict[str, Callable[[Liar, bytes], Release]] = {
    "a thousand versions ahead": lambda liar, data: liar.release(liar.newest() + 1000, data),
    "from nothing": lambda liar, data: liar.release(liar.newest() + 1, data),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_false_version_is_not_followed_and_its_sender_is_named(
    lie: Callable[[Liar, bytes], Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    false: list[Release] = []

    async def lies(liar: Liar) -> None:
        def told() -> Release:
            false.append(lie(liar, liar.learner.weights().data))
            return false[-1]

        for at in (12.0, 14.0, 16.0, 18.0, 20.0):
            await liar.tell(at, told)

    monkeypatch.setattr(Liar, "lies", lies, raising=False)
    monkeypatch.setattr("peers.learner.learner.LearnerPeer", Liar)
    told = Told(scenario(0.6, (4, 4)))
    lied = {(release.version, release.weights) for release in false}
    assert len(false) == 5
    assert not [event for event in told.of(Adopted) if (event.version, event.weights) in lied]
    honest = [event.release for event in told.of(Released, "learner") if event.peer != LIAR]
    assert not [release for release in honest if (release.version - 1, release.parent) in lied]
    assert max(event.version for event in told.of(Trained)) < 1000
    assert len(told.of(Trained, since=21.0)) > 5
    named = {(event.peer, event.sender) for event in told.of(Rejected)}
    assert {sender for _, sender in named} == {LIAR} and len(named) > 4
    if false[0].version < 1000:
        assert len(told.of(Rejected, "learner-0")) == doubts.TRIES, "the others are not asked for"


def test_a_learner_that_was_cut_off_and_is_far_ahead_of_two_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doubts, "LEAD", 3)
    alone, two = (
        ("learner-0", "sampler-0", "sampler-1", "sampler-2"),
        ("learner-1", "learner-2", "sampler-3", "seed-0"),
    )
    cut = [
        Fault(at=15, fault="partition", between=(alone, two)),
        Fault(at=50, fault="repair", between=(alone, two)),
    ]
    told = Told(scenario(1.6, (3, 4), *cut, batch=BatchSize(groups=8, close_after=20.0)))
    apart = max(event.release.version for event in told.of(Released, "learner-0", until=50))
    others = [event for event in told.of(Released, "learner", until=50) if event.peer != "learner-0"]
    assert apart > max(event.release.version for event in others) + 3
    assert {event.peer for event in told.of(Forked)} == {"learner-1", "learner-2"}
    waited = [
        event.version
        for event in told.of(Trained, "learner-0", since=52, until=told.of(Forked)[0].at - EPOCH)
    ]
    assert len(waited) <= 1
    late = [event.release for event in told.of(Released, "learner", since=80)]
    assert max(one.learners for one in late) == 3
    assert len({one.version for one in late}) == len({one.weights for one in late}) > 3


# --- one peer that hears three learners ---------------------------------------------------------------------

LEARNERS = [PeerId(f"learner-{k}") for k in range(3)]
LYING = LEARNERS[0]


def digest(text: object) -> Digest:
    return Digest(f"{text}".rjust(64, "0"))


def follows(version: int, publisher: PeerId = LEARNERS[1]) -> Release:
    """The release of this version in the line of all."""
    return release(version=version, weights=digest(version), parent=digest(version - 1), publisher=publisher)


def from_nothing(number: int, version: int = 11) -> Release:
    return release(
        version=version, weights=digest(f"a{number}"), parent=digest(f"b{number}"), publisher=LYING
    )


def announce(host: Host, told: Release) -> Release:
    """As ReleaseExchange hears it."""
    host.releases.candidates.receive(told)
    host.releases.lines.lineage.receive(told)
    host.releases.doubts.look(told)
    return told


def hearing(
    body: Callable[[Host, list[Any]], Awaitable[None]],
    *versions: int,
    me: tuple[str, Role] = ("seed-0", Role.SEED),
) -> None:
    """Play a scene of a peer that holds version 10 and hears learners at these versions."""

    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            told, bus = list[Event](), Bus()
            bus.add(told.append)
            host = still_host(network, *me, bus=bus)
            for peer, version in zip(LEARNERS, versions, strict=False):
                assert host.roster.receive(peer, beat(name=peer, version=version, at=host.now()), host.now())
            host.releases.candidates.hold(announce(host, follows(10)))
            told.clear()
            await body(host, told)

    run(main())


def test_a_learner_is_followed_as_far_ahead_of_half_of_them_as_it_may_be_and_no_further() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        host.status.version = 50  # of a seed it does not count
        assert host.releases.doubts.ceiling(LEARNERS[2]) == 11 + LEAD
        announce(host, follows(11 + LEAD, LEARNERS[2]))
        assert not told
        announce(host, follows(12 + LEAD, LEARNERS[2]))
        (rejected,) = told
        assert rejected.sender == LEARNERS[2]
        assert rejected.reason == (
            "version 76 is not followed: half of the learners are at version 11, more than 64 before it"
        )

    hearing(scene, 10, 11, 40)


def test_of_two_learners_each_is_followed_everywhere() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        far = announce(host, follows(5000))
        assert not told and await host.releases.doubts.leads_on(far)
        assert host.releases.doubts.above(far) == rank(far)
        assert not await refused(host, from_nothing(1))

    hearing(scene, 10, 10)


def test_a_learner_counts_itself_and_believes_itself_no_more_than_another_one() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        host.status.version = 10
        assert host.releases.doubts.ceiling(host.ports.me) == 12 + LEAD
        assert host.releases.doubts.ceiling(LEARNERS[0]) == 14 + LEAD

    hearing(scene, 12, 14, me=("learner-9", Role.LEARNER))


def test_a_release_that_is_not_believed_any_more_is_no_better_than_none() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        doubts, mine = host.releases.doubts, follows(10)
        assert doubts.above(None) == () and doubts.above(mine) == rank(mine)
        assert doubts.above(follows(10 + LEAD)) and doubts.above(follows(11 + LEAD)) == ()
        assert not doubts.is_refused(10, digest(10)) and not doubts.is_refused(11, digest(11))
        again = announce(host, follows(10, LEARNERS[2]))
        host.releases.candidates.disbelieve(mine)
        assert doubts.above(mine) == () and not doubts.is_refused(10, digest(10))
        host.releases.candidates.disbelieve(again)
        assert doubts.is_refused(10, digest(10))

    hearing(scene, 10, 10, 10)


async def refused(host: Host, lie: Release) -> bool:
    return not await host.releases.doubts.leads_on(announce(host, lie))


def test_after_three_releases_from_nothing_no_other_one_of_their_publisher_is_asked_for() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        believed = lambda one: not host.releases.candidates.is_disbelieved(one)  # noqa: E731
        waiting, true = announce(host, from_nothing(99)), announce(host, follows(11, LYING))
        for number in range(TRIES):
            assert believed(waiting)
            assert await refused(host, from_nothing(number))
        assert not believed(waiting) and believed(true), "what goes on from a known one is followed"
        assert [event.sender for event in told if type(event) is Rejected] == [LYING] * TRIES
        assert (
            told[0].reason
            == f"version 11 is not followed: no learner shows how its parent {'0' * 12} was made"
        )
        assert not believed(announce(host, from_nothing(TRIES)))
        assert believed(announce(host, follows(12, LYING)))
        await host.ports.clock.sleep(QUIET + 1.0)
        assert believed(announce(host, from_nothing(TRIES + 1)))
        assert await refused(host, from_nothing(TRIES + 2))
        await host.ports.clock.sleep(QUIET + 1.0)
        assert not believed(announce(host, from_nothing(TRIES + 3))), "it is not heard for twice as long"
        await host.ports.clock.sleep(QUIET)
        assert believed(announce(host, from_nothing(TRIES + 4)))
        assert len(told) == TRIES + 1, "what is not asked for is not told"

    hearing(scene, 10, 10, 10)


def test_a_release_whose_line_somebody_shows_ends_the_count_of_those_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        for number in range(TRIES - 1):
            assert await refused(host, from_nothing(number))
        with monkeypatch.context() as patch:
            patch.setattr(host.releases.lines, "fork", lambda *_: shown())
            assert not await refused(host, from_nothing(50))
        assert await refused(host, from_nothing(51))
        assert not host.releases.candidates.is_disbelieved(announce(host, from_nothing(52)))

    async def shown() -> Fork:
        return Fork(9, (), 1)

    hearing(scene, 10, 10, 10)


def test_who_was_away_follows_a_version_that_half_of_the_learners_are_at_without_a_question() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        assert not await refused(host, from_nothing(1, version=20))
        assert await refused(host, from_nothing(2, version=22)), "nobody is there yet"
        assert await refused(host, from_nothing(3, version=11)), "the one before it is known"

    hearing(scene, 20, 20, 20)


def test_who_holds_nothing_yet_follows_the_first_release_that_it_hears() -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        host.releases.candidates.lose(follows(10))
        assert not await refused(host, from_nothing(1))

    hearing(scene, 10, 10, 10)


@pytest.mark.parametrize("why", [Why.OTHER_BYTES, Why.OTHER_MEAN])
def test_what_most_learners_deny_is_refused_once_and_its_publisher_is_named_for_a_lie_alone(why: Why) -> None:
    async def scene(host: Host, told: list[Any]) -> None:
        false = announce(host, follows(11, LYING))
        for seq, peer in enumerate(LEARNERS):
            denied = b"" if peer == LYING else mark(false, why)
            its = beat(name=peer, version=10, seq=seq + 2, denied=denied, at=host.now())
            assert host.roster.receive(peer, its, host.now())
            host.releases.doubts.receive(its)
        host.releases.doubts.receive(its)
        assert host.releases.candidates.is_disbelieved(false)
        (event,) = told
        if why is Why.OTHER_BYTES:
            assert type(event) is Rejected and event.sender == LYING and "not followed: 2 lea" in event.reason
        else:
            assert type(event) is Noted and f"version 11 of {LYING} is not followed" in event.text

    hearing(scene, 10, 10, 10)


def time_lies(monkeypatch: pytest.MonkeyPatch, lie: float) -> PeerId:
    """A learner, which publishes most releases, says that each is this many seconds younger than it is."""
    true, liar = ReleaseExchange._release, PeerId("learner-0")

    def false(self: ReleaseExchange, *args: Any, **more: Any) -> Release:
        made = true(self, *args, **more)
        mine = made.publisher == liar and made.version > 0
        return msgspec.structs.replace(made, released=made.released + lie) if mine else made

    monkeypatch.setattr(ReleaseExchange, "_release", false)
    return liar


def assert_ages_are_right(told: Told, liar: PeerId) -> None:
    assert len([one for one in told.of(Released, liar) if one.release.publisher == liar]) > 10
    judged = told.of(Judged)
    stale = [one for one in judged if one.verdict is Verdict.STALE]
    assert len(judged) > 70 and not stale and all(-1.0 < one.seconds < 60.0 for one in judged)


@pytest.mark.parametrize("lie", [-3600.0, 3600.0])
def test_the_time_that_a_publisher_gives_its_releases_makes_nobody_s_groups_stale_and_is_told(
    lie: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = time_lies(monkeypatch, lie)
    told = Told(scenario(0.45, (3, 4)))
    assert_ages_are_right(told, liar)
    named = [one.text for one in told.of(Noted) if one.peer != liar and "is of 3600 s" in one.text]
    assert named and all(text.startswith(f"{liar} says that version") for text in named)
    assert len(named) == len({one.peer for one in told.of(Noted) if one.text in named}), "each says it once"


def test_nor_does_that_of_releases_which_it_lets_the_others_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    liar, true = time_lies(monkeypatch, -3600.0), ReleaseExchange.announce

    async def unsaid(self: ReleaseExchange, release: Release) -> None:
        if release.publisher != liar:
            return await true(self, release)
        self._keep(release, self._kernel.seal(release, RELEASE_LIMIT))

    monkeypatch.setattr(ReleaseExchange, "announce", unsaid)
    assert_ages_are_right(Told(scenario(0.6, (3, 4))), liar)
