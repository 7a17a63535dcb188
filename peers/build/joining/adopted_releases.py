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
    if any(map(_is_word, own.glob("*"))) and not begun.exists():
        return
    words = [word for word in sorted(path.glob(f"peers/*/{RELEASES}/*")) if _is_word(word)]
    if any(not (own / word.name).exists() for word in words):
        write_durably(begun)
    for word in words:
        if not (own / word.name).exists():
            _take(word, seed)
    begun.unlink(missing_ok=True)


def _is_word(path: Path) -> bool:
    """An announcement's file name is a root; a partly written file has a longer name."""
    return not path.suffix


def _take(word: Path, seed: Path) -> None:
    blobs, root = word.parents[1] / "blobs", word.name
    try:
        for name in (root, f"{root}.release"):
            copy_durably(blobs / name, seed / "blobs" / name)
        copy_durably(word, seed / RELEASES / root)  # last: an announcement without its bytes is of no use
    except FileNotFoundError:
        return  # its peer dropped it meanwhile, or holds a part of it
