"""`swarm pardon`: lets a sampler back that this folder's learners set aside (peers.roles.auditor).

Each learner decides for itself, so that those of other folders are not changed by it.
"""

from __future__ import annotations

from pathlib import Path

from peers.errors import DONE, WrongUsage
from peers.roles.evidence import ASIDE, FOLDER, keep_aside, read_aside


def pardon(folder: Path, peer: str) -> int:
    """Take the sampler whose id begins with `peer` out of all lists. Returns an exit code; raises WrongUsage
    where no list has it, or several begin so."""
    lists = {path.parent: read_aside(path.parent) for path in folder.glob(f"peers/*/{FOLDER}/{ASIDE}")}
    named = {each for aside in lists.values() for each in aside}
    found = [each for each in named if each.startswith(peer)]
    if len(found) != 1:
        there = f"set aside are: {', '.join(sorted(named))}" if named else "nobody is set aside here"
        raise WrongUsage(f"{peer} is {'the beginning of several' if found else 'not set aside'}: {there}")
    for path, aside in lists.items():
        if aside.pop(found[0], None) is not None:
            keep_aside(path, aside)
    print(f"{found[0]} is pardoned: its next groups are replayed as a newcomer's")
    return DONE
