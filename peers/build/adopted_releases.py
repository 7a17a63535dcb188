"""A new seed takes the releases that other peers of its run folder hold: signed words, marks and bytes.

    peers/<name>/releases/<root>, blobs/<root>, blobs/<root>.release --copy--> peers/seed/...

Nothing is believed here: a seed checks every block and every signature when it starts. Not handled here:
peers of other folders, whom a seed asks when it runs.
"""

from __future__ import annotations

from pathlib import Path

from peers.runtime.peer_folder import RELEASES
from swarm.durable import copy_durably


def take_releases(path: Path, seed: Path) -> None:
    """Copy what the peers of the run folder `path` hold into the peer folder `seed`, unless it has releases
    of its own. Raises OSError."""
    if any((seed / RELEASES).glob("*")):
        return
    for word in sorted(path.glob(f"peers/*/{RELEASES}/*")):
        blobs, root = word.parents[1] / "blobs", word.name
        try:
            for name in (root, f"{root}.release"):
                copy_durably(blobs / name, seed / "blobs" / name)
            copy_durably(word, seed / RELEASES / root)  # last: without its bytes it says nothing
        except FileNotFoundError:
            continue  # its peer dropped it meanwhile, or holds a part of it
