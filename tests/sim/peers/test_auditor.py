"""Who is suspended by a learner: what is on its disk, and what pardons change of it."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from nouns import beat, group, release
from still_host import still_host

from peers import cli
from peers.audits import auditor as module
from peers.audits.auditor import Auditor
from peers.audits.evidence import keep_suspended, read_suspended
from peers.audits.replay_queue import WAITING, QueuedReplay
from peers.audits.shown_groups import AccusedGroup
from peers.intake.inbox import LearnerInbox
from swarm.core import revocation
from swarm.core.audits.accusations import Claim
from swarm.core.audits.auditing import Weighed
from swarm.core.intake.claimed_logprobs import UNTRUE
from swarm.core.suspensions import HOUR, Suspension
from swarm.events import Rejected
from swarm.frames.run_types import Pardon
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Config, DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import digest_of
from swarm.storage.weights import Weights
from swarm.tasks.toy import Toy
from swarm.types import Group, PeerId

ADA, BOB = PeerId("12D3KooWAda"), PeerId("12D3KooWBob")
WHY = Suspension(until=1e12, strikes=3, why="two tokens are off", since=1.0)
FORGED = Weighed(tokens=64, deciding=60, off=9, largest=9.0, drift=0.0, claimed=0.0)


@asynccontextmanager
async def auditor_of(folder: Path, *suspended: PeerId) -> AsyncIterator[Auditor]:
    """A learner's auditor whose earlier life suspended these."""
    async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
        host = still_host(network, "learner-0", Role.LEARNER, Config())
        decoder: Any = SimpleNamespace(vocabulary=8, decode_batch=list)
        inbox = LearnerInbox(host, Toy(1, {}), decoder, lambda: 0, lambda: 1)
        replay: Callable[[], Any] = lambda: None  # noqa: E731
        keep_suspended(evidence(folder), dict.fromkeys(suspended, WHY))
        yield Auditor(host, inbox, replay, evidence(folder))


def evidence(folder: Path) -> Path:
    return folder / "peers" / "learner-0" / "evidence"


def pardon(folder: Path, peer: PeerId) -> None:
    assert cli.main(["pardon", peer, "--folder", str(folder)]) == 0


def caught(auditor: Auditor, sampler: PeerId) -> Suspension:
    _, suspended = auditor.audits.take(sampler, FORGED, auditor.host.now())
    assert suspended is not None
    return suspended


def tried(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(body())


def test_a_pardon_of_who_sends_nothing_is_not_taken_back_by_the_next_one_that_is_suspended(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path, ADA) as auditor:
            pardon(tmp_path, ADA)
            caught(auditor, BOB)
            await auditor._write_suspended()
            assert {*read_suspended(evidence(tmp_path))} == {BOB} and auditor.audits.suspensions.strikes(
                ADA
            ) == 0
            assert auditor.suspended(ADA) is None and auditor.suspended(BOB) is not None

    tried(body)


def test_a_pardon_lets_nobody_else_back_who_is_not_in_the_file_yet(tmp_path: Path) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path, ADA) as auditor:
            caught(auditor, BOB)
            pardon(tmp_path, ADA)
            assert auditor.suspended(BOB) is not None and auditor.suspended(ADA) is None
            assert auditor.audits.suspensions.strikes(BOB) == 1
            await auditor._write_suspended()
            assert {*read_suspended(evidence(tmp_path))} == {BOB}

    tried(body)


def test_a_pardon_of_one_brings_back_nothing_older_of_another(tmp_path: Path) -> None:
    async def body() -> None:
        once = WHY._replace(until=2.0, strikes=1)
        async with auditor_of(tmp_path, ADA) as auditor:
            keep_suspended(evidence(tmp_path), {ADA: WHY, BOB: once})
            auditor._look()
            assert caught(auditor, BOB).strikes == 2
            pardon(tmp_path, ADA)
            assert auditor.suspended(BOB) is not None and auditor.audits.suspensions.strikes(BOB) == 2

    tried(body)


def test_a_file_that_is_gone_pardons_nobody(tmp_path: Path) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path, ADA) as auditor:
            (evidence(tmp_path) / "suspended").unlink()
            caught(auditor, BOB)
            await auditor._write_suspended()
            assert {*read_suspended(evidence(tmp_path))} == {ADA, BOB}

    tried(body)


def drawn(one: Group) -> QueuedReplay:
    data = b"the weights"
    return QueuedReplay(one, b"frame", "", Weights.of(data, one.version))


@pytest.mark.parametrize("known", [True, False])
def test_who_is_suspended_is_on_the_disk_though_the_evidence_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            named = release() if known else None
            monkeypatch.setattr(auditor.host.releases, "named", lambda *_: named)
            await auditor._keep(drawn(group(sampler=ADA)), caught(auditor, ADA))
            assert {*read_suspended(evidence(tmp_path))} == {ADA}
            assert auditor.host.disk.refuses == known

    monkeypatch.setattr(module, "keep", no_room)
    tried(body)


