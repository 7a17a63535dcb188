"""The peers that this one met and where they can be dialled, in a file that survives restarts.

    heartbeats --met--> Contacts --> <peer folder>/contacts, when an address is new and every SAVE seconds
                           |
                           +-- no learner or no seed is present: dial all of them again
    <run folder>/peers/*/contacts --of_run--> peers that any peer started here dials, `swarm invite` names

Only accepted heartbeats come here, and each is signed. Invariant: at most MOST peers are kept; those that
others depend on stay longest. Not handled here: dialling (swarm.net.libp2p.network).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from msgspec import Meta, structs

from peers.runtime.faults import DiskFaults
from peers.runtime.kernel import Kernel
from swarm.frames import wire
from swarm.protocol import ROLES, Kind, Role
from swarm.storage.durable import write_durably
from swarm.types import Beat, Finite, PeerId, Struct, Word

CONTACTS = "contacts"
"""File in a peer's folder."""

MOST = 64
"""Peers: some of them are there after any fault that leaves a swarm, and all can be dialled at once."""

SAVE = 60.0
"""Seconds between two writes that change only the times of contacts."""

SEEK = 6
"""Times the run's patience between two dials of peers that are missing: a minute by default."""

Seek = Callable[[Iterable[PeerId]], Awaitable[None]]
"""Dials those of these peers that are not connected."""


class Contact(Struct, frozen=True):
    peer: PeerId
    role: Role
    addresses: Annotated[tuple[Word, ...], Meta(max_length=4)]
    """Where it can be dialled, most widely reachable first."""
    heard: Finite
    """When its last heartbeat came, unix seconds by the machine's clock: other programs read it."""
    own: bool = False
    """It is a peer of this run folder."""

    @property
    def vouched(self) -> bool:
        """Whether invites may name it: a member by its role, or a peer of this folder. Strangers of a public
        run sample and watch; a joiner connects to the peers that its invite names."""
        return self.own or ROLES[self.role].member


Kept = Annotated[tuple[Contact, ...], Meta(max_length=MOST + 1)]
"""Content of the file: the peer itself, if it can be dialled, and the peers that it met."""


class Contacts:
    """One peer's contacts. `met` takes heartbeats; `running` keeps the file, and finds lost peers."""

    def __init__(self, folder: Path, me: PeerId) -> None:
        """Of the peer folder `folder`: also reads the contacts of the other peers of its run folder."""
        self._file, self._me = folder / CONTACTS, me
        found = {one.peer: one for one in (*of_run(folder.parent.parent), *kept(folder)) if one.peer != me}
        self._known = {one.peer: one for one in sorted(found.values(), key=_rank)[-MOST:]}
        self._news = asyncio.Event()

    @property
    def addresses(self) -> dict[PeerId, tuple[str, ...]]:
        """Where each can be dialled."""
        return {one.peer: one.addresses for one in self._known.values()}

    def met(self, peer: PeerId, beat: Beat) -> None:
        """A heartbeat of a peer."""
        if not beat.addresses:
            return
        before = self._known.get(peer)
        self._known[peer] = Contact(peer=peer, role=beat.role, addresses=beat.addresses, heard=time.time())
        if len(self._known) > MOST:
            del self._known[min(self._known.values(), key=_rank).peer]
        if before is None or before.addresses != beat.addresses:
            self._news.set()

    @asynccontextmanager
    async def running(self, kernel: Kernel, disk: DiskFaults, seek: Seek) -> AsyncIterator[None]:
        """Keep the file, and dial those that are missing, while the body runs."""
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(self._save_forever(kernel, disk)),
                tasks.create_task(self._seek_forever(kernel, seek)),
            ]
            try:
                yield
            finally:
                for task in beside:
                    task.cancel()

    async def _save_forever(self, kernel: Kernel, disk: DiskFaults) -> None:
        while True:
            self._news.clear()
            await self._save(kernel, disk)
            # heartbeats of all, once after a start
            await kernel.ports.clock.sleep(kernel.config.run.pace.beat)
            try:
                async with asyncio.timeout(SAVE):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _save(self, kernel: Kernel, disk: DiskFaults) -> None:
        addresses = kernel.ports.addresses()[:4]
        me = Contact(peer=self._me, role=kernel.who.role, addresses=addresses, heard=time.time(), own=True)
        content = wire.encode((*([me] if addresses else []), *self._known.values()))
        lost = "the addresses of other peers are not on the disk"
        await disk.write("contacts", lost, Kind.SAVE, write_durably, self._file, content)

    async def _seek_forever(self, kernel: Kernel, seek: Seek) -> None:
        """Without a learner or a seed, dial all contacts: the swarm may be elsewhere. Missing seeds are
        dialled at any time: each may be with another part of a split swarm."""
        while True:
            await kernel.ports.clock.sleep(
                SEEK * kernel.config.run.pace.patience * kernel.rng.uniform(0.75, 1.25)
            )
            roles = {beat.role for _, beat in kernel.roster}
            of_all = not {Role.LEARNER, Role.SEED} <= roles
            await seek(
                contact.peer
                for contact in [*self._known.values()]
                if contact.peer not in kernel.roster and (of_all or contact.role is Role.SEED)
            )


def _rank(contact: Contact) -> tuple[bool, float]:
    """Order of contacts to keep: peers that others depend on, then by last heartbeat."""
    return ROLES[contact.role].posts, contact.heard


def kept(folder: Path) -> tuple[Contact, ...]:
    """The contacts in a peer's folder; none where its file is missing or damaged: it is written anew."""
    try:
        return wire.decode((folder / CONTACTS).read_bytes(), Kept)
    except (OSError, wire.WireError):
        return ()


def of_run(path: Path) -> list[Contact]:
    """All contacts of the peers of a run folder, and these peers themselves, by the newest record of each,
    the most recent first."""
    newest: dict[PeerId, Contact] = {}
    for file in path.glob(f"peers/*/{CONTACTS}"):
        for contact in kept(file.parent):
            before = newest.get(contact.peer, contact)
            later = contact if contact.heard >= before.heard else before
            newest[contact.peer] = structs.replace(later, own=contact.own or before.own)
    return sorted(newest.values(), key=lambda contact: -contact.heard)
