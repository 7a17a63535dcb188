"""What a peer's host takes from heartbeats and events of others, and what it tells of what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from nouns import beat, release
from still_host import membership, still_host

from peers.runtime.host import Host
from peers.runtime.kernel import DELIVERED_KEPT
from peers.runtime.membership.run_keys import digest_of
from peers.runtime.presence import LATER
from peers.runtime.traffic import EVERY_BEATS
from swarm import events
from swarm.core.gossip_limits import OFFENCES_BURST, SUSPENDED
from swarm.frames.wire import WireError
from swarm.limits import BEAT_LIMIT, EVENT_LIMIT, RELEASE_LIMIT, TEXT_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Part, Phase, Role, Topic
from swarm.settings.config import Config, DelayLaw, Run, Stop
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId


class Scene:
    """A host, what it tells, and whom it met; others seal what it hears."""

    def __init__(self, network: MemoryNetwork, role: Role, **who: Any) -> None:
        self.network, self.told, self.met = network, list[Any](), list[str]()
        self._others, self._private = dict[str, Host](), bool(who.get("private"))
        self.host = still_host(network, "mine", role, **who)
        self.host.presence._met = lambda peer, _: self.met.append(peer)
        self.host.bus.add(self.told.append)

    def other(self, name: str, role: Role, member: bool = True) -> Host:
        if name not in self._others:
            who: Any = {"membership": membership(name, role)} if member else {}
            self._others[name] = still_host(self.network, name, role, private=self._private, **who)
        return self._others[name]

    def receive(self, name: str, role: Role, member: bool = True, **said: Any) -> None:
        """A heartbeat of this peer."""
        other = self.other(name, role, member)
        self.host.presence.receive(other.seal(beat(role=role, at=other.now(), **said), BEAT_LIMIT))

    def hear_events(self, sender: Host, *bundle: events.Event) -> None:
        self.host.bundles.receive(sender.seal([*bundle], EVENT_LIMIT))

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.told if type(event) is kind]


def play(body: Callable[[Scene], Awaitable[None]], role: Role = Role.SAMPLER, **who: Any) -> None:
    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            await body(Scene(network, role, **who))

    run(main())


def test_a_stranger_is_not_asked_first_whatever_it_says_of_itself() -> None:
    async def scene(its: Scene) -> None:
        its.receive("stranger", Role.SAMPLER, member=False, mirror=5)
        its.receive("genesis", Role.SAMPLER, member=False, mirror=0)
        its.receive("member", Role.SAMPLER, mirror=5)
        said = {peer: known.mirror for peer, known in its.host.roster}
        assert said == {"stranger": -1, "genesis": -1, "member": 5}
        assert its.met == [*said]
        assert [its.host.known_sender(PeerId(name)) for name in said] == [False, False, True]

    play(scene)


@pytest.mark.parametrize("role", [Role.LEARNER, Role.SEED, Role.EVALUATOR, Role.AUDITOR])
def test_whoever_has_no_membership_for_its_role_is_in_no_roster_and_ends_no_run(role: Role) -> None:
    async def scene(its: Scene) -> None:
        its.receive("seed", Role.SEED, phase=Phase.COMPLETE)
        for name in ("stranger", "sampler"):
            other = its.other(name, Role.SAMPLER, member=name == "sampler")
            said = beat(role=role, at=other.now(), accuracy=1.0, judged=256, phase=Phase.COMPLETE)
            with pytest.raises(WireError, match=f"heartbeat of {name}"):
                its.host.presence.receive(other.seal(said, BEAT_LIMIT))
        assert [peer for peer, _ in its.host.roster] == its.met == ["seed"]
        assert not its.host.stop.is_set()

    play(scene, config=Config(run=Run(stop=Stop(accuracy=0.9))))


def test_whoever_delivered_a_group_is_known_and_of_many_the_last_ones_are() -> None:
    async def scene(its: Scene) -> None:
        host, first, second = its.host, PeerId("sampler-0"), PeerId("sampler-1")
        for peer in (first, second, first, *map(PeerId, map(str, range(DELIVERED_KEPT - 1)))):
            host.delivered(peer)
        assert host.known_sender(first) and not host.known_sender(second)
        its.receive("sampler-0", Role.SAMPLER, member=False)
        assert host.roster.proven(first)

    play(scene)


def test_who_leaves_is_forgotten_and_oneself_is_nobody_else() -> None:
    async def scene(its: Scene) -> None:
        its.receive("sampler-1", Role.SAMPLER)
        its.receive("sampler-1", Role.SAMPLER, seq=2, phase=Phase.LEAVING)
        own = beat(role=Role.SAMPLER, at=its.host.now(), incarnation=its.host.who.incarnation)
        its.host.presence.receive(its.host.seal(own, BEAT_LIMIT))
        assert not [*its.host.roster] and its.met == ["sampler-1"] * 2

    play(scene)


def test_a_heartbeat_that_came_before_a_newer_one_counts_for_nothing() -> None:
    async def scene(its: Scene) -> None:
        its.receive("sampler-1", Role.SAMPLER, seq=5, version=5)
        its.receive("sampler-1", Role.SAMPLER, seq=4, version=4)
        (known,) = [known for _, known in its.host.roster]
        assert known.version == 5 and its.met == ["sampler-1"]

    play(scene)


def released(its: Scene, version: int) -> None:
    """A learner's release, which is the run's newest."""
    learner = its.other("learner", Role.LEARNER)
    said = release(version=version, publisher="learner", released=its.host.now())
    its.host.releases.receive(learner.seal(said, RELEASE_LIMIT))


@pytest.mark.parametrize(
    ("role", "phase", "version", "ends"),
    [
        (Role.SEED, Phase.COMPLETE, 7, True),
        (Role.SEED, Phase.COMPLETE, 6, False),
        (Role.SEED, Phase.COMPLETE, -1, False),
        (Role.SEED, Phase.SERVING, 7, False),
        (Role.LEARNER, Phase.COMPLETE, 7, False),
    ],
)
def test_a_run_that_its_seed_calls_complete_is_left_where_its_last_version_was_heard(
    role: Role, phase: Phase, version: int, ends: bool
) -> None:
    async def scene(its: Scene) -> None:
        if version >= 0:
            released(its, version)
        waits = asyncio.create_task(its.host.changed(60.0))
        await asyncio.sleep(0)
        for seq in (1, 2):
            its.receive("other", role, phase=phase, seq=seq)
        await asyncio.sleep(0.01)
        assert its.host.stop.is_set() == ends and waits.done(), "whoever waits for news has some"
        told = [event.text for event in its.of(events.Noted) if "says that the run is complete" in event.text]
        doubted = (role, phase) == (Role.SEED, Phase.COMPLETE) and not ends
        assert len(told) == doubted and all("other says" in text for text in told)

    play(scene, config=Config(run=Run(stop=Stop(versions=7))))


def test_a_release_that_comes_after_the_seed_s_word_ends_the_run_at_the_next_heartbeat() -> None:
    async def scene(its: Scene) -> None:
        its.receive("seed", Role.SEED, phase=Phase.COMPLETE)
        its.receive("seed", Role.SEED, phase=Phase.LEAVING, seq=2)
        released(its, 7)
        assert not its.host.stop.is_set()
        its.receive("sampler", Role.SAMPLER)
        assert its.host.stop.is_set()

    play(scene, config=Config(run=Run(stop=Stop(versions=7))))


@pytest.mark.parametrize(
    ("accuracies", "ends"),
    [
        ([(240 / 256, 256)], True),
        ([(239 / 256, 256)], False),
        ([(0.925, 512)], False),
        ([(0.925, 1024)], False),
        ([(240 / 256, 0)], True),
        ([(0.94, 64)], False),
        ([(1.0, 8)], True),
        ([(0.97, 256), (0.3, 256)], False),
        ([(0.97, 256), (-1.0, 0)], False),
        ([(0.97, 256), (0.95, 256), (0.3, 256)], True),
        ([], False),
    ],
)
def test_a_run_ends_once_most_evaluators_have_an_interval_above_its_accuracy(
    accuracies: list[tuple[float, int]], ends: bool
) -> None:
    """512 and 1024 are more tasks than the run has."""

    async def scene(its: Scene) -> None:
        for number, (accuracy, tasks) in enumerate(accuracies):
            its.receive(f"evaluator-{number}", Role.EVALUATOR, accuracy=accuracy, judged=tasks)
        its.receive("seed", Role.SEED, phase=Phase.COMPLETE)
        assert its.host.stop.is_set() == ends == its.host.end.is_complete(3)

    play(scene, config=Config(run=Run(stop=Stop(accuracy=0.9))))


def test_an_evaluator_that_rests_keeps_nobody_in_a_run_that_is_complete() -> None:
    async def scene(its: Scene) -> None:
        its.receive("evaluator", Role.EVALUATOR, accuracy=0.95, judged=256)
        its.receive("resting", Role.EVALUATOR, accuracy=0.2, judged=256, phase=Phase.PAUSED)
        assert its.host.end.is_complete(3)

    play(scene, config=Config(run=Run(stop=Stop(accuracy=0.9))))


@pytest.mark.parametrize("observes", [False, True])
def test_who_observes_tells_what_it_heard_and_whether_its_author_is_a_member(observes: bool) -> None:
    async def scene(its: Scene) -> None:
        its.receive("stranger", Role.SAMPLER, member=False)
        its.receive("member", Role.SAMPLER)
        said = [(event.subject, event.invited) for event in its.of(events.Heard)]
        assert said == ([("stranger", False), ("member", True)] if observes else [])

    play(scene, observes=observes)


def faulted(by: Host, text: str = "said") -> events.Event:
    return events.Faulted(at=by.now(), peer=by.ports.me, part=Part.DISK, detail=text)


def broke(by: Host) -> events.Event:
    return events.RoundBroke(at=by.now(), peer=by.ports.me, version=1, reason="gone")


def test_events_are_those_of_whoever_signs_them_in_its_role_and_ones_own_are_not_told_twice() -> None:
    async def scene(its: Scene) -> None:
        learner, sampler = its.other("learner", Role.LEARNER), its.other("sampler", Role.SAMPLER)
        its.hear_events(learner, faulted(learner), broke(learner))
        assert [type(event) for event in its.told] == [events.Faulted, events.RoundBroke]
        its.hear_events(its.host, faulted(its.host))
        with pytest.raises(WireError, match="event Faulted that sampler may not report"):
            its.hear_events(sampler, faulted(sampler, "true"), faulted(learner))
        with pytest.raises(WireError, match="roundbroke: "):
            its.hear_events(sampler, broke(sampler))
        started = events.Started(
            at=sampler.now(), peer=sampler.ports.me, name="s", role=Role.LEARNER, version=0, hardware=""
        )
        with pytest.raises(WireError, match="started: "):
            its.hear_events(sampler, started)
        assert len(its.told) == 3 and its.told[2].detail == "true"

    play(scene)


def audited(by: Host, until: float = 0.0) -> events.Event:
    said = {"group": "g", "sampler": PeerId("cheat"), "finding": "forged", "tokens": 1, "off": 1}
    return events.Audited(at=by.now(), peer=by.ports.me, **said, largest=9.0, until=until)


def test_learners_and_auditors_alone_report_audits_and_learners_alone_suspend() -> None:
    async def scene(its: Scene) -> None:
        learner, auditor, sampler = (
            its.other(role.value, role) for role in (Role.LEARNER, Role.AUDITOR, Role.SAMPLER)
        )
        until = its.host.now() + 60.0
        for event in (audited(learner, until), audited(auditor)):
            its.hear_events(its.other(event.peer, Role.SAMPLER), event)
        assert [event.peer for event in its.of(events.Audited)] == ["learner", "auditor"]
        for sender, event in ((auditor, audited(auditor, until)), (sampler, audited(sampler))):
            with pytest.raises(WireError, match="audited: "):
                its.hear_events(sender, event)
        assert len(its.told) == 2

    play(scene)


def test_what_a_peer_tells_is_cut_to_what_a_frame_takes() -> None:
    async def scene(its: Scene) -> None:
        its.host.emit(events.Noted, level="info", text="x" * 100_000)
        assert 0 < len(its.told[0].text.encode()) <= TEXT_LIMIT

    play(scene)


def test_nothing_is_read_of_whom_the_owner_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(its: Scene) -> None:
        monkeypatch.setattr(its.host.trust, "revoked", lambda peer: "revoked" if peer == "bad" else None)
        taken = list[bytes]()
        for name in ("bad", "good"):
            its.host.take(taken.append, Topic.BEAT, PeerId(name), name.encode())
        assert taken == [b"good"]
        (rejected,) = its.told
        assert (rejected.sender, rejected.kind, rejected.reason) == ("bad", Topic.BEAT, "revoked")

    play(scene)


def test_who_says_again_what_another_one_signed_is_named_and_then_not_read_for_a_while() -> None:
    async def scene(its: Scene) -> None:
        host, signed = its.host, its.other("signer", Role.SAMPLER)
        gossip = its.network.ports("relay", lambda _: 0.0).gossip
        listening = asyncio.create_task(host.listen(Topic.BEAT_SAMPLER, host.presence.receive))
        await asyncio.sleep(0.1)
        for seq in range(int(OFFENCES_BURST) + 5):
            said = signed.seal(beat(role=Role.SAMPLER, at=signed.now(), seq=seq), BEAT_LIMIT)
            await gossip.publish(host.topic(Topic.BEAT_SAMPLER), said)
        await asyncio.sleep(0.5)
        reasons = [event.reason for event in its.of(events.Rejected)]
        assert {event.sender for event in its.told} == {"relay"} and not [*host.roster]
        assert len(reasons) == OFFENCES_BURST + 1, "what comes then is not read"
        assert set(reasons[:-1]) == {"it is signed by signer, which did not publish it"}
        assert reasons[-1].endswith(f"; nothing of it is read for {SUSPENDED:g} s")
        await signed.ports.gossip.publish(host.topic(Topic.BEAT_SAMPLER), said)
        await asyncio.sleep(0.5)
        assert [peer for peer, _ in host.roster] == ["signer"], "the author itself is heard"
        listening.cancel()

    play(scene)


@pytest.mark.parametrize("news", [True, False])
def test_a_frame_of_a_later_key_is_a_reason_to_ask_and_otherwise_refused(
    monkeypatch: pytest.MonkeyPatch, news: bool
) -> None:
    async def scene(its: Scene) -> None:
        host, ahead, asked = its.host, its.other("ahead", Role.SAMPLER), list[tuple[str, int]]()
        more = bytes(32) + bytes([7]) * 32
        assert ahead.frames.keys is not None and ahead.frames.keys.take(more, digest_of(more))

        def heard(peer: PeerId, number: int) -> bool:
            asked.append((peer, number))
            return news

        monkeypatch.setattr(host.revocations, "note_claim", heard)
        host._author = ahead.ports.me
        said = ahead.seal(beat(role=Role.SAMPLER, at=ahead.now()), BEAT_LIMIT)
        for _ in range(2 * int(OFFENCES_BURST)):
            host.take(host.presence.receive, Topic.BEAT, ahead.ports.me, said)
        assert {*asked} == {("ahead", 1)} and not host.gossip_limits.is_suspended(ahead.ports.me)
        assert [event.sender for event in its.told] == ([] if news else ["ahead"] * len(asked))

    play(scene, private=True)


def test_a_list_of_revocations_is_asked_of_members_that_have_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(its: Scene) -> None:
        asked = list[tuple[str, int]]()
        monkeypatch.setattr(its.host.revocations, "note_claim", lambda *claim: asked.append(claim))
        its.receive("stranger", Role.SAMPLER, member=False, revoked=9)
        its.receive("member", Role.SAMPLER, revoked=3)
        its.host.delivered(PeerId("sampler"))
        its.receive("sampler", Role.SAMPLER, member=False, revoked=4)
        assert asked == [("member", 3), ("sampler", 4)]

    play(scene)


def test_a_version_that_a_heartbeat_names_anew_is_looked_for_and_a_member_is_named_as_its_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(its: Scene) -> None:
        found, voted = list[tuple[int, str | None]](), list[int]()
        releases = its.host.releases
        monkeypatch.setattr(releases, "found", lambda version, _, holder: found.append((version, holder)))
        monkeypatch.setattr(releases.agreement, "receive", lambda peer, said: voted.append(said.seq))
        for seq, version in enumerate((1, 1, 2), 1):
            its.receive("member", Role.SAMPLER, seq=seq, version=version)
        its.receive("stranger", Role.SAMPLER, member=False, seq=4, version=2)
        assert found == [(1, "member"), (2, "member"), (2, None)]
        assert voted == [1, 2, 3, 4], "each may have a vote"

    play(scene)


ALL = {Topic.BEAT, Topic.RELEASE}


@pytest.mark.parametrize(
    ("role", "observes", "topics"),
    [
        (Role.SAMPLER, False, ALL | {Topic.ACCUSED}),
        (Role.LEARNER, False, ALL),
        (Role.OBSERVER, True, ALL | {Topic.ACCUSED, Topic.BEAT_SAMPLER, Topic.EVENT}),
    ],
)
def test_a_peer_listens_to_what_its_role_needs_and_an_observer_to_all(
    role: Role, observes: bool, topics: set[Topic]
) -> None:
    async def scene(its: Scene) -> None:
        heard = list[Topic]()

        async def listen(name: Topic, take: object) -> None:
            heard.append(name)
            await asyncio.Event().wait()

        its.host.listen = listen  # type: ignore[method-assign]

        async def role_ends() -> None:
            await asyncio.sleep(0.1)

        await its.host.run(role_ends)
        assert sorted(heard) == sorted(topics)

    play(scene, role, observes=observes)


def test_what_passed_is_told_at_the_start_in_equal_steps_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(its: Scene) -> None:
        host, drain, told = its.host, its.host.traffic.drain, list[float]()
        began, step = host.now(), host.config.run.pace.beat * EVERY_BEATS

        def drained(now: float, *more: Any) -> Any:
            told.append(now - began)
            return drain(now, *more)

        monkeypatch.setattr(host.traffic, "drain", drained)

        async def role() -> None:
            await asyncio.sleep(2.5 * step)

        await host.run(role)
        assert told == pytest.approx([0.0, step, 2 * step, 2.5 * step])
        assert len(its.of(events.Transferred)) == 3, "nothing passed before the start"

    play(scene)


def test_a_goodbye_reaches_the_others_before_a_peer_is_gone() -> None:
    async def scene(its: Scene) -> None:
        host, leaving = its.host, its.other("leaving", Role.SAMPLER)
        heard = [
            asyncio.create_task(host.listen(Topic.BEAT_SAMPLER, host.presence.receive)),
            asyncio.create_task(host.listen(Topic.EVENT, host.bundles.receive)),
        ]

        async def role() -> None:
            await asyncio.sleep(0.2)
            leaving.beat_now()
            await asyncio.sleep(2 * leaving.config.run.pace.beat)
            assert [peer for peer, _ in host.roster] == ["leaving"]

        await leaving.run(role)
        await asyncio.sleep(0.2)
        assert not [*host.roster]
        assert [event.reason for event in its.of(events.Left)] == ["ended"]
        for each in heard:
            each.cancel()

    play(scene)


def test_a_peer_is_lost_once_its_silence_is_longer_than_patience() -> None:
    async def scene(its: Scene) -> None:
        patience = its.host.config.run.pace.patience
        expiring = asyncio.create_task(its.host.presence.run())
        await asyncio.sleep(1.0)
        its.receive("sampler-1", Role.SAMPLER)
        await asyncio.sleep(patience - 0.1)
        assert not its.of(events.Lost)
        await asyncio.sleep(0.1 + 2 * LATER)
        (lost,) = its.of(events.Lost)
        assert lost.subject == "sampler-1" and patience <= lost.silent <= patience + 2 * LATER
        await asyncio.sleep(patience)
        assert len(its.of(events.Lost)) == 1 and not [*its.host.roster]
        expiring.cancel()

    play(scene)


def test_a_peer_says_that_it_begins_what_passed_and_why_it_leaves() -> None:
    async def scene(its: Scene) -> None:
        async def role() -> None:
            await its.host.ports.clock.sleep(1.0)

        async def leaves() -> None:
            waits = asyncio.create_task(its.host.changed(60.0))
            await asyncio.sleep(0.01)
            its.host.leave()
            await asyncio.sleep(0.01)
            assert waits.done(), "whoever waits for news hears of it"

        await its.host.run(role)
        assert [event.reason for event in its.of(events.Left)] == ["ended"]
        assert its.host.status.phase is Phase.LEAVING
        assert [event.role for event in its.of(events.Started)] == [Role.SAMPLER]
        await its.host.run(leaves)
        assert [event.reason for event in its.of(events.Left)] == ["ended", "asked to stop"]
        its.host.identity.replaced = True
        await its.host.run(leaves)
        assert len(its.of(events.Left)) == 2, "another process of this peer goes on"

    play(scene)
