"""Learners that accuse: the others replay what they are shown, and act by that alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from accused_swarms import CHEAT, LIAR, Slander
from audited_swarms import HONEST, OtherText, of, played
from role_swarms import EPOCH
from still_host import membership, still_host

from peers.audits import replayer
from peers.audits.accusations import AccusationExchange
from peers.audits.evidence import SUSPENDED, Unsigned, read_suspended
from peers.audits.replayer import Replayer
from peers.audits.shown_groups import ShownGroups, shown
from peers.learner.learner import LearnerPeer
from peers.runtime.host import Host
from peers.runtime.watching.suspensions import REMEMBERED, Accusation
from peers.sampler.sampler import Sampler
from swarm.core import revocation
from swarm.core.audits import auditing
from swarm.core.audits.accusations import PER_HOUR, WRONG, Claim
from swarm.core.suspensions import HOUR, Suspension
from swarm.events import Audited, Event, Judged, Rejected, SetAside
from swarm.frames.run_types import Pardon
from swarm.frames.wire import WireError
from swarm.learn.files.weights import from_bytes
from swarm.limits import RELEASE_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Service, Topic
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault
from swarm.storage.blocks import digest_of
from swarm.types import Digest, PeerId, Verdict

APART = Fault(at=0.0, fault="partition", between=((CHEAT,), ("learner-1", LIAR)))


class Accused(NamedTuple):
    told: list[Event]
    disks: Path


@pytest.fixture(scope="module")
def accused(tmp_path_factory: pytest.TempPathFactory) -> Accused:
    """A cheat whose groups reach learner-0 alone, and a learner that accuses everybody."""
    disks = tmp_path_factory.mktemp("disks")
    learners = (None, None, lambda: Slander(from_bytes))
    return Accused(played(0.5, [OtherText], APART, learners=learners, disks=disks, share=1.0), disks)


def test_each_time_lasts_twice_as_long_at_every_learner_that_found_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auditing, "HOUR", 3.0)
    told = played(0.4, [OtherText], APART, learners=(None, None), share=1.0)
    for learner in ("learner-0", "learner-1"):
        times = [event for event in of(told, Audited) if event.peer == learner and event.until > 0]
        assert [event.strikes for event in times][:2] == [1, 2], learner
        assert [round(event.until - event.at, 3) for event in times] == [
            3.0 * 2**n for n in range(len(times))
        ]


def test_a_pardon_by_the_owner_reaches_all_learners_and_counts_from_then_on() -> None:
    at = 8.0

    def seed(host: Host) -> None:
        asyncio.get_running_loop().call_at(at, pardon, host)

    def pardon(host: Host) -> None:
        both = [Pardon(at=int(host.now()), peer=PeerId(peer)) for peer in (CHEAT, "sampler-9")]
        host.revocations.take(revocation.sealed("roles", 1, (), lambda _: b"", pardons=both))

    told = played(0.3, [OtherText], APART, learners=(None, None), seed=seed, share=1.0)
    judged = [event for event in of(told, Judged) if event.sampler == CHEAT]
    before, after = (
        {event.verdict for event in judged if since < event.at - EPOCH < until}
        for since, until in ((at - 1.0, at), (at, at + 10.0))
    )
    assert before == {Verdict.UNVERIFIED} and Verdict.ADMIT in after
    for learner in ("learner-0", "learner-1"):
        times = [event for event in of(told, Audited) if event.peer == learner and event.until > 0]
        assert [event.strikes for event in times] == [1, 1], learner  # it cheats again
        assert times[0].at < EPOCH + at < times[1].at


def suspended(told: list[Event], learner: str) -> set[str]:
    return {event.sampler for event in of(told, Audited) if event.peer == learner and event.until > 0}


def test_a_learner_suspends_whom_another_one_found_though_no_group_of_it_came_here(
    accused: Accused,
) -> None:
    told = accused.told
    assert CHEAT not in {event.sampler for event in of(told, Judged) if event.peer == "learner-1"}
    first, second = (
        next(event for event in of(told, Audited) if event.peer == learner and event.until > 0)
        for learner in ("learner-0", "learner-1")
    )
    assert (first.sampler, second.sampler, second.group) == (CHEAT, CHEAT, first.group)
    assert second.until - second.at == first.until - first.at and 0 < second.at - first.at < 5
    assert second.why.endswith("; learner-0 found it first")


def test_everybody_else_hears_who_is_suspended_by_whom_and_what_is_the_evidence(accused: Accused) -> None:
    first = next(event for event in of(accused.told, Audited) if event.until > 0 and event.sampler == CHEAT)
    heard = [one for one in of(accused.told, SetAside) if (one.by, one.sampler) == (first.peer, CHEAT)]
    others = {f"sampler-{number}" for number in range(1 + HONEST)} | {"learner-1"}
    assert {one.peer for one in heard} >= others and {one.until for one in heard} == {first.until}
    assert {one.why for one in heard} == {first.why}
    for peer in others:
        assert len([one for one in heard if (one.peer, one.group) == (peer, first.group)]) == 1


def test_a_sampler_that_is_let_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "HOUR", 3.0)
    told = played(0.3, [OtherText], share=1.0)
    mine = [one for one in of(told, SetAside) if one.peer == CHEAT]
    assert {one.sampler for one in mine} == {CHEAT} and {one.by for one in mine} == {"learner-0"}
    times = [one.until for one in mine if one.until > 0]
    ends = [one.at for one in mine if not one.until]
    assert len(ends) >= 1 and times[0] < ends[0] < times[-1]


def test_who_was_suspended_by_another_s_word_stays_so_on_the_disk_with_evidence(accused: Accused) -> None:
    (file,) = (path for path in accused.disks.rglob(SUSPENDED) if "learner-1" in str(path))
    assert set(read_suspended(file.parent)) == {CHEAT} and len([*file.parent.glob("*.evidence")]) == 1


def test_a_learner_that_lies_is_named_and_suspends_nobody_but_for_itself(accused: Accused) -> None:
    told = accused.told
    assert len(suspended(told, LIAR)) == HONEST + 1
    assert suspended(told, "learner-0") == suspended(told, "learner-1") == {CHEAT}
    named = [event for event in of(told, Rejected) if event.kind == Service.ACCUSED]
    assert {event.sender for event in named} == {LIAR}
    for learner in ("learner-0", "learner-1"):
        reasons = [event.reason for event in named if event.peer == learner]
        assert len(reasons) == WRONG and "honest by a replay here" in reasons[0]
        assert "accusations are suspended for 60 min" in reasons[-1] and "suspended" not in reasons[-2]
    honest = [event for event in of(told, Judged) if event.peer != LIAR and event.sampler != CHEAT]
    assert Verdict.UNVERIFIED not in {event.verdict for event in honest}


# --- who keeps a second verifier from a cheat ---------------------------------------------------------------


def tip_off(monkeypatch: pytest.MonkeyPatch, true_claim: bool) -> None:
    """LIAR works for CHEAT: it accuses each of its groups before that comes to anybody, of a version that
    nobody has or, with `true_claim`, of its own, and shows something else."""
    hosts: dict[str, Host] = {}
    learner, sampler = LearnerPeer.__init__, Sampler.__init__

    def of_learner(self: LearnerPeer, host: Host, *rest: Any) -> None:
        hosts[host.who.name] = host
        learner(self, host, *rest)

    def of_sampler(self: Sampler, host: Host, *rest: Any) -> None:
        sampler(self, host, *rest)
        if host.who.name != CHEAT:
            return
        send = host.ports.mail.send

        async def accused_first(
            peer: PeerId, service: str, data: bytes, *more: Any, **settings: Any
        ) -> bytes:
            if service == Service.GROUPS:
                release = self._policy[0]
                version = (release.version, release.weights) if true_claim else (1, Digest("f" * 64))
                said = Accusation(PeerId(CHEAT), digest_of(data), *version)
                liar = hosts[LIAR]
                await liar.ports.gossip.publish(liar.topic(Topic.ACCUSED), liar.seal(said, RELEASE_LIMIT))
                await host.ports.clock.sleep(0.3)
            return await send(peer, service, data, *more, **settings)

        monkeypatch.setattr(host.ports.mail, "send", accused_first)

    show = ShownGroups._show

    async def something_else(self: ShownGroups, sender: PeerId, question: bytes) -> bytes:
        return b"" if self._host.ports.me == LIAR else await show(self, sender, question)

    monkeypatch.setattr(ShownGroups, "_show", something_else)
    monkeypatch.setattr(LearnerPeer, "__init__", of_learner)
    monkeypatch.setattr(Sampler, "__init__", of_sampler)


@pytest.mark.parametrize("true_claim", [False, True])
def test_who_accuses_a_cheat_first_without_evidence_keeps_no_second_verifier_from_it(
    monkeypatch: pytest.MonkeyPatch, true_claim: bool
) -> None:
    tip_off(monkeypatch, true_claim)
    told = played(0.6, [OtherText], APART, learners=(None,) * 3, share=1.0)
    assert {*suspended(told, "learner-0")} == {*suspended(told, "learner-1")} == {CHEAT}


def test_a_group_that_is_not_the_accused_one_is_no_evidence() -> None:
    async def another(sender: PeerId, question: bytes) -> bytes:
        return b"another group"

    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host, accuser = (still_host(network, name, Role.LEARNER) for name in ("learner", "accuser"))
            await accuser.ports.mail.serve(Service.ACCUSED, another)
            inbox = cast(Any, SimpleNamespace(decoder=SimpleNamespace(vocabulary=16)))
            claim = Claim(PeerId(CHEAT), digest_of(b"the accused group"), 1, Digest("f" * 64))
            with pytest.raises(Unsigned, match="another group than"):
                await shown(host, inbox, PeerId("accuser"), claim)

    run(scene())


def test_an_accusation_is_looked_at_when_it_is_said_again_and_its_version_is_here_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = Replayer.holds

    def holds(self: Replayer, version: int, weights: Digest) -> bool:
        early = self._host.ports.me == "learner-1" and asyncio.get_running_loop().time() < 10.0
        return not early and true(self, version, weights)

    monkeypatch.setattr(Replayer, "holds", holds)
    monkeypatch.setattr(replayer, "VERSIONS", 64)
    told = played(0.5, [OtherText], APART, learners=(None,) * 2, share=1.0)
    (second,) = (event for event in of(told, Audited) if event.peer == "learner-1" and event.until > 0)
    assert second.sampler == CHEAT and 10 < second.at - EPOCH < 30


# --- what costs an accuser nothing --------------------------------------------------------------------------


class Replays:
    """What a learner's auditor says of a sampler that is suspended."""

    def __init__(self, suspension: Suspension | None, held: bool) -> None:
        self._suspension, self._held = suspension, held

    def suspended(self, sampler: PeerId) -> Suspension | None:
        return self._suspension

    def holds(self, version: int, weights: Digest) -> bool:
        return self._held


