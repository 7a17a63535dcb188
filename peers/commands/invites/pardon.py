"""`swarm pardon`: readmits a sampler that learners suspended (peers.audits.auditor).

a folder with owner.key  -> the run's list of revocations says so, and all learners of the run obey
another one              -> this folder's learners alone, each of which decides for itself
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec

from peers.audits.evidence import FOLDER, SUSPENDED, changing_suspended, keep_suspended, read_suspended
from peers.build.joining import invitations
from peers.commands.invites.revoke import known, peer_named, publish
from peers.errors import DONE, WrongUsage, say
from peers.runtime.membership import revocations
from swarm.core.suspensions import Suspension
from swarm.frames.run_types import Pardon
from swarm.membership.identity import human_name
from swarm.storage.durable import Torn
from swarm.types import PeerId


def pardon(folder: Path, peer: str) -> int:
    """Remove the sampler with this name or id prefix from all suspension lists. Returns an exit code; raises
    WrongUsage where no list has it, or several match; an owner may name any complete id, and any peer seen in
    the run. Raises Refusal, CannotHere, OSError."""
    if not peer:
        raise WrongUsage("no sampler given: pass a name, an id or the beginning of an id")
    lists = {path.parent: _read(path) for path in folder.glob(f"peers/*/{FOLDER}/{SUSPENDED}")}
    owned = (folder / "owner.key").exists()
    named = {each for suspended in lists.values() for each in suspended}
    found = [each for each in named if each.startswith(peer) or human_name(each) == peer]
    if not found and owned:
        found = [peer_named(invitations.run_of(folder), peer)]
    if len(found) != 1:
        those = ", ".join(f"{human_name(each)} ({each})" for each in sorted(named))
        none = "no learner of this folder has suspended a sampler; the owner's folder pardons at all learners"
        there = f"suspended: {those}" if named else none
        raise WrongUsage(f"{peer} is {'the beginning of several' if found else 'not suspended'}: {there}")
    if owned:
        _for_all(folder, found[0])
    for path in (path for path, suspended in lists.items() if found[0] in suspended):
        with changing_suspended(path):  # the learner may have written meanwhile
            suspended = read_suspended(path)
            if suspended.pop(found[0], None) is not None:
                keep_suspended(path, suspended)
    print(f"{found[0]} is pardoned: its next groups are replayed as a newcomer's")
    return DONE


def _read(path: Path) -> dict[PeerId, Suspension]:
    """Samplers suspended by this file; none for a damaged one, as for its learner. Raises OSError."""
    try:
        return read_suspended(path.parent)
    except (Torn, msgspec.DecodeError) as error:
        say(f"{path} is damaged ({error}): its suspensions are unknown, and its learner starts without any")
        return {}


def _for_all(folder: Path, peer: PeerId) -> None:
    run = invitations.run_of(folder)
    with revocations.locked(run.path):
        told = known(run).list
        others = [one for one in told.pardons if one.peer != peer]
        publish(run, told.entries, (*others, Pardon(at=math.ceil(time.time()), peer=peer)))
