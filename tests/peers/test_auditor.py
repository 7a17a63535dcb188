"""Who is set aside by a learner: what is on its disk, and what pardons change of it."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from nouns import group, release
from still_host import still_host

from peers import cli
from peers.roles import auditor as module
from peers.roles.auditor import Auditor
from peers.roles.evidence import keep_aside, read_aside
from peers.roles.learner_inbox import LearnerInbox
from peers.roles.replay_queue import Drawn
from swarm.config import Config, DelayLaw
from swarm.core.auditing import Consequence, Weighed
from swarm.net.in_memory import MemoryNetwork
from swarm.protocol import Role
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.tasks.toy import Toy
from swarm.types import Digest, Group, PeerId
from swarm.weights import Weights

ADA, BOB = PeerId("12D3KooWAda"), PeerId("12D3KooWBob")
WHY = Consequence(until=1e12, strikes=3, why="two tokens are off", since=1.0)
FORGED = Weighed(tokens=64, deciding=60, off=9, largest=9.0, drift=0.0, claimed=0.0)


@asynccontextmanager
async def auditor_of(folder: Path, *aside: PeerId) -> AsyncIterator[Auditor]:
    """A learner's auditor whose earlier life set these aside."""
    async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
        host = still_host(network, "learner-0", Role.LEARNER, Config())
        decoder: Any = SimpleNamespace(vocabulary=8, decode_batch=list)
        inbox = LearnerInbox(host, Toy(1, {}), decoder, lambda: 0, lambda: 1)
        replay: Callable[[], Any] = lambda: None  # noqa: E731
        keep_aside(evidence(folder), dict.fromkeys(aside, WHY))
        yield Auditor(host, inbox, replay, evidence(folder))


def evidence(folder: Path) -> Path:
    return folder / "peers" / "learner-0" / "evidence"


def pardon(folder: Path, peer: PeerId) -> None:
    assert cli.main(["pardon", peer, "--folder", str(folder)]) == 0


def caught(auditor: Auditor, sampler: PeerId) -> Consequence:
    _, aside = auditor.audits.take(sampler, FORGED, auditor.host.now())
    assert aside is not None
    return aside


def tried(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(body())


def test_a_pardon_of_who_sends_nothing_is_not_taken_back_by_the_next_one_that_is_set_aside(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path, ADA) as auditor:
            pardon(tmp_path, ADA)
            caught(auditor, BOB)
            await auditor._write_aside()
            assert {*read_aside(evidence(tmp_path))} == {BOB} and auditor.audits.strikes(ADA) == 0
            assert auditor.aside(ADA) is None and auditor.aside(BOB) is not None

    tried(body)


def test_a_pardon_lets_nobody_else_back_who_is_not_in_the_file_yet(tmp_path: Path) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path, ADA) as auditor:
            caught(auditor, BOB)
            pardon(tmp_path, ADA)
            assert auditor.aside(BOB) is not None and auditor.aside(ADA) is None
            assert auditor.audits.strikes(BOB) == 1
            await auditor._write_aside()
            assert {*read_aside(evidence(tmp_path))} == {BOB}

    tried(body)


def test_a_pardon_of_one_brings_back_nothing_older_of_another(tmp_path: Path) -> None:
    async def body() -> None:
        once = WHY._replace(until=2.0, strikes=1)
        async with auditor_of(tmp_path, ADA) as auditor:
            keep_aside(evidence(tmp_path), {ADA: WHY, BOB: once})
            auditor._look()
            assert caught(auditor, BOB).strikes == 2
            pardon(tmp_path, ADA)
            assert auditor.aside(BOB) is not None and auditor.audits.strikes(BOB) == 2

    tried(body)


def test_a_file_that_is_gone_pardons_nobody(tmp_path: Path) -> None:
    async def body() -> None:
        async with auditor_of(tmp_path, ADA) as auditor:
            (evidence(tmp_path) / "aside").unlink()
            caught(auditor, BOB)
            await auditor._write_aside()
            assert {*read_aside(evidence(tmp_path))} == {ADA, BOB}

    tried(body)


def drawn(one: Group) -> Drawn:
    data = b"the weights"
    return Drawn(one, b"frame", Digest("0" * 64), "", Weights.of(data, one.version))


@pytest.mark.parametrize("known", [True, False])
def test_who_is_set_aside_is_on_the_disk_though_the_evidence_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def body() -> None:
        async with auditor_of(tmp_path) as auditor:
            named = release() if known else None
            monkeypatch.setattr(auditor.host.releases, "named", lambda *_: named)
            await auditor._keep(drawn(group(sampler=ADA)), caught(auditor, ADA))
            assert {*read_aside(evidence(tmp_path))} == {ADA}
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
                full.setattr(module, "update_aside", no_room)
                await auditor._write_aside()
            assert auditor.host.disk.refuses and auditor._unwritten
            await auditor._write_aside()
            assert {*read_aside(evidence(tmp_path))} == {ADA} and not auditor.host.disk.refuses

    tried(body)
