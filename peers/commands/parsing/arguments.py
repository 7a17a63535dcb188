"""Resolves a command's arguments to settings, an invite and a run folder.

Everything here is offline: a wrong argument ends the command before anything slow is imported. Not handled
here: which arguments there are (peers.cli), where files of settings are (peers.commands.parsing.shipped).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from peers.commands.parsing import options, shipped
from peers.errors import Refusal, WrongUsage

if TYPE_CHECKING:
    from swarm.membership.invite import Invite
    from swarm.settings.loading import LoadedConfig

COMPLETION = 512
"""Longest completion in tokens for `swarm fit MODEL`: a worked answer to a grade-school question. The default
of `run.sampling` is the demo's."""


SHORT = {
    "model": "run.model.name",
    "upload": "peer.limits.upload",
    "download": "peer.limits.download",
    "cpu": "peer.limits.cpu",
    "nice": "peer.limits.nice",
    "memory": "peer.limits.memory",
    "gpu_memory": "peer.limits.gpu_memory",
    "disk": "peer.limits.disk",
    "hours": "peer.limits.hours",
    "battery": "peer.limits.battery",
    "others": "peer.limits.others",
    "serve": "peer.serve",
}
"""Option -> the setting that it is short for."""


def load(args: argparse.Namespace, path: Path | None) -> LoadedConfig:
    from swarm.settings import loading

    path = None if path is None else shipped.settings(path)
    short = {key: (_option(word), getattr(args, word, None)) for word, key in SHORT.items()}
    typed = {key: (option, value) for key, (option, value) in short.items() if value is not None}
    return loading.load(path, args.set, os.environ, shipped.PLACES, typed)


def _option(word: str) -> str:
    return {"battery": "--no-battery", "others": "--when-idle"}.get(word, f"--{word.replace('_', '-')}")


def load_task(args: argparse.Namespace) -> LoadedConfig:
    """The settings of `swarm task try`: a file of settings, or the defaults with a task of that name."""
    if args.task.endswith(".toml") or shipped.names_settings(args.task):
        return load(args, Path(args.task))
    if Path(args.task).exists():
        raise WrongUsage(f"{args.task} is a file or folder: data:{args.task} is the task of its rows")
    args.set = [*args.set, f"run.task.name={args.task}"]
    return load(args, None)


def refuse_run_settings(loaded: LoadedConfig) -> None:
    """Raise WrongUsage when a joining peer sets `run.*`, which come from the swarm; only `run.model.name`,
    the path of its local model, may differ."""
    for key, origin in loaded.origins.items():
        if key.startswith("run.") and origin != "default" and key != "run.model.name":
            raise WrongUsage(
                f"{origin}: {key} is the same for all peers of a run and comes with the invite; leave it out"
            )


def load_fit(args: argparse.Namespace) -> LoadedConfig:
    """The settings of a config file; for a model's name the defaults, with completions of COMPLETION
    tokens."""
    asked = Path(args.model_or_config)
    if asked.suffix == ".toml" or (shipped.names_settings(args.model_or_config) and not asked.is_dir()):
        return load(args, asked)
    named = f"run.model.name={args.model_or_config}", f"run.sampling.max_tokens={COMPLETION}"
    args.set = [*named, *args.set]
    return load(args, None)


LONGEST_NAME = 255
"""Characters of a file's name: a pasted message is none."""

LONGEST = 1 << 16
"""Characters that are read where an invite should be: a whole pasted message, not a disk."""


def given_invite(args: argparse.Namespace, pieces: Sequence[str], from_environment: bool = True) -> str:
    """The invite given to a command: its argument in `pieces`, standard input where that is `-`, the content
    of `--word-file`, or the environment variable options.WORD; empty without any. Raises WrongUsage for two
    of them, and for a file that is empty or cannot be read."""
    inherited = os.environ.pop(options.WORD, "")  # processes that this one starts do not need it
    if str(args.word_file).lower().startswith("swarm1"):
        raise WrongUsage("--word-file names a file, and this is an invite: write it into one")
    if args.word_file is not None and pieces:
        raise WrongUsage("--word-file names the invite's file: leave the invite out, or the option")
    if args.word_file is None and list(pieces) != ["-"]:
        return " ".join(pieces) or (inherited if from_environment else "")
    name = "standard input" if args.word_file is None else str(args.word_file)
    try:
        if args.word_file is None:
            text = sys.stdin.read(LONGEST)
        else:
            with open(args.word_file, errors="replace") as file:
                text = file.read(LONGEST)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise WrongUsage(f"the invite cannot be read from {name}: {why}; name its file") from error
    if not text.strip():
        raise WrongUsage(f"{name} has no invite: write what `swarm invite` prints into it")
    return text


