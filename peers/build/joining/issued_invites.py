"""The invites that were made in a run's folder, with the notes of their maker.

    `swarm invite` --keep--> invites/made, a line of JSON each --issued_invites--> `swarm invite --list`

The file holds secrets (an invite may make members), and only its owner can read it. It is a help, not a
register: an invite that is missing here works all the same, and a line that cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from peers.build.run_folder import RunFolder
from swarm.limits import UNREADABLE
from swarm.membership import invite as invites
from swarm.protocol import Role
from swarm.storage.durable import adding_lines
from swarm.types import Struct


class IssuedInvite(Struct):
    """An invite, and its maker's note."""

    text: str = msgspec.field(name="word")
    made: float
    """Unix seconds."""
    note: str = ""
    role: Role | None = None
    expires: int = invites.FOREVER
    """Unix seconds; 0 is never."""


def keep(folder: Path, text: str, note: str) -> None:
    """Add an invite to the list. Raises OSError."""
    path = _list(folder)
    path.parent.mkdir(exist_ok=True)
    line = msgspec.json.encode(_described(text, time.time(), note))
    with adding_lines(path) as add:
        add(line)


def issued_invites(run: RunFolder) -> list[IssuedInvite]:
    """All invites of this folder, the oldest first: of its last start, or by which it was invited, and of
    `swarm invite`; each once, with its last note. Raises OSError."""
    note = "printed by `swarm start`" if run.is_owners else "by which this folder was invited"
    found: dict[str, IssuedInvite] = {}
    for role in Role:
        path = run.invite_path(role)
        with contextlib.suppress(FileNotFoundError, ValueError, invites.InviteError):
            text = path.read_text().strip()
            found[text] = _described(text, path.stat().st_mtime, note)
    with contextlib.suppress(FileNotFoundError):
        for line in _list(run.path).read_bytes().splitlines():
            with contextlib.suppress(*UNREADABLE):  # the last one, after a crash
                made = msgspec.json.decode(line, type=IssuedInvite)
                found[made.text] = made
    return sorted(found.values(), key=lambda one: one.made)


def _described(text: str, made: float, note: str) -> IssuedInvite:
    """Raises InviteError."""
    invite = invites.read(text, 0.0)
    return IssuedInvite(text=text, made=made, note=note, role=invite.role, expires=invite.expires)


def _list(folder: Path) -> Path:
    return folder / "invites" / "made"