@pytest.mark.parametrize(
    ("until", "held", "looked_at"),
    [(None, True, True), (None, False, False), (HOUR, True, False), (HOUR, False, False)],
)
def test_an_accusation_that_cannot_tell_anything_or_be_replayed_is_no_case(
    until: float | None, held: bool, looked_at: bool
) -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host, other = (
                still_host(network, name, Role.LEARNER, membership=membership(name, Role.LEARNER))
                for name in ("learner", "other")
            )
            suspension = None if until is None else Suspension(host.now() + until)
            replays = cast(Any, Replays(suspension, held))
            exchange = AccusationExchange(host, cast(Any, None), replays, cast(Any, None))
            fetched = list[Any]()
            exchange._accuser.tasks = cast(Any, SimpleNamespace(create_task=fetched.append))
            for number in range(PER_HOUR + 1):
                weights = Digest("f" * 64)
                said = Accusation(PeerId(CHEAT), Digest(f"{number:064x}"), version=1, weights=weights)
                host.take(exchange.receive, Topic.ACCUSED, PeerId("other"), other.seal(said, RELEASE_LIMIT))
            assert len(fetched) == (PER_HOUR if looked_at else 0)
            for each in fetched:
                each.close()
            claim = Claim(PeerId("honest"), Digest("a" * 64), 1, Digest("f" * 64))
            has_place = exchange._cases.record(PeerId("other"), claim, host.now()) is not None
            assert has_place is not looked_at

    run(scene())


