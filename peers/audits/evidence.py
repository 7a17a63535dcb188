"""Evidence of an audit: everything needed to replay a group, as files in a peer's folder.

    evidence/GROUP.evidence       the group as its sampler signed it, the release as its publisher did
    evidence/GROUP.safetensors    the version's bytes: another name of the file that the peer holds
    evidence/suspended            samplers that were suspended, and the reasons: it survives restarts
    evidence/suspended.lock       held by the process that reads and writes that list

`swarm verify` reads them (peers.commands.journals.verify), `swarm pardon` takes a sampler out of the last
one. The newest KEPT pieces stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from peers.intake.group_opening import noise_of
from peers.runtime.frames import Frames
from swarm.core.intake.admission import malformation
from swarm.core.suspensions import Suspension
from swarm.draws.heads import contradiction
from swarm.frames import wire
from swarm.limits import MAIL_LIMIT, RELEASE_LIMIT
from swarm.settings.config import Run
from swarm.storage.durable import Torn, locked, make_folder, read_checked, write_checked, write_durably
from swarm.storage.weights import Weights
from swarm.types import Digest, Finite, Group, PeerId, Struct, Text

FOLDER, SUFFIX, BYTES, SUSPENDED = "evidence", ".evidence", ".safetensors", "suspended"

KEPT = 8
"""Pieces of evidence in a folder: each keeps the bytes of a version."""


class Evidence(Struct, tag="evidence"):
    run: Digest
    frame: Annotated[bytes, Meta(max_length=MAIL_LIMIT.sealed)]
    """Of the Group."""
    release: Annotated[bytes, Meta(max_length=RELEASE_LIMIT.sealed)]
    """A frame of the Release that the group names."""
    auditor: PeerId
    at: Finite
    why: Text


class Unsigned(Exception):
    """A group from another peer differs from the one that its sampler signed, or is none of this run."""


def signed_group(frames: Frames, frame: bytes, run: Run, vocabulary: int) -> tuple[wire.Opened, Group]:
    """A group that another peer serves, as its sampler signed it for this run. Raises WireError and
    Unsigned."""
    sampling = run.sampling
    limit = wire.group_limit(sampling.group_size, sampling.max_tokens, sampling.heads)
    opened, group = frames.read(frame, limit, Group)
    if opened.sender != group.sampler:
        raise Unsigned(f"the group is signed by {opened.sender}, it says it is of {group.sampler}")
    if (problem := malformation(group, sampling, vocabulary, noise_of(run))) is not None:
        raise Unsigned(f"the group is none of this run: {problem}")
    if group.heads is not None and (problem := contradiction(group, vocabulary)) is not None:
        raise Unsigned(f"no learner admits the group: {problem}")
    return opened, group


def keep(folder: Path, group: str, evidence: Evidence, weights: Weights) -> None:
    """Write evidence, and remove all but the newest KEPT. Blocks; raises OSError and Damaged."""
    make_folder(folder)
    path = folder / f"{group}{SUFFIX}"
    weights.blocks.put(path.with_suffix(BYTES))
    write_durably(path, wire.encode(evidence))
    newest = sorted(folder.glob(f"*{SUFFIX}"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in newest[KEPT:]:
        old.unlink()
        old.with_suffix(BYTES).unlink(missing_ok=True)


@contextlib.contextmanager
def changing_suspended(folder: Path) -> Iterator[None]:
    """Exclusive access to the list of suspended samplers: a learner adds to it, `swarm pardon` removes from
    it. Blocks; raises OSError."""
    make_folder(folder)
    with locked(folder / f"{SUSPENDED}.lock"):
        yield


def keep_suspended(folder: Path, suspended: Mapping[PeerId, Suspension]) -> None:
    """Write the suspended samplers. Blocks; raises OSError."""
    make_folder(folder)
    write_checked(folder / SUSPENDED, wire.encode(suspended))


def update_suspended(
    folder: Path, suspended: Mapping[PeerId, Suspension], listed: Collection[PeerId]
) -> Collection[PeerId]:
    """Write the suspended samplers, without those of `listed` that `swarm pardon` removed from the file;
    returns these. A missing or damaged file pardons none. Blocks; raises OSError."""
    with changing_suspended(folder):
        try:
            here = read_suspended(folder).keys() if (folder / SUSPENDED).exists() else listed
        except (Torn, msgspec.DecodeError):
            here = listed  # its next reader reports the damage
        pardoned = {*listed} - {*here}
        keep_suspended(folder, {peer: why for peer, why in suspended.items() if peer not in pardoned})
    return pardoned


def read_suspended(folder: Path) -> dict[PeerId, Suspension]:
    """The suspended samplers; none where there is no such file. Raises OSError, Torn and
    msgspec.DecodeError."""
    try:
        return msgspec.msgpack.decode(read_checked(folder / SUSPENDED), type=dict[PeerId, Suspension])
    except FileNotFoundError:
        return {}


def stamp(path: Path) -> tuple[int, int]:
    """When a file was written, nanoseconds, and its inode: each writing makes another one. Raises OSError."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino
