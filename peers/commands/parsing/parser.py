"""A parser of commands that answers a wrong word with the nearest right one.

    swarm jion                   did you mean join?
    swarm join --rol sampler     did you mean --as?       among the options of `swarm join`
    swarm up demo --learners 3   did you mean --set peer.swarm.learners=3?
    swarm up demo run.seed=3     did you mean --set run.seed=3?

Standard library only until something is wrong: `--help` imports nothing slow. Not handled here: which
commands there are (peers.cli).
"""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

MEANT = {
    "run": "up",
    "train": "up",
    "demo": "up",
    "init": "start",
    "new": "start",
    "create": "start",
    "connect": "join",
    "stop": "leave",
    "quit": "leave",
    "kill": "leave",
    "end": "leave",
    "shutdown": "leave",
    "down": "leave",
    "kick": "revoke",
    "ban": "revoke",
    "block": "revoke",
    "expel": "revoke",
    "unban": "pardon",
    "continue": "resume",
    "watch": "status --watch",
    "top": "status --watch",
    "ps": "status",
    "peers": "status",
    "show": "status",
    "info": "status",
    "stats": "status",
    "page": "dashboard",
    "serve": "dashboard",
    "monitor": "dashboard",
    "compare": "plot",
    "word": "invite",
    "key": "identity",
    "diagnose": "doctor",
    "version": "--version",
    "save": "export",
    "upload": "push",
    "publish": "push",
    "check": "doctor",
    "--role": "--as",
    "--rol": "--as",
    "--dir": "--folder",
    "--path": "--folder",
    "--output": "--out",
    "--invite": "--word-file",
    "--name": "--note",
}
"""Names that other programs use -> the name here, where the command has it."""

MEANT_WITHIN = {
    "check": ("validate", "lint", "test", "verify"),
    "show": ("get", "print", "list", "ls"),
    "schema": ("keys", "explain", "docs"),
    "copy": ("init", "new", "create", "cp"),
    "install": ("join", "start", "add", "enable"),
    "try": ("run", "test", "show"),
}
"""Command within another one -> what other programs call it."""

HINTS = {
    "ls": "`swarm status` shows the run on this machine, and names them where there are several",
    "logs": "`swarm why` says what each peer here does, and where its log is",
    "--config": "name the file without it",
    "rm": "once `swarm leave` ended its peers, remove the run's folder yourself; keep its `owner.key`",
    "update": "install the newest version as you installed this one; `swarm doctor INVITE` checks it",
}
"""A word or option without an equivalent here -> advice."""
HINTS |= dict.fromkeys(("list", "runs"), HINTS["ls"]) | dict.fromkeys(("log", "tail"), HINTS["logs"])
HINTS |= dict.fromkeys(("remove", "delete", "clean", "forget"), HINTS["rm"]) | {"upgrade": HINTS["update"]}

INSTEAD = {"--name": "run.name", "--task": "run.task.name"}
"""Option -> the setting that it would be, of several with that name."""

OWN = ("join", "doctor", "status", "dashboard", "replay")
"""Commands that take settings of this peer alone: those of the run come from the swarm."""


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
    """A parser whose subcommands are such parsers too."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """As argparse does, but an unknown option is an error of the command that does not have it."""
        said = list(sys.argv[1:] if args is None else args)
        found, left = super().parse_known_args(said, namespace)
        if unknown := [word for word in left if word.startswith("-")]:
            self.error(f"there is no option {unknown[0]}{self._meant_option(unknown[0], said)}")
        if left:
            setting = "=" in left[0] and "--set" in self._options()
            meant = f": did you mean --set {shlex.quote(left[0].lstrip('+'))}?" if setting else ""
            at = ": leave out the @" if "@" in said else ""
            self.error(f"{left[0]!r} is one word too many{meant or at}")
        return found, left

    def _options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _meant_option(self, option: str, said: Sequence[str]) -> str:
        """Candidates for an unknown option: a setting of that name, an option of similar spelling, or a
        setting of similar spelling, in this order."""
        name, equals, value = option.partition("=")
        if not equals:
            after = said[said.index(option) + 1 :][:1] if option in said else []
            value = after[0] if after and not after[0].startswith("-") else "VALUE"
        return (
            self._meant_setting(name, value, nearly=False)
            or did_you_mean(name, self._options())
            or self._meant_setting(name, value, nearly=True)
        )

    def _meant_setting(self, name: str, value: str, nearly: bool) -> str:
        if "--set" not in self._options():
            return ""
        from swarm.settings.loading import SCHEMA

        keys = [INSTEAD[name]] if name in INSTEAD else SCHEMA.called(name.lstrip("-"), nearly)
        if self.prog.split()[-1] in OWN:
            own = [key for key in keys if key.startswith("peer.")]
            if keys and not own:
                return f": {keys[0]} is the same for all peers of a run, and comes from them"
            keys = own
        sets = [f"--set {shlex.quote(f'{key}={_as_number(key, value)}')}" for key in keys]
        return f": did you mean {' or '.join(sets)}?" if sets else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = "command" if action.option_strings == [] else f"value of {action.option_strings[0]}"
        known_are = f": it is one of {', '.join(known)}"
        near = did_you_mean(str(value), [*known, "--version"] if "status" in known else known)
        raise argparse.ArgumentError(None, f"{value!r} is not a {what}{near or known_are}")

    def error(self, message: str) -> NoReturn:
        """One sentence and where to read more: the usage of a command may have a dozen lines."""
        self.exit(2, f"swarm: {message}; `{self.prog} --help` says what there is\n")


def _as_number(key: str, value: str) -> str:
    """A limit with a unit, which options take, as the number that the setting is."""
    from peers.commands.parsing import options

    units = {"memory": options.size, "disk": options.size, "cpu": options.cores, "gpu_memory": options.share}
    half, _, name = key.rpartition(".")
    try:
        return units[name](value) if half == "peer.limits" and name in units else value
    except argparse.ArgumentTypeError:
        return value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`: did you mean join?`, where a known word is similar or a synonym; else nothing."""
    known = list(known)
    if "status" not in known:
        for right in (right for right, words in MEANT_WITHIN.items() if right in known and word in words):
            return f": did you mean {right}?"
    if word in HINTS and ("status" in known or word.startswith("-")):
        return f": {HINTS[word]}"
    meant = MEANT.get(word, "")
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
    it.add_argument("-v", "--verbose", action="store_true", help="also print the logs of libraries")
    return it


def sentence(about: str) -> str:
    """The description that `--help` prints of a command, from its short one."""
    return about[0].upper() + about[1:] + "."
