"""Whom the machine with the run's owner.key has heard, in a file, so that `swarm revoke` finds them by name.

    roster, Trust --keep_forever--> <peer folder>/members --of_run--> peer, role, the invites by which it came

Invariant: at most MOST are kept, those heard last. Not handled here: where they can be dialled
(peers.runtime.membership.contacts).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from peers.runtime.faults import DiskFaults
from peers.runtime.kernel import Kernel
from swarm.frames import wire
from swarm.protocol import Kind, Role
from swarm.storage.durable import write_durably
from swarm.types import Finite, PeerId, Struct

MEMBERS = "members"
"""File in a peer's folder."""

MOST = 4096
"""Peers: 150 bytes each."""

EVERY = 5.0
"""Seconds between two looks at who is there."""


class Met(Struct):
    peer: PeerId
    role: Role
    heard: Finite
    """When the roster had it last, unix seconds, as of some change among those who are there."""
    invites: Annotated[tuple[Annotated[bytes, Meta(max_length=64)], ...], Meta(max_length=3)] = ()
    """Keys of those by which it became a member: the first is proven, the others are what its membership says
    (swarm.core.revocation.named). None of a stranger."""


KeptMembers = Annotated[tuple[Met, ...], Meta(max_length=MOST)]


async def keep_forever(kernel: Kernel, disk: DiskFaults, folder: Path) -> None:
    """Write down who is there whenever that changes, until cancelled."""
    known = {one.peer: one for one in kept(folder)}
    before: dict[PeerId, tuple[bytes, ...]] = {}
    while True:
        now = {peer: _invites(kernel, peer) for peer, _ in kernel.roster}
        if now != before:
            for peer, beat in kernel.roster:
                known[peer] = Met(peer=peer, role=beat.role, heard=kernel.now(), invites=now[peer])
            known = dict(sorted(known.items(), key=lambda one: one[1].heard)[-MOST:])
            content, lost = wire.encode(tuple(known.values())), "who was heard is not on the disk"
            if await disk.write(MEMBERS, lost, Kind.KEEP, write_durably, folder / MEMBERS, content):
                before = now
        await kernel.ports.clock.sleep(EVERY)


def _invites(kernel: Kernel, peer: PeerId) -> tuple[bytes, ...]:
    shown = kernel.trust.shown(peer)
    return () if shown is None else kernel.trust.revocations.named(shown)


def kept(folder: Path) -> tuple[Met, ...]:
    """What a peer's folder says; nobody where its file is missing or damaged: it is written anew."""
    try:
        return wire.decode((folder / MEMBERS).read_bytes(), KeptMembers)
    except (OSError, wire.WireError):
        return ()


def of_run(path: Path) -> dict[PeerId, Met]:
    """Everybody whom the peers of a run folder heard, by the newest word of each."""
    newest: dict[PeerId, Met] = {}
    for file in path.glob(f"peers/*/{MEMBERS}"):
        for one in kept(file.parent):
            if one.heard >= newest.get(one.peer, one).heard:
                newest[one.peer] = one
    return newest
