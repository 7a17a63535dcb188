"""`swarm forget`: removes the files of a run from this machine.

Only files that peers, seeds and `swarm up` write are removed, by name: a folder given with --folder may hold
other files. The run's `owner.key` stays unless its removal is requested, since no other machine has it. Not
handled here: caches shared with other runs (models of the Hub).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from peers.build import run_folder
from peers.commands.parsing import arguments
from peers.errors import CannotHere, WrongUsage, say
from peers.runtime import peer_folder
from peers.runtime.limits import machine_use
from swarm.storage.durable import DRAFT


def forget(folder: Path, with_key: bool, agreed: Callable[[str], bool]) -> int:
    """Remove the files of this folder's run. `agreed` is called with a description of them. Raises
    WrongUsage, CannotHere, OSError."""
    if not any((folder / name).exists() for name in (run_folder.SPEC, run_folder.COPY)):
        raise WrongUsage(f"{folder} is not a run folder: nothing is removed")
    if running := peer_folder.running(folder):
        raise CannotHere(
            f"{', '.join(running)} of {folder} run: `swarm leave --folder {folder}` ends them; nothing is"
            " removed"
        )
    every = (*run_folder.FILES, *([run_folder.OWNER_KEY] if with_key else []))
    names = [name for each in every for name in (each, each + DRAFT) if (folder / name).exists()]
    sizes = {name: _size(folder / name) for name in names}
    listed = ", ".join(f"{name} ({_bytes(size)})" for name, size in sizes.items())
    if not agreed(f"{folder}: {listed}"):
        say("nothing is removed")
        return 0
    # the specification last: a folder that was removed half is still one of a run
    for name in sorted(names, key=lambda name: name in (run_folder.SPEC, run_folder.COPY)):
        _remove(folder / name)
    kept = sorted(path.name for path in folder.iterdir())
    if not kept:
        folder.rmdir()
    say(
        f"removed {_bytes(sum(sizes.values()))} of {folder}: {', '.join(names)}"
        + (f"; {', '.join(kept)} stays" if kept else ""),
    )
    return 0


def folder_of(run: str) -> Path:
    """The folder of a run on this machine by its folder's name, its own name, its digest or the first 12
    digits of that. Raises WrongUsage."""
    runs = run_folder.default_path("any").parent
    found = [folder for folder in arguments.run_folders(runs) if run in _names(folder)]
    if len(found) != 1:
        several = f"several runs on this machine are called {run}" if found else f"no run {run} is here"
        raise WrongUsage(f"{several} (looked in {runs}): name its folder with --folder")
    return run_folder.check_files(found[0])


def _names(folder: Path) -> tuple[str, ...]:
    """Names that a user may give for the run of this folder; a damaged one has its folder's name alone."""
    try:
        run = run_folder.read(folder)
    except run_folder.DamagedSpec:
        run = None
    if run is None:
        return (folder.name,)
    # not its settings: those of another version may be none that this program reads
    return folder.name, str(run.spec.run.get("name", "")), run.digest, run.digest[:12]


def ask(what: str) -> bool:
    """Ask a person whether that may be removed."""
    say(f"this removes {what}")
    if not sys.stdin.isatty():
        raise WrongUsage("no terminal to ask: add --yes")
    print("go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _size(path: Path) -> int:
    return machine_use.folder_size(path) if path.is_dir() else 512 * path.lstat().st_blocks


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