def test_what_the_disk_did_not_take_is_written_with_the_next_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            caught(auditor, ADA)
            with monkeypatch.context() as full:
                full.setattr(module, "update_suspended", no_room)
                await auditor._write_suspended()
            assert auditor.host.disk.refuses and auditor._unwritten
            await auditor._write_suspended()
            assert {*read_suspended(evidence(tmp_path))} == {ADA} and not auditor.host.disk.refuses

    tried(body)


def test_a_group_that_is_shown_and_finds_no_room_is_no_opinion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            one, accuser, now = drawn(group(sampler=ADA)), PeerId("learner-1"), auditor.host.now()
            claim = Claim(ADA, digest_of(one.frame), one.group.version, one.group.weights)
            cases = auditor._accusations._cases
            monkeypatch.setattr(auditor._replayer, "hold", lambda *_: one.weights)
            assert cases.record(accuser, claim, now) is not None
            auditor.enqueue(AccusedGroup(accuser, claim, one.group, one.frame, one.prompt))
            for number in range(WAITING):
                auditor._append(drawn(group(number, sampler=PeerId(f"name-{number}"))))
            again = cases.record(accuser, claim, now + 20.0)  # it is said again
            assert again is not None and again.opinion is None and not again.asking

    tried(body)


def owner_pardons(auditor: Auditor, *pardons: Pardon) -> None:
    revocations = auditor.host.trust.revocations
    revocations.take(revocation.sealed("swarm", revocations.number + 1, (), lambda _: b"", pardons=pardons))


def differ(auditor: Auditor, seconds: float) -> None:
    """My clock is ahead of all others'."""
    host = auditor.host
    for seq in (1, 2):  # one heartbeat of long ago may be a ghost's
        for name in ("learner-1", "learner-2"):
            host.roster.receive(PeerId(name), beat(seq=seq, at=host.now() - seconds), host.now())
    assert len(host.roster) == 2


@pytest.mark.parametrize("ahead", [50.0, 7200.0])
def test_the_owner_s_pardon_counts_where_a_learner_s_clock_is_ahead(tmp_path: Path, ahead: float) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            differ(auditor, ahead)
            caught(auditor, ADA)
            given = Pardon(at=math.ceil(auditor.host.now() - ahead + 1.0), peer=ADA)
            owner_pardons(auditor, given)
            assert auditor.suspended(ADA) is None and auditor.audits.suspensions.strikes(ADA) == 0

    tried(body)


def test_a_pardon_is_obeyed_once_and_no_later_list_forgets_what_came_after_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            given = Pardon(at=math.ceil(auditor.host.now()), peer=ADA)
            owner_pardons(auditor, given)
            assert auditor.suspended(ADA) is None
            caught(auditor, ADA)
            owner_pardons(auditor, given, Pardon(at=given.at, peer=BOB))
            assert auditor.suspended(ADA) is not None
            owner_pardons(auditor, Pardon(at=given.at + 1, peer=ADA))
            assert auditor.suspended(ADA) is None

    tried(body)


def test_a_suspension_for_claims_is_no_other_one_it_is_on_the_disk_doubles_and_is_pardoned(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            host, told = auditor.host, list[Any]()
            host.bus.add(told.append)
            for sampler in (ADA, ADA, BOB):
                auditor.suspend(sampler, UNTRUE)
            assert [event.sender for event in told if type(event) is Rejected] == [ADA, BOB]
            await auditor._write_suspended()
            assert {*read_suspended(evidence(tmp_path))} == {ADA, BOB}
            pardon(tmp_path, BOB)
            assert auditor.suspended(BOB) is None and auditor.suspended(ADA) is not None
            await host.ports.clock.sleep(HOUR + 1.0)
            assert auditor.suspended(ADA) is None
            auditor.suspend(ADA, UNTRUE)
            again = auditor.suspended(ADA)
            assert again is not None and again.until - host.now() == 2 * HOUR
            owner_pardons(auditor, Pardon(at=math.ceil(host.now()), peer=ADA))
            assert auditor.suspended(ADA) is None

    tried(body)


def test_who_was_suspended_long_after_the_pardon_stays_so_when_the_learner_starts_again(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            now = auditor.host.now()
            keep_suspended(evidence(tmp_path), {ADA: WHY._replace(since=now), BOB: WHY._replace(since=now)})
            auditor._look()
            owner_pardons(
                auditor, Pardon(at=int(now - 120.0), peer=ADA), Pardon(at=int(now + 120.0), peer=BOB)
            )
            assert auditor.suspended(ADA) is not None and auditor.suspended(BOB) is None

    tried(body)


def test_groups_of_versions_before_a_pardon_do_not_count_where_the_clock_is_hours_ahead(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            differ(auditor, 7200.0)
            there = auditor.host.now() - 7200.0
            made = release(publisher=PeerId("learner-1"), released=there - 10.0)
            auditor.host.releases.candidates.receive(made)
            owner_pardons(auditor, Pardon(at=math.ceil(there), peer=ADA))
            one = group(sampler=ADA, version=made.version, weights=made.weights)
            assert auditor._is_pardoned(one)

    tried(body)