def needed_invite(args: argparse.Namespace) -> str:
    """The invite of a command that does nothing without one. Raises WrongUsage."""
    _refuse_other_things(args.invite)
    if text := given_invite(args, args.invite):
        return text
    raise WrongUsage(
        "INVITE is required: as an argument, - for standard input, with --word-file FILE, or as"
        f" {options.WORD} in the environment"
    )


def invite_or_folder(args: argparse.Namespace) -> str:
    """The invite of a command that is about the run of a folder without one. A folder that is named comes
    before the environment."""
    _refuse_other_things(args.invite)
    return given_invite(args, args.invite, from_environment=args.folder is None)


def _refuse_other_things(pieces: Sequence[str]) -> None:
    """Raise Refusal for settings, a file or a folder in an invite's place, WrongUsage for a setting beside
    it."""
    for piece in pieces:
        if re.match(r"[+a-z_.]+=", piece):
            raise WrongUsage(f"{piece!r} is not part of an invite: did you mean --set {piece}?")
    (piece,) = pieces if len(pieces) == 1 else ("",)
    if not 0 < len(piece) <= LONGEST_NAME or piece.lower().startswith("swarm1"):
        return
    if shipped.names_settings(piece):
        raise Refusal(
            f"{piece!r} is not an invite but settings: `swarm up {piece}` runs a whole swarm by them here,"
            f" `swarm start {piece}` begins a run that prints invites"
        )
    if Path(piece).is_file():
        raise Refusal(f"{piece!r} is not an invite but a file: --word-file {piece} reads the invite in it")
    if Path(piece).is_dir():
        raise Refusal(
            f"{piece!r} is not an invite but a folder: `swarm invite --folder {piece}` prints one of a run"
        )


def read_invite(word: str, folder: Path | None) -> Invite:
    """The invite, checked. Raises InviteError."""
    import time

    from peers.build.joining import invitations
    from peers.build.run_folder import check_files

    if folder is not None:
        check_files(folder)
    return invitations.usable_invite(word, folder, time.time())


def folder_of(args: argparse.Namespace, loaded: LoadedConfig) -> Path:
    from peers.build.run_folder import check_files, default_path

    return check_files(args.folder or default_path(loaded.config.run.name))


def only_folder(args: argparse.Namespace) -> Path:
    """`--folder`, or the folder of the only run on this machine."""
    from peers.build.run_folder import check_files, default_path, no_run

    runs = default_path("any").parent
    if args.folder is not None:
        if not args.folder.is_dir():
            raise no_run(args.folder)
        return check_files(Path(args.folder))
    found = run_folders(runs)
    if len(found) == 1:
        return check_files(found[0])
    if not found:
        raise WrongUsage(f"no run on this machine (looked in {runs}): name its folder with --folder")
    names = ", ".join(path.name for path in found)
    raise WrongUsage(f"several runs on this machine ({names}): name one with --folder {runs}/...")


def run_folders(runs: Path) -> list[Path]:
    """The folders in `runs` that hold a run, also one of which a file of the specification is gone."""
    from peers.build.run_folder import COPY, SPEC

    return sorted({path.parent for name in (SPEC, COPY) for path in runs.glob(f"*/{name}")})


def load_window(args: argparse.Namespace) -> LoadedConfig:
    """Settings of a dashboard; a port among the arguments is used or fails, without a search for a free
    one."""
    if args.host is not None:
        args.set = [*args.set, f"peer.page.host={args.host}"]
    if args.port is not None and not 0 <= args.port <= 65535:
        raise WrongUsage(f"--port {args.port}: wants a whole number of at least 0 and at most 65535")
    if args.port is not None:
        args.set = [*args.set, f"peer.page.port={args.port}", "peer.page.free=false"]
    loaded = load(args, None)
    refuse_run_settings(loaded)
    return loaded
