"""Releases that are announced and that nobody has: the swarm goes on from what can be had, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from lying_publishers import Liar, steps, told_with
from nouns import beat, release
from role_swarms import EPOCH, Told, scenario
from still_host import still_host

from peers.learner.learner import LearnerPeer
from peers.runtime.host import Host
from peers.runtime.releases.exchange import ReleaseExchange
from peers.runtime.releases.queries import ASKED, HolderSearch
from swarm.core.agreement.lineage import Fork, Line
from swarm.core.agreement.rounds import Cause
from swarm.events import Adopted, CaughtUp, Noted, Rejected, Trained
from swarm.frames import wire
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Service
from swarm.settings.config import DelayLaw, Pace
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault
from swarm.types import Digest, PeerId, Release, ReleaseQuery


def longest_pause(told: Told) -> float:
    return max(after.at - before.at for before, after in pairwise(told.of(Trained, since=10)))


def told_with_a_gap(monkeypatch: pytest.MonkeyPatch, learners: int) -> tuple[Told, Release]:
    """The first to publish after 18 s does nothing more: everybody hears of a release whose bytes nobody has,
    the second value. It is gone at 24 s, and a lone one is back at 28 s, with an empty folder."""
    died = dict[ReleaseExchange, Release]()
    announce, gather, average = ReleaseExchange.announce, LearnerPeer.gather, LearnerPeer.average

    async def dies(releases: ReleaseExchange, release: Release) -> None:
        await announce(releases, release)
        if not died and release.publisher == "learner-0" and releases._kernel.now() > EPOCH + 18.0:
            died[releases] = release
            releases.blobs.clear()
            releases.patches.files.clear()

    async def lives(peer: LearnerPeer) -> None:
        if peer.host.releases in died:
            await asyncio.Event().wait()

    class Mortal(LearnerPeer):
        async def gather(self) -> Cause:
            await lives(self)
            return await gather(self)

        async def average(self) -> Cause:
            await lives(self)
            return await average(self)

    monkeypatch.setattr(ReleaseExchange, "announce", dies)
    monkeypatch.setattr("peers.learner.learner.LearnerPeer", Mortal)
    end = Fault(at=24.0, fault="bounce" if learners == 1 else "crash", peer="learner-0", down=4.0)
    told = Told(scenario(1.2, (learners, 3), end))
    return told, next(iter(died.values()))


def test_a_publisher_that_dies_before_anybody_has_its_release_costs_that_version_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, release = told_with_a_gap(monkeypatch, 1)
    assert told.of(CaughtUp, "learner-0", since=24)[0].version == release.version - 1, (
        "from the seed or a sampler"
    )
    after = steps(told, since=24)
    assert after[0].version == release.version and after[0].at - EPOCH < 28.0 + Pace().patience
    assert len(after) > 8 and told.of(Adopted, "sampler", since=24)
    assert any(
        f"no peer gave release {release.version} of learner-0" in event.text for event in told.of(Noted)
    )


def test_a_learner_that_lives_goes_on_when_the_publisher_dies_in_the_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, release = told_with_a_gap(monkeypatch, 2)
    assert release.publisher == "learner-0"
    after = told.of(Trained, "learner-1", since=24)
    assert len(after) > 8 and after[-1].version > release.version


def test_a_newcomer_finds_a_release_that_only_samplers_hold() -> None:
    gone = [Fault(at=30.0, fault="crash", peer=peer) for peer in ("learner-0", "seed-0")]
    told = Told(scenario(1.5, (2, 3), *gone, Fault(at=31.0, fault="host", peer="learner-1")))
    last = max(event.version for event in told.of(Trained, "learner-0"))
    assert last - 1 <= told.of(CaughtUp, "learner-1")[0].version <= last
    assert len(told.of(Trained, "learner-1", since=31.0 + 2 * Pace().patience)) > 10


def test_a_lone_learners_release_counts_again_when_one_that_outranked_it_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lies(liar: Liar) -> None:
        # a heartbeat tells of a version late: one of these comes while it is the newest
        for tick in range(40):
            await liar.tell(30.0 + tick / 10, lambda: liar.release(liar.newest()))

    told = told_with(monkeypatch, lies)
    assert len(steps(told, since=30.0 + 2 * Pace().patience)) > 10
    assert longest_pause(told) < 2 * Pace().patience


def test_seventy_announcements_of_absurd_versions_cost_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lies(liar: Liar) -> None:
        for k in range(70):
            await liar.tell(12.0 + k / 10, partial(liar.release, 10**15 + k))

    told = told_with(monkeypatch, lies, Fault(at=27.0, fault="host", peer="sampler-2"), minutes=1.0)
    assert len(steps(told, since=12.0 + 2 * Pace().patience)) > 7
    assert longest_pause(told) < 2 * Pace().patience
    newcomer = told.of(Adopted, "sampler-2")
    assert newcomer and newcomer[0].at - EPOCH < 27.0 + 3 * Pace().patience, (
        "a newcomer is told of what can be had"
    )
    assert max(event.version for event in told.of((Trained, Adopted))) < 1000  # type: ignore[arg-type]


def test_who_announces_without_end_what_nobody_has_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lies(liar: Liar) -> None:
        for k in range(40):
            await liar.tell(12.0 + k, lambda: liar.release(liar.newest() + 1000))

    told = told_with(monkeypatch, lies, minutes=1.0)
    waits = [
        after.at - before.at
        for before, after in pairwise(told.of(Trained, since=10))
        if after.at - before.at > 6.0
    ]
    assert len(waits) <= 1 and len(steps(told, since=12.0 + 2 * Pace().patience)) > 7


def test_a_release_far_ahead_is_taken_when_its_bytes_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other half of a split swarm may be that far: what decides is the bytes."""

    async def lies(liar: Liar) -> None:
        await liar.tell(12.0, lambda: liar.release(1000, data=liar.learner.weights().data))

    told = told_with(monkeypatch, lies, minutes=1.0)
    assert [event.version for event in told.of(CaughtUp, "learner-0", since=12)] == [1000]
    assert {event.peer for event in told.of(Adopted, since=12) if event.version > 1000} == {
        "sampler-0",
        "sampler-1",
        "sampler-2",
    }
    assert not told.of(Rejected)


