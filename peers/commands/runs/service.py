"""`swarm service`: a unit of systemd's for this user, which keeps a peer running over logouts and restarts.

    a join or start, as typed --install--> ~/.config/systemd/user/swarm-NAME.service, and two lines to run
    NAME, or the only one     --remove---> the unit is gone, and one line to run

Nothing is started or stopped here: the printed lines do that. The unit runs the given command line in the
folder where it was given, and restarts it after a bug of ours alone. An invite is a secret: it is in a file
of its own beside the unit, which only this user can read, and in no command line. Not handled here: units for
all of a machine (deploy/swarm@.service), other systems than Linux.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peers.commands.parsing import arguments
from peers.commands.parsing.parser import add_command, sentence
from peers.errors import CannotHere, WrongUsage, say
from swarm import extras

MARK = "# written by `swarm service install`\n"
"""First line of our units: no other file is removed."""

ABOUT = "Description=Peer of the swarm run in {folder}\n"

UNIT = """{mark}[Unit]
{about}
[Service]
Type=exec
WorkingDirectory={here}
{word}ExecStart={line}
# The peer finishes its group or step and leaves; what it has started lives until it has.
KillMode=mixed
TimeoutStopSec={patience:.0f}
SuccessExitStatus=129 130 143
# 1 is a bug of ours; other exit codes need a person.
Restart=no
RestartForceExitStatus=1
RestartSec=30
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""

KEPT = ("join", "start")
"""Commands that go on until they are asked to leave."""


def add(commands: Any, parse: Callable[[Sequence[str]], argparse.Namespace]) -> None:
    """Add `swarm service`; `parse` understands a whole line of `swarm`."""
    about = "keep a peer running on this machine after logouts and reboots"
    example = "swarm service install join swarm1... --as sampler"
    outer = commands.add_parser(
        "service", help=about, description=sentence(about), epilog=f"example: {example}"
    )
    outer.set_defaults(command=lambda args: outer.error("install or remove?"), verbose=False)
    inner = outer.add_subparsers(title="commands", metavar="COMMAND")
    about = "write a systemd unit that runs a `join` or `start`"
    it = add_command(
        inner, "install", lambda args: install(args.line, args.folder, parse), about, example, ("folder",)
    )
    it.add_argument(
        "line", metavar="LINE", nargs=argparse.REMAINDER, help="join or start, with all its arguments"
    )
    about = "remove such a unit and keep the run's folder"
    it = add_command(
        inner, "remove", lambda args: remove(args.name), about, "swarm service remove swarm-demo", ()
    )
    it.add_argument("name", metavar="NAME", nargs="?", help="the unit's (default: the only one)")


def install(
    line: Sequence[str], folder: Path | None, parse: Callable[[Sequence[str]], argparse.Namespace]
) -> int:
    """Write the unit and print how to start it. Returns an exit code. Raises CannotHere where there is no
    systemd or the unit is not this folder's, WrongUsage and InviteError for a line that could not run."""
    _need_systemd()
    if not line or line[0] not in KEPT:
        raise WrongUsage("name what the service runs: `swarm service install join swarm1...`, or start")
    args = parse(line)
    extras.need(extras.PEER)
    from peers.runtime.signals import LEAVE_PATIENCE
    from swarm.storage.durable import write_durably

    invite_text = _invite(args)
    named = args.folder or getattr(args, "adopt", None) or folder
    folder = (named or _default_folder(args, invite_text)).absolute()
    unit = _units() / f"swarm-{re.sub(r'[^A-Za-z0-9_.-]', '-', folder.name)}.service"
    command = [sys.executable, "-P", "-m", "peers.cli", *line]
    if invite_text and args.word_file is None:
        command = [each for each in command if each not in args.invite]
        command[5:5] = ["--word-file", str(_invite_file(unit))]
    if args.folder is None and getattr(args, "adopt", None) is None:
        options_end = command.index("--") if "--" in command else len(command)
        command[options_end:options_end] = ["--folder", str(folder)]
    about = ABOUT.format(folder=_path(str(folder)))
    if unit.exists() and not _ours(unit):
        raise CannotHere(f"{unit} is another program's: name another folder with --folder")
    if unit.exists() and about.encode() not in unit.read_bytes():
        raise CannotHere(
            f"{unit} runs a peer of another folder, and units are called by the last part of theirs: name a"
            f" folder that ends otherwise with --folder, or `swarm service remove {unit.stem}` first"
        )
    unit.parent.mkdir(parents=True, exist_ok=True)
    ends = f"# The invite ends with …{invite_text[-8:]}.\n" if invite_text else ""
    text = UNIT.format(
        mark=MARK,
        about=about,
        patience=LEAVE_PATIENCE,
        here=_path(os.getcwd()),
        word=ends,
        line=" ".join(map(_quoted, command)),
    )
    replaced = _replaced(unit, text) if unit.exists() else ""
    if invite_text and args.word_file is None:
        write_durably(_invite_file(unit), invite_text.encode(), mode=0o600)
    write_durably(unit, text.encode(), mode=0o600)
    if replaced:
        say(replaced)
    print(unit)
    say(
        "run these: the first starts it now and with every login, the second also without a login",
    )
    print(f"systemctl --user daemon-reload && systemctl --user enable --now {unit.name}")
    print("loginctl enable-linger")
    return 0


