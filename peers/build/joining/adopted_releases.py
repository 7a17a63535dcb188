"""A new seed takes over the releases of other peers in its run folder: signed announcements, marks and bytes.

    peers/<name>/releases/<root>, blobs/<root>, blobs/<root>.release --copy--> peers/seed/...

Nothing is trusted here: a seed checks every block and every signature when it starts. Not handled here:
releases of peers in other folders, which a seed requests when it runs.
"""

from __future__ import annotations

from pathlib import Path

from peers.runtime.peer_folder import RELEASES
from swarm.storage.durable import copy_durably, write_durably

ADOPTING = "adopting"
"""File in a seed's folder while it takes them: a seed that is interrupted takes the rest at its next
start."""


def take_releases(path: Path, seed: Path) -> None:
    """Copy the releases of the peers of run folder `path` into the peer folder `seed`, unless it has releases
    of its own. Raises OSError; the next call takes the rest."""
    own, begun = seed / RELEASES, seed / ADOPTING
    if any(map(_is_announcement, own.glob("*"))) and not begun.exists():
        return
    found = [one for one in sorted(path.glob(f"peers/*/{RELEASES}/*")) if _is_announcement(one)]
    if any(not (own / announcement.name).exists() for announcement in found):
        write_durably(begun)
    for announcement in found:
        if not (own / announcement.name).exists():
            _copy(announcement, seed)
    begun.unlink(missing_ok=True)


def _is_announcement(path: Path) -> bool:
    """An announcement's file name is a root; a partly written file has a longer name."""
    return not path.suffix


def _copy(announcement: Path, seed: Path) -> None:
    blobs, root = announcement.parents[1] / "blobs", announcement.name
    try:
        for name in (root, f"{root}.release"):
            copy_durably(blobs / name, seed / "blobs" / name)
        # last: an announcement without its bytes is of no use
        copy_durably(announcement, seed / RELEASES / root)
    except FileNotFoundError:
        return  # its peer dropped it meanwhile, or holds a part of it