def test_bytes_that_nobody_can_use_are_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lies(liar: Liar) -> None:
        await liar.tell(12.0, lambda: liar.release(1000, data=b"no weights at all"))

    told = told_with(monkeypatch, lies, minutes=1.0)
    assert (
        len(steps(told, since=12.0 + 2 * Pace().patience)) > 7
        and max(event.version for event in steps(told, 12.0)) < 1000
    )


def on_a_still_host(play: Callable[[Host, MemoryNetwork], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            await play(still_host(network, "learner-0", Role.LEARNER), network)

    run(main())


def test_who_holds_no_release_hears_samplers_after_a_while_and_then_forgets_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(host: Host, _: MemoryNetwork) -> None:
        heard, known = list[float](), list[list[str]]()

        async def receive() -> None:
            began = host.now()
            known.append([peer for peer, _ in host.roster])
            for name, role in (("sampler-0", Role.SAMPLER), ("learner-1", Role.LEARNER)):
                host.roster.receive(PeerId(name), beat(role=role, incarnation=int(began)), host.now())
            try:
                await asyncio.Event().wait()
            finally:
                heard.extend((began, host.now()))

        pace, start = host.config.run.pace, host.now()
        looking = asyncio.create_task(HolderSearch(host, host.releases, receive).run())
        await asyncio.sleep(3 * pace.patience + 3 * pace.beat)
        began, ended = heard[:2]
        assert pace.patience <= began - start <= pace.patience + pace.beat
        assert ended - began == pytest.approx(2 * pace.patience)
        looking.cancel()
        await asyncio.wait({looking})
        assert known == [[], ["learner-1"]]

    on_a_still_host(play)


def test_of_two_announcements_of_the_same_weights_the_one_that_is_sought_is_shown() -> None:
    async def play(host: Host, network: MemoryNetwork) -> None:
        made = {at: release(publisher=PeerId(f"learner-{at}"), released=EPOCH + at) for at in (1, 2, 3)}
        for at, one in made.items():
            host.releases.candidates.receive(one, b"announced at %d" % at)
        await host.queries.serve()
        mail = network.ports("sampler-0", lambda _: 0.0).mail
        for at, one in made.items():
            sought = ReleaseQuery(version=one.version, weights=one.weights, released=EPOCH + at + 0.1)
            answer = await mail.send(PeerId("learner-0"), Service.RELEASE, wire.encode(sought))
            assert answer == b"announced at %d" % at
        other = ReleaseQuery(version=9, weights=Digest("9" * 64), released=EPOCH)
        assert await mail.send(PeerId("learner-0"), Service.RELEASE, wire.encode(other)) == b""

    on_a_still_host(play)


# --- questions about what gossip passed by ------------------------------------------------------------------


def digest(version: int) -> Digest:
    return Digest(f"{version:064x}")


def follows(version: int, **more: Any) -> Release:
    """The release of this version in the line of all."""
    return release(version=version, weights=digest(version), parent=digest(version - 1), **more)


class Asked:
    """Peers that answer a service in turn with what they are given; who was asked."""

    def __init__(self, host: Host, network: MemoryNetwork, service: Service) -> None:
        self._host, self._network, self._service, self.who = host, network, service, list[str]()

    async def answers(self, name: str, answer: bytes, **said: Any) -> PeerId:
        """A peer whose heartbeat says so."""
        ports = self._network.ports(name, lambda _: 0.0)

        async def tell(_: PeerId, __: bytes) -> bytes:
            self.who.append(name)
            return answer

        await ports.mail.serve(self._service, tell)
        self.receive(name, **said)
        return ports.me

    def receive(self, name: str, **said: Any) -> None:
        now = self._host.now()
        assert self._host.roster.receive(PeerId(name), beat(name=name, at=now, **said), now)


def test_who_holds_a_release_asks_about_a_newer_one_when_it_was_not_announced_for_a_heartbeat() -> None:
    async def play(host: Host, network: MemoryNetwork) -> None:
        asked, beat_seconds = Asked(host, network, Service.NEWEST), host.config.run.pace.beat
        host.releases.candidates.receive(follows(1))
        host.releases.candidates.hold(follows(1))
        await asked.answers("sampler-1", b"", version=1, weights=digest(1))
        await asked.answers("sampler-2", b"", version=2, weights=digest(2))
        asking = asyncio.create_task(host.queries.run())
        await asyncio.sleep(beat_seconds / 2)
        assert not asked.who
        await asyncio.sleep(beat_seconds)
        assert asked.who == ["sampler-2"]
        asked.receive("sampler-2", seq=2, version=3, weights=digest(3))
        host.releases.candidates.receive(follows(3))
        await asyncio.sleep(3 * beat_seconds)
        assert asked.who == ["sampler-2"], "it was announced meanwhile"
        asking.cancel()

    on_a_still_host(play)


def test_who_holds_nothing_asks_as_soon_as_somebody_has_a_release() -> None:
    async def play(host: Host, network: MemoryNetwork) -> None:
        asked = Asked(host, network, Service.NEWEST)
        asking = asyncio.create_task(host.queries.run())
        await asyncio.sleep(0.01)
        await asked.answers("seed-0", b"", version=0, weights=digest(0))
        host.move()
        await asyncio.sleep(0.5)
        assert asked.who == ["seed-0"]
        asking.cancel()

    on_a_still_host(play)


def test_some_peers_are_asked_for_the_newest_release_until_one_tells_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(host: Host, network: MemoryNetwork) -> None:
        asked, taken = Asked(host, network, Service.NEWEST), list[str]()
        silent = [await asked.answers(f"sampler-{k}", b"") for k in range(2 * ASKED)]
        await host.queries.ask_newest(silent)
        assert len(asked.who) == len(set(asked.who)) == ASKED
        asked.who.clear()

        def remember(sealed: bytes, by: PeerId) -> bool:
            taken.append(by)
            return sealed == b"news"

        monkeypatch.setattr(host.releases, "remember", remember)
        told = [await asked.answers(f"seed-{k}", answer) for k, answer in enumerate([b"old", b"news"] * 2)]
        await host.queries.ask_newest([PeerId("gone"), *told])
        assert asked.who == taken and asked.who[-1] in ("seed-1", "seed-3")
        assert not {*asked.who[:-1]} & {"seed-1", "seed-3"}

    on_a_still_host(play)


LINE = wire.encode(Line(weights=(digest(6), digest(5)), groups=(2, 1)))
"""That of version 6."""


def fork_of(
    *answers: tuple[str, bytes | None], known: bool = False
) -> tuple[Fork | None, list[str], list[str]]:
    """Where my line, up to version 5, and that of version 7 part, whose publisher and holders answer so, or
    are gone; who answered, and who was blamed."""

    async def play(host: Host, network: MemoryNetwork) -> None:
        asked, blamed = Asked(host, network, Service.LINE), list[str]()
        host.bus.add(lambda event: blamed.append(event.sender) if isinstance(event, Rejected) else None)
        lines, theirs = host.releases.lines, follows(7, publisher=PeerId(answers[0][0]))
        lines.lineage.receive(follows(5))
        for one in (theirs, *([follows(6)] if known else [])):
            lines.lineage.receive(one)
        for name, answer in answers:
            if answer is None:
                asked.receive(name, version=7, weights=digest(7))
            else:
                await asked.answers(name, answer, version=7, weights=digest(7))
        found.append((await lines.fork((5, digest(5)), theirs), asked.who, blamed))

    found = list[tuple[Fork | None, list[str], list[str]]]()
    on_a_still_host(play)
    return found[0]


def test_the_publisher_is_asked_for_an_unknown_line_and_then_one_holder() -> None:
    line = Fork(5, (), 0)
    assert fork_of(("learner-7", LINE), ("learner-8", LINE)) == (line, ["learner-7"], [])
    assert fork_of(("learner-7", None), ("learner-8", LINE)) == (line, ["learner-8"], [])
    assert fork_of(("learner-7", b"junk"), ("learner-8", LINE)) == (
        line,
        ["learner-7", "learner-8"],
        ["learner-7"],
    )
    assert fork_of(("learner-6", None), ("learner-7", None), ("learner-8", LINE)) == (None, [], [])
    assert fork_of(("learner-7", LINE), known=True)[1:] == ([], []), (
        "nobody is asked for a line that is known"
    )
    assert fork_of(("learner-0", None), ("learner-7", None), ("learner-8", LINE))[1] == ["learner-8"], (
        "a peer does not ask itself"
    )
