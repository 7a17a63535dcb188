"""A parser of commands that answers a wrong word with the nearest right one.

    swarm jion                   did you mean join?
    swarm join --rol sampler     did you mean --as?       among the options of `swarm join`
    swarm pasue                  did you mean pause?

Standard library only: `--help` imports nothing slow. Not handled here: which commands there are (peers.cli).
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

MEANT = {
    "run": "up",
    "train": "up",
    "demo": "up",
    "init": "start",
    "new": "start",
    "connect": "join",
    "stop": "leave",
    "quit": "leave",
    "watch": "status",
    "ps": "status",
    "page": "dashboard",
    "save": "export",
    "upload": "push",
    "publish": "push",
    "check": "doctor",
    "--role": "--as",
    "--rol": "--as",
    "--dir": "--folder",
    "--path": "--folder",
    "--output": "--out",
    "--name": "--set run.name=NAME",
    "--lr": "--set run.optimizer.lr=RATE",
    "--task": "--set run.task.name=NAME",
}
"""What other programs call it -> what it is called here, where the command has it."""


SHARED: dict[str, dict[str, Any]] = {
    "folder": {
        "type": Path,
        "metavar": "DIR",
        "help": "the run's folder (default: in the state folder of this user)",
    },
    "set": {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "help": "a setting, such as run.seed=3",
    },
    "model": {"metavar": "MODEL", "help": "short for --set run.model.name=MODEL: a Hub id or a folder"},
    "json": {"action": "store_true", "help": "data as JSON"},
}
"""Options of several commands; a command has those that it uses."""


class CommandParser(argparse.ArgumentParser):
    """Its subcommands are such parsers too."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """As argparse does, but an unknown option is an error of the command that does not have it."""
        found, left = super().parse_known_args(args, namespace)
        if unknown := [word for word in left if word.startswith("-")]:
            names = [name for action in self._actions for name in action.option_strings]
            self.error(f"there is no option {unknown[0]}{did_you_mean(unknown[0].partition('=')[0], names)}")
        if left:
            self.error(f"{left[0]!r} is one word too many")
        return found, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = "command" if action.option_strings == [] else f"value of {action.option_strings[0]}"
        known_are = f"it is one of {', '.join(known)}"
        raise argparse.ArgumentError(
            None, f"{value!r} is no {what}{did_you_mean(str(value), known) or f': {known_are}'}"
        )

    def error(self, message: str) -> NoReturn:
        """One sentence and where to read more: the usage of a command may have a dozen lines."""
        self.exit(2, f"swarm: {message}; `{self.prog} --help` says what there is\n")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`: did you mean join?`, where one of the known words is near, or means the same; else nothing."""
    known = list(known)
    meant = MEANT.get(word, "")
    # a setting is no option of any command, and every command that takes settings has --set
    if meant and meant.split()[0] in known:
        return f": did you mean {meant}?"
    bare = {name.lstrip("-"): name for name in known}  # two dashes are alike in all options
    near = difflib.get_close_matches(word.lstrip("-"), bare, 1)
    return f": did you mean {bare[near[0]]}?" if near else ""


def add_command(
    commands: Any, name: str, function: Any, about: str, example: str, takes: Sequence[str]
) -> argparse.ArgumentParser:
    """A command with those of the SHARED options that it `takes`."""
    it: argparse.ArgumentParser
    it = commands.add_parser(name, help=about, description=sentence(about), epilog=f"example: {example}")
    it.set_defaults(command=function)
    for option in takes:
        it.add_argument(f"--{option}", **SHARED[option])
    it.add_argument("-v", "--verbose", action="store_true", help="also what the parts beneath say")
    return it


def sentence(about: str) -> str:
    """What `--help` says of a command that is about this."""
    return about[0].upper() + about[1:] + "."
