"""Uses of invites that have a number of them, counted where the run's owner.key is.

    newcomer -- "renew": its invite's signature --> a peer of the owner's folder --take--> <run folder>/used
             <-- a membership of its own, which it keeps ------------------------------------------------- |

Invariant: a use is on the disk before the membership leaves, and a peer takes one use however often it asks.
Not guaranteed: two folders with the same owner.key count separately. Not handled here: the signature
(swarm.core.membership).
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import msgspec

from swarm.frames.run_types import Delegation
from swarm.limits import UNREADABLE
from swarm.net.ports import Refused
from swarm.storage.durable import adding_lines
from swarm.types import PeerId, Struct

USED = "used"
"""File in a run folder: one line of JSON a use."""

TAKEN = "all uses of this invite are taken"


class Use(Struct):
    invite: str
    """Key of the invite in hex."""
    peer: PeerId
    at: float
    """Unix seconds."""


def take(run_folder: Path, invite: Delegation, peer: PeerId, now: float) -> None:
    """Take one of the invite's uses for `peer`, unless it has one. Raises Refused where none is left, and
    OSError."""
    with adding_lines(run_folder / USED) as add:
        peers = used(run_folder).get(invite.key.hex(), set())
        if peer in peers:
            return
        if len(peers) >= invite.uses:
            raise Refused(f"{TAKEN} ({invite.uses}): ask for another one")
        add(msgspec.json.encode(Use(invite=invite.key.hex(), peer=peer, at=now)))


def used(run_folder: Path) -> dict[str, set[PeerId]]:
    """Key of an invite in hex -> the peers that took a use of it. Raises OSError."""
    found: dict[str, set[PeerId]] = defaultdict(set)
    try:
        lines = (run_folder / USED).read_bytes().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        with suppress(*UNREADABLE):  # cut off by a crash: its membership never left
            use = msgspec.json.decode(line, type=Use)
            found[use.invite].add(use.peer)
    return found
