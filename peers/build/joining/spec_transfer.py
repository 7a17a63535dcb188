"""Transfers the run's specification and files between peers: service `spec`, served by every peer that has
them.

A request names the run's digest, which invites have, a file, or nothing for the Spec itself, and an
offset; the answer is at most one slice, read from the disk for each request.

    Spec --> model/<file>, task/<file>:   <file>.part grows slice by slice --digest is right--> <file>

Files that a run folder already holds are not requested: a peer that returns needs no other. The joiner
verifies everything: the Spec must have the digest in its invite, each file the digest and the size in the
Spec, and only names that a model or a task has are written. A `.part` of an interrupted transfer is continued
from any peer, by one process at a time. Trained weights are not transferred here, but as releases.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from dashboard.text import duration, volume
from peers.build import run_folder
from peers.build.run_folder import FETCHING, MODEL_FILES, STARTS, TASK, DamagedSpec, RunFolder, file_digest
from peers.errors import CannotHere, NoPeerAnswers, Refusal, say
from swarm import PROTOCOL
from swarm.core.membership import PRIVATE
from swarm.core.revocation import YOU
from swarm.frames import wire
from swarm.frames.grammar import some
from swarm.frames.run_types import Spec
from swarm.net.ports import Mail, NetError, Refused, read_question
from swarm.protocol import Service
from swarm.storage.durable import copy_durably, make_folder, sync
from swarm.tasks.data import task_files
from swarm.types import Digest, PeerId, Struct, Word

SLICE = 1 << 20
LARGEST = 64 << 20
"""Most bytes of a config or tokenizer file: the largest known tokenizers have about 35 MB."""

LARGEST_SPEC = 4 << 20
PATIENCE, LONGEST = 30.0, 300.0
"""Seconds without a byte of a slice, and seconds for one: 3.5 kB/s."""

PROGRESS_EVERY = 5.0
"""Seconds between two progress lines of a long transfer."""

LOOK_EVERY = 0.1
"""Seconds between two looks whether that is over."""

TOLD_AFTER = 10
"""Polls after which a message says that another process fetches: small files take less."""


class FileRequest(Struct):
    run: Digest
    file: Word
    offset: int


async def serve(mail: Mail, run: RunFolder) -> dict[str, str]:
    """Serve `spec` from this run folder. Returns the name of each damaged file -> a sentence about it;
    damaged files are not served."""
    files, spec = dict(run.files()), run_folder.spec_content(run.path) or b""
    damaged = await asyncio.to_thread(damaged_files, run)

    async def answer(sender: PeerId, request: bytes) -> bytes:
        ask = read_question(request, FileRequest)
        if ask.run != run.digest:
            raise Refused(f"this is a peer of run {run.digest[:12]}, not of {ask.run[:12]}")
        if not ask.file:
            return spec[max(0, ask.offset) :][:SLICE]
        if ask.file not in files:
            raise Refused(f"the run has no file {ask.file[:80]!r}")
        if ask.file in damaged:
            raise Refused(f"{ask.file} is damaged here")
        try:
            return _slice(files[ask.file], ask.offset)
        except OSError as error:
            raise Refused(f"{ask.file} cannot be read here: {error.strerror}") from error

    await mail.serve(Service.SPEC, answer)
    return damaged


async def mend(mail: Mail, run: RunFolder, damaged: dict[str, str], peers: Sequence[PeerId]) -> list[str]:
    """Fetch damaged files from peers that have them, and remove repaired ones from `damaged`. Returns their
    names."""
    mended = []
    for name in [*damaged]:
        with contextlib.suppress(NoPeerAnswers, OSError):  # the next call tries again
            await fetch_file(mail, peers, run, name)
            del damaged[name]
            mended.append(name)
    return mended


async def fetch(
    mail: Mail, sources: Sequence[PeerId], digest: Digest, path: Path, model: Path | None
) -> RunFolder:
    """Fetch the run's spec and all its files into the run folder `path`; files of the local folder `model`
    are copied when they are the run's.

    Raises NoPeerAnswers (no peer could give a file), Refusal (another protocol, or local files that are not
    the run's), CannotHere (the disk is too small).
    """
    run = await fetch_spec(mail, sources, digest, path)
    async with _one_at_a_time(path):
        await _fetch_files(mail, sources, run, model)
    return run


@contextlib.asynccontextmanager
async def _one_at_a_time(path: Path) -> AsyncIterator[None]:
    """Peers of this machine that join together share the run folder `path`: one of them writes into it."""
    make_folder(path)
    lock = os.open(path / FETCHING, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        for looks in itertools.count():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if looks == TOLD_AFTER:
                    say(f"another peer of {path} fetches the run's files: waiting for it")
                await asyncio.sleep(LOOK_EVERY)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # a child that was forked meanwhile holds it too
        os.close(lock)


async def _fetch_files(mail: Mail, sources: Sequence[PeerId], run: RunFolder, model: Path | None) -> None:
    files = dict(run.files())
    if model is not None:
        _take(model, run)
    missing = list(await asyncio.to_thread(damaged_files, run))
    for name in missing:
        if files[name].exists():
            say(f"{files[name]} is damaged: it is fetched again")
    _check_room(run.path, needed := sum(_left(files[name], run.expected(name)[1]) for name in missing))
    if missing:
        say(f"fetching {some(len(missing), 'file')} of the run, {volume(needed)}")
    for name in missing:
        await _Transfer(mail, run, name, files[name]).run(sources)


async def fetch_file(mail: Mail, sources: Sequence[PeerId], run: RunFolder, name: str) -> None:
    """Fetch one of the run's files unless another process has completed it. Raises NoPeerAnswers,
    OSError."""
    file = dict(run.files())[name]
    async with _one_at_a_time(run.path):
        if not await asyncio.to_thread(_is_here, file, *run.expected(name)):
            await _Transfer(mail, run, name, file).run(sources)


def is_complete(path: Path, digest: Digest) -> bool:
    """Whether the run's spec and all its files are in the run folder `path`; a file may be damaged."""
    run = _run_here(path, digest)
    return run is not None and all(file.exists() for _, file in run.files())


def _run_here(path: Path, digest: Digest) -> RunFolder | None:
    """The run, if its whole spec is in the folder."""
    try:
        run = run_folder.read(path)
    except DamagedSpec:
        return None  # it is fetched again
    return run if run is not None and run.digest == digest else None


async def fetch_spec(mail: Mail, sources: Sequence[PeerId], digest: Digest, path: Path) -> RunFolder:
    """The run's spec, fetched into the run folder `path` unless it is there, without files: enough for an
    observer. Raises as `fetch`."""
    here = run_folder.spec_content(path) if _run_here(path, digest) is not None else None
    content = here or await _fetch_spec(mail, sources, digest)
    try:
        spec = wire.decode(content, Spec)
    except wire.WireError as error:
        raise Refusal(f"the swarm's specification cannot be read ({error}): upgrade this program") from error
    if spec.protocol != PROTOCOL:
        raise Refusal(
            f"the swarm speaks protocol {spec.protocol}, this program {PROTOCOL}: install the swarm's version"
        )
    _check(spec)
    if here is not None:
        return run_folder.keep_spec(path, content)
    async with _one_at_a_time(path):
        return run_folder.keep_spec(path, content)


def _check(spec: Spec) -> None:
    """Check names and sizes of a Spec's files. Raises Refusal for those that no model and no task has."""
    strange = set(spec.files) - {*MODEL_FILES, *STARTS} | {
        name for name in spec.task if not task_files.NAME.fullmatch(name)
    }
    if strange:
        # A name such as `../../.profile` would be written outside the folder.
        raise Refusal(
            f"the run wants a file {min(strange)[:80]!r} on this machine, and no run needs that: do not"
            " join it"
        )
    for name in (*spec.files, *(TASK + name for name in spec.task)):
        most = task_files.LARGEST if name.startswith(TASK) else None if name in STARTS else LARGEST
        if (size := spec.sizes.get(name, -1)) < 0 or (most is not None and size > most):
            raise Refusal(
                f"the run wants {name} to have {size} bytes on this machine, and no run needs that: do not"
                " join it"
            )


async def ask_slice(mail: Mail, source: PeerId, ask: FileRequest) -> bytes:
    """A slice, however slowly it comes. Raises NetError."""
    return await mail.send(source, Service.SPEC, wire.encode(ask), LONGEST, PATIENCE)


async def _fetch_spec(mail: Mail, sources: Sequence[PeerId], digest: Digest) -> bytes:
    failed = []
    for source in sources:
        content = b""
        try:
            while len(content) <= LARGEST_SPEC:
                part = await ask_slice(mail, source, FileRequest(run=digest, file="", offset=len(content)))
                content += part
                if len(part) < SLICE:
                    break
        except NetError as error:
            failed.append(f"{source}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
        failed.append(f"{source}: sent other bytes than the digest names")
    for why in failed:
        if YOU in why or PRIVATE in why:
            todo = "ask the run's owner for an invite that makes members of it (`swarm invite --role ROLE`)"
            raise Refusal(f"{why.partition(': ')[2]}; {todo}")
    raise NoPeerAnswers(f"no peer gave the specification of run {digest[:12]}: {'; '.join(failed)}")


class _Part:
    """A partly fetched file on the disk, with its digest so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_folder(path.parent)
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
            error.filename = error.filename or str(self._path)  # so that the message names the full disk
            raise
        self._sha.update(piece)
        self.size += len(piece)

    def matches(self, digest: Digest, size: int) -> bool:
        """Whether the file holds exactly these bytes, and none that another process wrote."""
        return self.size == size == self._path.stat().st_size and self._sha.hexdigest() == digest

    def rename(self, path: Path) -> None:
        sync(self._path)
        self._path.rename(path)
        sync(path.parent)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `add` has raised it already
            self._file.close()


class _Transfer:
    """Fetches one file from any peer that has it."""

    def __init__(self, mail: Mail, run: RunFolder, name: str, file: Path) -> None:
        self._mail, self._run, self._name, self._file = mail, run, name, file
        self._expected, self._size = run.expected(name)

    async def run(self, sources: Sequence[PeerId]) -> None:
        """Fetch the file. Raises NoPeerAnswers when no source could give it; the part that was fetched is
        kept for the next try."""
        path, failed = _part_of(self._file), []
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
                if part.matches(self._expected, self._size):
                    part.rename(self._file)
                    return
                path.unlink()
                if not part.begun:
                    failed.append(f"{source}: sent other bytes than the digest names")
                    break
                # The part from before may be the wrong one: fetch the whole file from this source, once.
        raise NoPeerAnswers(f"no peer gave {self._name} of run {self._run.digest[:12]}: {'; '.join(failed)}")

    async def _grow(self, part: _Part, source: PeerId) -> None:
        """Fetch slices until the file has its size. Raises NetError."""
        since = reported = time.monotonic()
        while part.size < self._size:
            ask = FileRequest(run=self._run.digest, file=self._name, offset=part.size)
            piece = await ask_slice(self._mail, source, ask)
            if len(piece) != min(SLICE, self._size - part.size):
                raise NetError(f"it has {part.size + len(piece)} of {self._size} bytes")
            part.add(piece)
            if time.monotonic() - reported >= PROGRESS_EVERY:
                reported = time.monotonic()
                rate = (part.size - part.begun) / (reported - since)
                say(
                    f"{self._name}: {volume(part.size)} of {volume(self._size)}, {volume(rate)}/s,"
                    f" {duration((self._size - part.size) / rate)} left"
                )


def _part_of(file: Path) -> Path:
    return file.with_name(file.name + ".part")


def _left(file: Path, size: int) -> int:
    """Bytes of a file that are not in its part from an earlier try."""
    return size - min(size, part.stat().st_size) if (part := _part_of(file)).exists() else size


def damaged_files(run: RunFolder) -> dict[str, str]:
    """Name -> a sentence that says what is wrong with the file, and what to do."""
    found = {}
    for name, file in run.files():
        expected, size = run.expected(name)
        if not _is_here(file, expected, size):
            other = f"it is not the {size} bytes that the run began with"
            what = f"is damaged: {other}" if file.exists() else "is gone"
            found[name] = (
                f"{file} {what}. Joiners cannot have it from here: bring it back from the model's folder"
            )
    return found


def _is_here(file: Path, expected: Digest, size: int) -> bool:
    """Whether a file is complete and undamaged here: a second of CPU for a GB or two."""
    try:
        return file.stat().st_size == size and file_digest(file) == expected
    except OSError:
        return False


def _take(model: Path, run: RunFolder) -> None:
    """Copy the run's model files that a local folder has."""
    for name, expected in run.spec.files.items():
        local = model / name
        if not local.exists():
            continue
        if file_digest(local) == expected:
            copy_durably(local, run.model / name)
        elif name not in STARTS:
            # A local base may have its weights in other files: then they are fetched from a peer.
            what = "tokenizer" if "token" in name or "vocab" in name or "merges" in name else "model"
            raise Refusal(
                f"{local} is not the run's: with another {what} every group would be refused; leave --model"
                " out to use the run's"
            )


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path).free
    if free < needed:
        needs, has = (volume(size) if size < 1e9 else f"{size / 1e9:.1f} GB" for size in (needed, free))
        raise CannotHere(
            f"the run's files need {needs}, and the disk of {path} has {has} free: free some space, or name"
            " another folder with --folder"
        )


def _slice(path: Path, offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(min(max(0, offset), file.seek(0, 2)))
        return file.read(SLICE)
