"""Transfers the run's specification and files between peers: service `spec`, answered by every peer that has
them.

A request names the run's digest (knowing it is the proof of being invited), a file or nothing for the Spec
itself, and an offset; the answer is at most one slice, read from the disk where it is asked for.

    Spec --> model/<file>, task/<file>:   <file>.part grows slice by slice --digest is right--> <file>

The joiner believes nothing: the Spec must have the digest of its invite, each file the digest and the size in
the Spec, and only names that a model or a task has are written. A `.part` that a break left is gone on with,
by whoever can. The weights that are trained do not travel here; they come as releases.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from peers.build import run_folder
from peers.build.run_folder import BASE, MODEL_FILES, TASK, RunFolder
from peers.errors import CannotHere, Refusal, Unreached
from swarm import PROTOCOL, wire
from swarm.durable import sync
from swarm.net.ports import Mail, NetError, Refused
from swarm.protocol import Service
from swarm.tasks import files as task_files
from swarm.types import Digest, PeerId, Spec, Struct, Word

SLICE = 1 << 20
LARGEST = 64 << 20
"""Bytes of a config or tokenizer file: the largest tokenizers of the field have about 35 MB."""

LARGEST_SPEC = 4 << 20
PATIENCE = 30.0
"""Seconds for one slice: 1 MiB over a slow line."""

TELL = 5.0
"""Seconds between two lines of a long transfer."""


class FileRequest(Struct):
    run: Digest
    file: Word
    offset: int


async def serve(mail: Mail, run: RunFolder) -> list[str]:
    """Answer `spec` from this run folder. Returns a sentence for each damaged file, which is given to
    nobody."""
    files, damaged = {"": run.path / "spec"} | dict(_places(run)), _damaged(run)

    async def answer(sender: PeerId, request: bytes) -> bytes:
        try:
            ask = wire.decode(request, FileRequest)
        except wire.WireError as error:
            raise Refused(str(error)) from error
        if ask.run != run.digest:
            raise Refused(f"this is a peer of run {run.digest[:12]}, not of {ask.run[:12]}")
        if ask.file not in files:
            raise Refused(f"the run has no file {ask.file[:80]!r}")
        if ask.file in damaged:
            raise Refused(f"{ask.file} is damaged here")
        try:
            return _slice(files[ask.file], ask.offset)
        except OSError as error:
            raise Refused(
                f"{ask.file or 'the specification'} cannot be read here: {error.strerror}"
            ) from error

    await mail.serve(Service.SPEC, answer)
    return list(damaged.values())


async def fetch(
    mail: Mail, sources: Sequence[PeerId], digest: Digest, path: Path, model: Path | None
) -> RunFolder:
    """The run folder at `path`, complete; `model` is a local folder whose files are taken where they are the
    run's.

    Raises Unreached (nobody could give a file), Refusal (another protocol, or local files that are not the
    run's), CannotHere (the disk is too small).
    """
    run = await fetch_spec(mail, sources, digest, path)
    places = dict(_places(run))
    if model is not None:
        _take(model, run)
    missing = [
        name
        for name, place in places.items()
        if not _there(place, _expected(run.spec, name), run.spec.sizes[name])
    ]
    _check_room(path, sum(run.spec.sizes[name] for name in missing))
    for name in missing:
        await _Transfer(mail, run, name, places[name]).run(sources)
    return run


async def fetch_spec(mail: Mail, sources: Sequence[PeerId], digest: Digest, path: Path) -> RunFolder:
    """The run folder at `path` without its files: enough for a peer that watches. Raises as `fetch`."""
    content = await _fetch_spec(mail, sources, digest)
    try:
        spec = wire.decode(content, Spec)
    except wire.WireError as error:
        raise Refusal(f"the swarm's specification cannot be read ({error}): upgrade this program") from error
    if spec.protocol != PROTOCOL:
        raise Refusal(
            f"the swarm speaks protocol {spec.protocol}, this program {PROTOCOL}: install the swarm's version"
        )
    _check(spec)
    return run_folder.keep(path, content)


def _check(spec: Spec) -> None:
    """Check names and sizes of a Spec's files. Raises Refusal for those that no model and no task has."""
    strange = set(spec.files) - {*MODEL_FILES, BASE} | {
        name for name in spec.task if not task_files.NAME.fullmatch(name)
    }
    if strange:
        # A name such as `../../.profile` would be written where it says.
        raise Refusal(
            f"the run wants a file {min(strange)[:80]!r} on this machine, and no run needs that: do not"
            " join it"
        )
    for name in (*spec.files, *(TASK + name for name in spec.task)):
        most = task_files.LARGEST if name.startswith(TASK) else None if name == BASE else LARGEST
        if (size := spec.sizes.get(name, -1)) < 0 or (most is not None and size > most):
            raise Refusal(
                f"the run wants {name} to have {size} bytes on this machine, and no run needs that: do not"
                " join it"
            )


async def _fetch_spec(mail: Mail, sources: Sequence[PeerId], digest: Digest) -> bytes:
    failed = []
    for source in sources:
        content = b""
        try:
            while len(content) <= LARGEST_SPEC:
                part = await mail.send(
                    source,
                    Service.SPEC,
                    wire.encode(FileRequest(run=digest, file="", offset=len(content))),
                    timeout=PATIENCE,
                )
                content += part
                if len(part) < SLICE:
                    break
        except NetError as error:
            failed.append(f"{source}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
        failed.append(f"{source}: sent other bytes than the digest names")
    raise Unreached(f"nobody gave the specification of run {digest[:12]}: {'; '.join(failed)}")


class _Part:
    """A partly fetched file on the disk, and its digest so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab+")  # noqa: SIM115 (closed by `close`)
        self._sha = hashlib.sha256()
        self.begun = self.size = path.stat().st_size
        """Bytes at the start, and now."""
        self._file.seek(0)
        for start in range(0, self.begun, SLICE):
            self._sha.update(self._file.read(min(SLICE, self.begun - start)))

    def add(self, piece: bytes) -> None:
        try:
            self._file.write(piece)
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or str(self._path)  # a person wants to know which disk is full
            raise
        self._sha.update(piece)
        self.size += len(piece)

    def is_(self, digest: Digest, size: int) -> bool:
        return self.size == size and self._sha.hexdigest() == digest

    def become(self, path: Path) -> None:
        sync(self._path)
        self._path.rename(path)
        sync(path.parent)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was told by `add`
            self._file.close()


class _Transfer:
    """The fetch of one file, from any peer that has it."""

    def __init__(self, mail: Mail, run: RunFolder, name: str, place: Path) -> None:
        self._mail, self._run, self._name, self._place = mail, run, name, place
        self._expected, self._size = _expected(run.spec, name), run.spec.sizes[name]
        self._told = time.monotonic()

    async def run(self, sources: Sequence[PeerId]) -> None:
        """Fetch the file. Raises Unreached when no source could give it; the fetched part stays for the next
        time."""
        path, failed = self._place.with_name(self._place.name + ".part"), []
        for source in sources:
            for _ in range(2):
                part = _Part(path)
                try:
                    await self._grow(part, source)
                except NetError as error:
                    failed.append(f"{source}: {error}")
                    break
                finally:
                    part.close()
                if part.is_(self._expected, self._size):
                    part.become(self._place)
                    return
                path.unlink()
                if not part.begun:
                    failed.append(f"{source}: sent other bytes than the digest names")
                    break
                # What others had begun may be what is wrong: the whole file is asked for once.
        raise Unreached(f"nobody gave {self._name} of run {self._run.digest[:12]}: {'; '.join(failed)}")

    async def _grow(self, part: _Part, source: PeerId) -> None:
        """Fetch slices until the file has its size. Raises NetError."""
        while part.size < self._size:
            ask = FileRequest(run=self._run.digest, file=self._name, offset=part.size)
            piece = await self._mail.send(source, Service.SPEC, wire.encode(ask), timeout=PATIENCE)
            if len(piece) != min(SLICE, self._size - part.size):
                raise NetError(f"it has {part.size + len(piece)} of {self._size} bytes")
            part.add(piece)
            if time.monotonic() - self._told >= TELL:
                self._told = time.monotonic()
                print(
                    f"{self._name}: {part.size >> 20} of {self._size >> 20} MiB", file=sys.stderr, flush=True
                )


def _places(run: RunFolder) -> Iterator[tuple[str, Path]]:
    """(name as it is asked for, path) of every file of the run."""
    for name in run.spec.files:
        yield name, run.model / name
    for name in run.spec.task:
        yield TASK + name, run.path / "task" / name


def _damaged(run: RunFolder) -> dict[str, str]:
    """Name -> what is wrong with it, and what to do."""
    told = {}
    for name, place in _places(run):
        size = run.spec.sizes.get(name, -1)
        if not _there(place, _expected(run.spec, name), size):
            what = (
                f"is damaged: it is not the {size} bytes that the run began with"
                if place.exists()
                else "is gone"
            )
            told[name] = (
                f"{place} {what}. Joiners cannot have it from here: bring it back from the model's folder"
            )
    return told


def _expected(spec: Spec, name: str) -> Digest:
    return spec.task[name.removeprefix(TASK)] if name.startswith(TASK) else spec.files[name]


def _there(place: Path, expected: Digest, size: int) -> bool:
    """Whether a file is here. A large file got its name only when its digest was right, and reading it again
    would take minutes."""
    if not place.exists() or place.stat().st_size != size:
        return False
    return size > LARGEST or _digest(place) == expected


def _take(model: Path, run: RunFolder) -> None:
    """Copy the run's model files that a local folder has."""
    for name, expected in run.spec.files.items():
        local = model / name
        if not local.exists():
            continue
        if _digest(local) == expected:
            run.model.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(local, run.model / name)
            sync(run.model / name)
            sync(run.model)
        elif name != BASE:
            # The base's weights may be cut and named in other ways: they come from another peer then.
            what = "tokenizer" if "token" in name or "vocab" in name or "merges" in name else "model"
            raise Refusal(
                f"{local} is not the run's: with another {what} every group would be refused; leave --model"
                " out to use the run's"
            )


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path).free
    if free < needed:
        raise CannotHere(
            f"the run's files need {needed / 1e9:.1f} GB, and the disk of {path} has {free / 1e9:.1f} GB"
            " free: free some space, or name another folder with --folder"
        )


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _slice(path: Path, offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(min(max(0, offset), file.seek(0, 2)))
        return file.read(SLICE)