# --- what a peer hears of it --------------------------------------------------------------------------------

BY, OTHER = PeerId("learner"), PeerId("other")


def news(body: Callable[[Host, MemoryNetwork], Awaitable[None]], **who: Any) -> list[SetAside]:
    """What a sampler tells in a scene."""
    told = list[Event]()

    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "mine", Role.SAMPLER, **who)
            host.bus.add(told.append)
            await body(host, network)

    run(scene())
    return [event for event in told if isinstance(event, SetAside)]


def test_who_is_suspended_is_told_once_and_again_for_longer_or_with_the_first_evidence() -> None:
    async def body(host: Host, _: MemoryNetwork) -> None:
        now, sampler, tell = host.now(), PeerId(CHEAT), host.suspensions.record
        tell(BY, sampler, now, "it is over")
        for _ in range(2):
            tell(BY, sampler, now + 60.0, "first")
            await host.ports.clock.sleep(1.0)
        for _ in range(2):
            tell(BY, sampler, now + 60.0, "evidence", "group-1")
        tell(BY, sampler, now + 60.0, "without it")
        tell(BY, sampler, now + 30.0, "for less", "group-2")
        tell(BY, sampler, now + 90.0, "for longer")
        tell(OTHER, sampler, now + 60.0, "another learner")
        tell(BY, PeerId("sampler-9"), now + 60.0, "another sampler")

    told = news(body)
    assert [event.why for event in told] == [
        "first",
        "evidence",
        "for longer",
        "another learner",
        "another sampler",
    ]
    assert [event.group for event in told] == ["", "group-1", "", "", ""]
    assert news(body, observes=True) == [], "who observes has the learners' own events"