def remove(name: str | None) -> int:
    """Remove the unit and its link. Returns an exit code. Raises CannotHere, WrongUsage."""
    _need_systemd()
    installed = {unit.stem: unit for unit in sorted(_units().glob("swarm-*.service")) if _ours(unit)}
    asked = name.removesuffix(".service") if name is not None else next(iter(installed), "")
    if asked not in installed or (name is None and len(installed) > 1):
        there = ", ".join(installed) or "none"
        raise WrongUsage(f"name the service to remove: installed by `swarm service` in {_units()}: {there}")
    unit = installed[asked]
    (unit.parent / "default.target.wants" / unit.name).unlink(missing_ok=True)
    unit.unlink()
    _invite_file(unit).unlink(missing_ok=True)
    say("run this: it lets the peer finish and leave")
    print(f"systemctl --user stop {unit.name}; systemctl --user daemon-reload")
    return 0


def _need_systemd() -> None:
    if sys.platform != "linux" or shutil.which("systemctl") is None:
        raise CannotHere(
            "a service is a unit of systemd's, which this machine has not: run the line in a terminal that"
            " stays, such as tmux, or have this system's own services run it"
        )


def _invite(args: argparse.Namespace) -> str:
    """The invite of the line, without what else was pasted; empty where it needs none. Raises InviteError,
    WrongUsage."""
    if not hasattr(args, "invite"):
        return ""
    from swarm.membership import invite

    invite_text = invite.clean(arguments.needed_invite(args))
    arguments.read_invite(invite_text, args.folder)
    return invite_text


def _invite_file(unit: Path) -> Path:
    return unit.with_suffix(".word")


def _default_folder(args: argparse.Namespace, invite_text: str) -> Path:
    """Where the line keeps its run. Raises WrongUsage."""
    if invite_text:
        from peers.build.run_folder import default_path
        from swarm.membership import invite

        return default_path(invite.read(invite_text, 0.0).run[:12])
    if args.config is None:
        raise WrongUsage("name a file of settings, such as private-lab, or a folder with --adopt")
    return arguments.folder_of(args, arguments.load(args, args.config))


def _units() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "systemd" / "user"


def _ours(unit: Path) -> bool:
    try:
        return unit.read_bytes().startswith(MARK.encode())
    except OSError:  # a link to nothing, or not for this user to read: we wrote no such file
        return False


def _replaced(unit: Path, text: str) -> str:
    """The warning where the folder's unit is replaced."""
    before = unit.read_text(errors="replace")
    if before == text:
        return ""
    line = "".join(re.findall(r'(?m)^ExecStart=.*"peers\.cli" (.*)$', before))
    line += "".join(re.findall(r"(?m)^# The invite ends with (….*)\.$", before))
    shown = re.sub(r"[A-Za-z0-9]{32,}", lambda word: f"…{word[0][-8:]}", line)  # an invite is a secret
    return (
        f"this replaces the line that {unit.name} ran until now: {shown}\n"
        f"a peer that runs by it goes on until `systemctl --user restart {unit.name}`; for a second peer"
        " beside it name another folder with --folder, since a folder has one unit"
    )


def _quoted(word: str) -> str:
    """An argument of ExecStart as systemd reads it (systemd.service(5), systemd.unit(5)): quoted, and neither
    a variable nor a specifier."""
    escaped = _in_a_line(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'


def _path(path: str) -> str:
    """A folder at the end of a line, where systemd takes a backslash for a sign that the line goes on, and
    drops blanks: a slash after these keeps them."""
    return _in_a_line(path) + "/" * path.endswith(("\\", " "))


def _in_a_line(text: str) -> str:
    """A text in a line of a unit, where it is no specifier. Raises WrongUsage for what would end the line, or
    have systemd ignore it."""
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", text):
        raise WrongUsage(
            f"{text!r} has a line break or another letter that a unit cannot hold: give it without, such as"
            " in a file of settings, or under another name"
        )
    return text.replace("%", "%%")
