"""The run's specification and model files, from peer to peer: service `spec`, answered by everybody who has them.

A request names the run's digest (knowing it is the proof of being invited), a file or nothing for the Spec itself, and an
offset; the answer is at most one slice. The joiner believes nothing: the Spec must have the digest of its invite, each file the
digest in the Spec. Weights do not travel here; they come as releases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from peers import runfolder
from peers.errors import Refusal, Unreached
from peers.runfolder import RunFolder
from swarm import PROTOCOL, wire
from swarm.durable import write_durably
from swarm.net.ports import Mail, NetError, Refused
from swarm.types import Digest, PeerId, Spec, Struct

SLICE = 1 << 20
LARGEST = 64 << 20
# Bytes of one file: the largest tokenizers of the field have about 35 MB.
PATIENCE = 30.0
# Seconds for one slice: 1 MiB over a slow line.


class Ask(Struct):
    run: Digest
    file: str
    offset: int


async def serve(mail: Mail, run: RunFolder) -> None:
    """Answer `spec` from this run folder."""
    spec = (run.path / "spec").read_bytes()

    async def answer(sender: PeerId, request: bytes) -> bytes:
        try:
            ask = wire.decode(request, Ask)
        except wire.WireError as error:
            raise Refused(str(error)) from error
        if ask.run != run.digest:
            raise Refused(f"this is a peer of run {run.digest[:12]}, not of {ask.run[:12]}")
        if ask.file and ask.file not in run.spec.files:
            raise Refused(f"the run has no file {ask.file[:80]!r}")
        content = (run.model / ask.file).read_bytes() if ask.file else spec
        return content[max(0, ask.offset) :][:SLICE]

    await mail.serve("spec", answer)


async def fetch(mail: Mail, sources: Sequence[PeerId], digest: Digest, path: Path, model: Path | None) -> RunFolder:
    """The run folder at `path`, completed from the first source that can; `model` is a local folder to use instead.

    Raises Unreached (nobody answered), Refusal (another protocol, or local files that are not the run's).
    """
    run = await fetch_spec(mail, sources, digest, path)
    for name, expected in run.spec.files.items():
        local = (model or run.model) / name
        if local.exists() and hashlib.sha256(local.read_bytes()).hexdigest() == expected:
            continue
        if model is not None:
            what = "tokenizer" if "token" in name or "vocab" in name or "merges" in name else "model"
            raise Refusal(
                f"{local} is not the run's: with another {what} every group would be refused; leave --model out to use the run's"
            )
        write_durably(local, await _fetch(mail, sources, Ask(run=digest, file=name, offset=0), expected))
    return run


async def fetch_spec(mail: Mail, sources: Sequence[PeerId], digest: Digest, path: Path) -> RunFolder:
    """The run folder at `path` without model files: enough for a peer that watches. Raises as `fetch`."""
    content = await _fetch(mail, sources, Ask(run=digest, file="", offset=0), digest)
    try:
        spec = wire.decode(content, Spec)
    except wire.WireError as error:
        raise Refusal(f"the swarm's specification cannot be read ({error}): upgrade this program") from error
    if spec.protocol != PROTOCOL:
        raise Refusal(f"the swarm speaks protocol {spec.protocol}, this program {PROTOCOL}: install the swarm's version")
    if strange := sorted(set(spec.files) - set(runfolder.MODEL_FILES)):
        # A name such as `../../.profile` would be written where it says.
        raise Refusal(f"the run wants a file {strange[0][:80]!r} on this machine, and no model needs that: do not join it")
    return runfolder.keep(path, content)


async def _fetch(mail: Mail, sources: Sequence[PeerId], ask: Ask, expected: Digest) -> bytes:
    failed = []
    for source in sources:
        try:
            content = await _slices(mail, source, ask)
        except NetError as error:
            failed.append(f"{source}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == expected:
            return content
        failed.append(f"{source}: sent other bytes than the digest names")
    raise Unreached(f"nobody gave {ask.file or 'the specification'} of run {ask.run[:12]}: {'; '.join(failed)}")


async def _slices(mail: Mail, source: PeerId, ask: Ask) -> bytes:
    content = b""
    while True:
        part = await mail.send(
            source, "spec", wire.encode(Ask(run=ask.run, file=ask.file, offset=len(content))), timeout=PATIENCE
        )
        content += part
        if len(part) < SLICE:
            return content
        if len(content) > LARGEST:
            raise NetError(f"{ask.file} is larger than {LARGEST} bytes")