def test_a_group_that_is_admitted_ends_it_where_it_was_sent_after_that_was_heard() -> None:
    async def body(host: Host, _: MemoryNetwork) -> None:
        sampler, news, before = PeerId(CHEAT), host.suspensions, host.now()
        await host.ports.clock.sleep(1.0)
        news.back(BY, sampler, host.now())
        news.record(BY, sampler, host.now() + 60.0, "forged")
        news.back(BY, sampler, before)
        news.back(OTHER, sampler, host.now() + 1.0)
        news.record(BY, sampler, host.now() + 60.0, "still")
        for _ in range(2):
            news.back(BY, sampler, host.now() + 1.0)
        news.record(BY, sampler, host.now() + 60.0, "again")

    told = news(body)
    assert [event.why for event in told] == ["forged", "", "again"]
    assert (told[1].by, told[1].sampler, told[1].until) == (BY, CHEAT, 0.0)


def test_the_word_of_a_learner_alone_suspends_and_that_of_a_stranger_is_refused() -> None:
    async def body(host: Host, network: MemoryNetwork) -> None:
        until = host.now() + 60.0
        said = Accusation(PeerId(CHEAT), Digest("f" * 64), 1, Digest("e" * 64), until, "group-1", "forged")
        learner, auditor = (
            still_host(network, name, role, membership=membership(name, role))
            for name, role in (("learner", Role.LEARNER), ("auditor", Role.AUDITOR))
        )
        host.suspensions.receive(auditor.seal(said, RELEASE_LIMIT))
        host.suspensions.receive(learner.seal(said, RELEASE_LIMIT))
        stranger = still_host(network, "stranger", Role.SAMPLER)
        with pytest.raises(WireError, match="accusation by stranger"):
            host.suspensions.receive(stranger.seal(said, RELEASE_LIMIT))

    (event,) = news(body)
    assert (event.by, event.sampler, event.why, event.group) == (BY, CHEAT, "forged", "group-1")


def test_of_a_crowd_that_is_suspended_the_last_ones_are_remembered() -> None:
    async def body(host: Host, _: MemoryNetwork) -> None:
        until = host.now() + 60.0
        for number in (*range(REMEMBERED + 1), REMEMBERED, 1, 0):
            host.suspensions.record(BY, PeerId(f"sampler-{number}"), until, "forged")

    assert [event.sampler for event in news(body)[REMEMBERED:]] == [f"sampler-{REMEMBERED}", "sampler-0"]
