"""Where a peer stands: its folder with key and journal, its node in the network, and the averager
beside it.

    PeerFolder --place_of--> Place (folder, keyring, bus)
    Place, run --node_of--> Node            Place, Node --averager_of--> HiveAverager

Invariant: what is opened here is closed when the peer leaves, in reverse. Not handled here: what a peer does
there (peers.build.assembly).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from peers.build.run_folder import RunFolder
from peers.errors import CannotHere
from peers.runtime.peer_folder import PeerFolder
from swarm import events
from swarm.config import Listen
from swarm.config_loading import from_run_dict
from swarm.durable import write_durably
from swarm.identity import Keyring, open_key
from swarm.journal import Journal
from swarm.net import torch_free
from swarm.net.ports import NetError, Unreachable
from swarm.protocol import Part
from swarm.types import Digest

if TYPE_CHECKING:
    from swarm.net.averager import HiveAverager
    from swarm.net.hive import Node

HIGHEST_PORT = 65535


GOODBYE = 10.0
"""Seconds for each part to end: a forked process that hangs is killed by then."""


@dataclass
class Place:
    """A peer's folder of a run folder, and its journal."""

    folder: Path
    keyring: Keyring
    bus: events.Bus

    def keep(self, path: Path, text: str, otherwise: str) -> None:
        """Write a file that makes a later start easier; a full disk costs that file, and not the peer."""
        try:
            write_durably(path, text.encode())
        except OSError as error:
            self.report(Part.DISK, f"{path.name} is not on the disk ({error.strerror}): {otherwise}", None)

    def report(self, part: str, detail: str, seconds: float | None) -> None:
        """Faults and recoveries of the node's and the averager's processes, as events."""
        at, me = time.time(), self.keyring.me
        if seconds is None:
            self.bus.emit(events.Faulted(at=at, peer=me, part=part, detail=events.cut(detail)))
        else:
            self.bus.emit(events.Recovered(at=at, peer=me, part=part, seconds=round(seconds, 2)))


@contextlib.contextmanager
def place_of(peer_folder: PeerFolder) -> Iterator[Place]:
    with peer_folder:
        journal = Journal(peer_folder.path / "journal.jsonl")
        bus = events.Bus()
        bus.add(journal)
        try:
            yield Place(peer_folder.path, open_key(peer_folder.path / "key"), bus)
        finally:
            journal.close()
            if journal.lost:
                print(
                    f"{journal.lost} events are not in {journal.path}: the disk took no more", file=sys.stderr
                )


@asynccontextmanager
async def node_of(
    place: Place, run: Digest, listen: Listen, bootstrap: Sequence[str], light: bool = False
) -> AsyncIterator[Node]:
    """A running node under supervision; a `light` one is without torch."""
    if light:
        torch_free.enter()
    else:
        one_thread()
    from swarm.net.hive import Node

    listen = kept_port(listen, place.folder / "port")
    try:
        node = await Node.start(
            keyring=place.keyring,
            key_path=place.folder / "key",
            run=run,
            listen=listen,
            bootstrap=bootstrap,
            report=place.report,
        )
    except Unreachable:
        raise
    except NetError as error:  # a port, an address, a clock: this machine's
        raise CannotHere(str(error)) from error
    if not listen.dial_only:
        place.keep(place.folder / "port", str(node.port), "it takes another port when it is started again")
    supervision = asyncio.create_task(node.supervise())
    try:
        yield node
    finally:
        supervision.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.close(), GOODBYE)


def one_thread() -> None:
    """Keep torch to one thread, before it computes anything: its threads do not survive the forks to come."""
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)  # peers share machines: two threads on a busy one are six times slower than one


def kept_port(listen: Listen, path: Path) -> Listen:
    """Listen on the last start's port, so that old invites and remembered addresses keep working."""
    said = path.read_text(errors="replace") if listen.port == 0 and path.exists() else ""
    if said.isascii() and said.isdigit() and int(said) <= HIGHEST_PORT:
        return msgspec.structs.replace(listen, port=int(said))
    return listen


@asynccontextmanager
async def averager_of(place: Place, run: RunFolder, node: Node) -> AsyncIterator[HiveAverager]:
    from peers.build import factory
    from swarm.net.averager import HiveAverager
    from swarm.net.guard import averaging_prefix

    settings = from_run_dict(run.spec.run)
    averager = HiveAverager(
        daemon=node.control,
        dial_only=node.listen.dial_only,
        prefix=averaging_prefix(run.digest),
        numel=factory.size(run.model, settings),
        groups=settings.batch.groups,
        settings=settings.averaging,
        report=place.report,
    )
    await averager.start()
    try:
        yield averager
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(averager.close(), GOODBYE)
