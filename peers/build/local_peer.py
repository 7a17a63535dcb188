"""Opens the parts that every peer runs on: its folder with key and journal, its network node, its averager.

    PeerFolder --open_local_peer--> LocalPeer (folder, keyring, bus)
    LocalPeer, run, addresses --open_node--> Node

Invariant: everything opened here is closed when the peer leaves, in reverse order. Not handled here: the
peer's role (peers.build.assembly).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peers.build.joining.connect_retry import ConnectRetry
from peers.errors import CannotHere, say
from peers.runtime.faults import DiskFaults
from peers.runtime.membership.contacts import Contacts
from peers.runtime.peer_folder import INCARNATION, PeerFolder, next_incarnation
from peers.runtime.watching.narration import logging_only
from swarm import events
from swarm.journal import Journal, Thinned
from swarm.limits import cut
from swarm.membership.identity import DamagedKey, Keyring, open_key
from swarm.net.ports import NetError, Unreachable
from swarm.protocol import Part
from swarm.settings.config import Listen
from swarm.settings.peer_limits import Limits
from swarm.storage.durable import write_checked, write_durably
from swarm.types import Digest

if TYPE_CHECKING:
    from swarm.net.libp2p.node import Node

HIGHEST_PORT = 65535

CLOSE_TIMEOUT = 10.0
"""Seconds for each part to close: a forked process that hangs is killed by then."""


@dataclass
class LocalPeer:
    """A peer on this machine: its folder, its key, the bus that writes its journal, and the peers that it
    met."""

    folder: Path
    keyring: Keyring
    bus: events.Bus
    contacts: Contacts
    incarnation: int
    """Of this start, above those of all before."""
    journal: Journal | None = None
    now: Callable[[], float] = time.time
    """Unix seconds, for events: once there is a node, by its clock, which ignores later changes of the
    machine's, so that events of one peer stay in order."""

    def report_journal_faults(self, disk: DiskFaults) -> None:
        """Events that the disk refuses are reported there from now on."""
        if (journal := self.journal) is not None:
            journal.on_disk = lambda why: disk.report(
                "journal", why and f"events are not in {journal.path}: {why}"
            )

    def keep(
        self, path: Path, text: str, otherwise: str, checked: bool = False, secret: bool = False
    ) -> None:
        """Write an optional file for later starts, with a checksum, or for its owner's eyes alone; when the
        disk is full, report `otherwise`, the consequence, and go on."""
        try:
            if checked:
                write_checked(path, text.encode())
            else:
                write_durably(path, text.encode(), mode=0o600 if secret else 0o644)
        except OSError as error:
            self.report(Part.DISK, f"{path.name} is not on the disk ({error.strerror}): {otherwise}", None)

    def report(self, part: str, detail: str, seconds: float | None) -> None:
        """Emit a fault of the node or the averager, or its recovery after `seconds`."""
        at, me = self.now(), self.keyring.me
        if seconds is None:
            self.bus.emit(events.Faulted(at=at, peer=me, part=part, detail=cut(detail)))
        else:
            self.bus.emit(events.Recovered(at=at, peer=me, part=part, seconds=round(seconds, 2)))


@contextlib.contextmanager
def open_local_peer(peer_folder: PeerFolder) -> Iterator[LocalPeer]:
    with peer_folder:
        journal = Journal(peer_folder.path / "journal.jsonl")
        bus = events.Bus()
        bus.add(Thinned(journal))
        try:
            yield _begun(peer_folder.path, bus, journal)
        finally:
            journal.close()
            if journal.lost:
                say(f"{journal.lost} events are not in {journal.path}: the disk took no more")


def _begun(path: Path, bus: events.Bus, journal: Journal) -> LocalPeer:
    keyring = _own_key(path / "key")
    incarnation = next_incarnation(path, time.time())
    local = LocalPeer(path, keyring, bus, Contacts(path, keyring.me), incarnation, journal)
    otherwise = "where this machine's clock is set back, others may not hear this peer after its next start"
    local.keep(path / INCARNATION, str(local.incarnation), otherwise, checked=True)
    return local


def _own_key(path: Path) -> Keyring:
    """This peer's key. In place of a damaged one, which is kept aside, a new one: another peer of the same
    machine."""
    try:
        return open_key(path)
    except DamagedKey as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.rename(aside)
        say(f"{error}. It is {aside} now; this peer goes on as another one, with a new key")
        return open_key(path)


@asynccontextmanager
async def open_node(
    local: LocalPeer,
    run: Digest,
    listen: Listen,
    limits: Limits,
    bootstrap: Sequence[str],
    retrying: ConnectRetry,
    watches: bool = False,
) -> AsyncIterator[Node]:
    """Run a node under supervision, which dials the bootstrap peers and all that this run folder's peers
    met. `watches` as in WayIn. A supervision that fails ends the body, and its exception goes on."""
    from swarm.net.libp2p.network import WayIn
    from swarm.net.libp2p.node import Node

    port = last_port(listen, local.folder / "port")
    way_in = WayIn(local.contacts.addresses, retrying.unreached, retrying.dialled, port, watches)
    try:
        node = await Node.start(
            keyring=local.keyring,
            key_path=local.folder / "key",
            run=run,
            listen=listen,
            bootstrap=bootstrap,
            report=local.report,
            limits=limits,
            way_in=way_in,
        )
    except Unreachable:
        raise
    except NetError as error:  # a port, an address or a clock of this machine
        raise CannotHere(str(error)) from error
    local.now, retrying.node = node.clock.now, node
    if port not in (0, node.port):
        say(
            f"TCP port {port}, where this peer listened before, is another program's now: it listens at"
            f" {node.port}, and invites that name {port} do not lead here"
        )
    if not listen.dial_only:
        local.keep(local.folder / "port", str(node.port), "it takes another port when it is started again")
    with logging_only():
        try:
            async with asyncio.TaskGroup() as tasks:
                supervision = tasks.create_task(node.supervise(), name="supervision of the node")
                try:
                    yield node
                finally:
                    supervision.cancel()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await node.close()


def last_port(listen: Listen, path: Path) -> int:
    """The port of the last start, so that old invites and remembered addresses stay valid; 0 where there is
    none, or the settings name one, or it only dials."""
    return 0 if listen.port or listen.dial_only else kept_number(path, HIGHEST_PORT)


def kept_number(path: Path, most: int) -> int:
    """The number that an earlier start kept in this file; 0 where that is damaged or more than `most`."""
    said = path.read_text(errors="replace") if path.exists() else ""
    number = int(said) if said.isascii() and said.isdigit() and len(said) <= len(str(most)) else 0
    return number if number <= most else 0
