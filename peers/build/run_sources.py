"""The files from which a run was made on this machine: whether they are unchanged since.

    [run] --write--> sources         when the run is made: name -> digest, size and time of each file
    [run], sources --check-->        when it is started again: a file that was changed is refused

A run carries its own copies (task/, model/, genesis), and works with these alone: a missing file is no
obstacle; an edited one would be ignored silently. Files of unchanged size and time are not read again, since
weights are large. Not handled: a model or data set of the Hub, which a commit pins.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from peers.build.model import base_model
from peers.build.run_folder import MODEL_FILES, SOURCES, RunFolder, file_digest
from peers.errors import Refusal, say
from peers.runtime.peer_folder import running
from swarm.frames import wire
from swarm.frames.grammar import some
from swarm.learn.files import peft_folder
from swarm.settings.config import Run
from swarm.storage.durable import Torn, read_checked, write_checked
from swarm.tasks import evaluation_sets
from swarm.tasks.data import task_files
from swarm.tasks.rewards import rewards
from swarm.types import Digest, Struct

MOST = 100_000
"""Files that are compared: a data folder with more is compared in part."""

SHOWN = 12
"""Digits of a digest that are shown."""


class SourceFile(Struct):
    digest: Digest
    size: int = -1
    """Bytes; -1: not known."""
    time: int = -1
    """When it was changed last, in nanoseconds; -1: not known."""


class Sources(Struct, tag="sources"):
    files: Annotated[dict[Annotated[str, Meta(max_length=4096)], SourceFile], Meta(max_length=MOST)]
    """Name, as the settings have it -> its digest, size and time."""


def write(path: Path, run: Run) -> None:
    """Record in the folder of a new run the files that it is made from. Raises OSError."""
    files = {name: _source(file, file_digest(file)) for name, file in _here(run).items()}
    write_checked(path / SOURCES, wire.encode(Sources(files=files)))


def check(run: RunFolder, asked: Run) -> None:
    """Report missing files of these settings. Raises Refusal for one that has changed since the run began;
    while peers of this folder run, after a restart of the seed, a message replaces the refusal."""
    here = _here(asked)
    begun = _begun(run, asked, here)
    what, todo = _changed(begun, here)
    if what and set(running(run.path)) - {"up"}:
        say(f"{what}: its peers go on with what it began with")
    elif what:
        raise Refusal(f"{what}: {todo}, or name another folder with --folder")
    if gone := [name for name in begun if name not in here]:
        more = f" and {some(len(gone) - 1, 'other file')}" if len(gone) > 1 else ""
        say(f"{gone[0]}{more} cannot be found from {Path.cwd()}: the run goes on with the copy in its folder")


def _changed(begun: Mapping[str, SourceFile], here: Mapping[str, Path]) -> tuple[str, str]:
    """A file that has changed since the run began, and what to do; empty where none has."""
    for name, file in here.items():
        if (then := begun.get(name)) is None:
            return f"{name} was not there when this run began", "take it away"
        if _source(file, then.digest) != then and (now := file_digest(file)) != then.digest:
            digests = f"digest {now[:SHOWN]}, then {then.digest[:SHOWN]}"
            return f"{name} is not what this run began with ({digests})", "restore it"
    return "", ""


def _here(run: Run) -> dict[str, Path]:
    """Name -> place of each file that the settings name, and of each in a folder that they name: those that
    are there."""
    found = dict(task_files.named(run.task))
    for one in evaluation_sets.settings(run).values():
        found |= task_files.named(one)
    if run.model.name not in base_model.MADE and not base_model.from_hub(run):
        folder = base_model.folder(run)
        names = (*MODEL_FILES, *sorted(file.name for file in folder.glob("*.safetensors")))
        found |= {f"{run.model.name}/{name}": folder / name for name in names}
    if run.model.adapter and (adapter := Path(run.model.adapter).expanduser()).is_dir():
        names = (peft_folder.CONFIG, peft_folder.VALUES)
        found |= {f"{run.model.adapter}/{name}": adapter / name for name in names}
    return dict(islice(((name, file) for name, file in found.items() if file.is_file()), MOST))


def _begun(run: RunFolder, asked: Run, here: Mapping[str, Path]) -> dict[str, SourceFile]:
    """The files that the run was made from; for a folder of an older version, those of its specification and
    the rest as they are now."""
    path, spec = run.path / SOURCES, run.spec
    try:
        return wire.decode(read_checked(path), Sources).files
    except FileNotFoundError:
        pass
    except (Torn, wire.WireError) as error:
        say(f"{path} is damaged ({error}): not every file is compared with what the run began with")
    told = {f"{asked.model.name}/{name}": digest for name, digest in spec.files.items()}
    packed = rewards.packed(asked.task.rewards)
    told |= {place: spec.task[name] for place, name in packed.items() if name in spec.task}
    return {
        name: SourceFile(digest=told[name]) if name in told else _source(file, Digest(""))
        for name, file in here.items()
    }


def _source(file: Path, digest: Digest) -> SourceFile:
    stat = file.stat()
    return SourceFile(digest=digest, size=stat.st_size, time=stat.st_mtime_ns)
