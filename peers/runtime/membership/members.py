"""The peers seen by the machine with the run's owner.key, in a file, so that `swarm revoke` finds them by
name.

    roster, Trust --keep_forever--> <peer folder>/members --of_run--> peer, role, the invites by which it came

Invariant: at most MOST are kept, the most recent. Not handled here: where they can be dialled
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
"""Seconds between two looks at the roster."""


class Met(Struct):
    peer: PeerId
    role: Role
    heard: Finite
    """When it was last in the roster, unix seconds, as of the last change of the roster."""
    invites: Annotated[tuple[Annotated[bytes, Meta(max_length=64)], ...], Meta(max_length=3)] = ()
    """Keys of the invites by which it became a member: the first is proven, the others are claims of its
    membership (swarm.core.revocation.named). None of a stranger."""


KeptMembers = Annotated[tuple[Met, ...], Meta(max_length=MOST)]


async def keep_forever(kernel: Kernel, disk: DiskFaults, folder: Path) -> None:
    """Write down the peers in the roster whenever that changes, until cancelled."""
    known = {one.peer: one for one in kept(folder)}
    before: dict[PeerId, tuple[bytes, ...]] = {}
    while True:
        now = {peer: _invites(kernel, peer) for peer, _ in kernel.roster}
        if now != before:
            for peer, beat in kernel.roster:
                known[peer] = Met(peer=peer, role=beat.role, heard=kernel.now(), invites=now[peer])
            known = dict(sorted(known.items(), key=lambda one: one[1].heard)[-MOST:])
            content, lost = wire.encode(tuple(known.values())), "the addresses of peers are not on the disk"
            if await disk.write(MEMBERS, lost, Kind.KEEP, write_durably, folder / MEMBERS, content):
                before = now
        await kernel.ports.clock.sleep(EVERY)


def _invites(kernel: Kernel, peer: PeerId) -> tuple[bytes, ...]:
    shown = kernel.trust.shown(peer)
    return () if shown is None else kernel.trust.revocations.named(shown)


def kept(folder: Path) -> tuple[Met, ...]:
    """The peers in a peer's file; none where it is missing or damaged: it is written anew."""
    try:
        return wire.decode((folder / MEMBERS).read_bytes(), KeptMembers)
    except (OSError, wire.WireError):
        return ()


def of_run(path: Path) -> dict[PeerId, Met]:
    """All peers that the peers of a run folder saw, by the newest record of each."""
    newest: dict[PeerId, Met] = {}
    for file in path.glob(f"peers/*/{MEMBERS}"):
        for one in kept(file.parent):
            if one.heard >= newest.get(one.peer, one).heard:
                newest[one.peer] = one
    return newest
