"""`swarm invite`: prints a word that invites to a run, as text, JSON or a QR code, gives one a later end, or
lists those that this folder has.

A word goes to stdout alone, so that `swarm join $(swarm invite)` works; what is said of it goes to stderr.
Not handled here: who may make which word (peers.build.invitations).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from peers.build import invitations, made_words
from peers.build.made_words import Word
from peers.runtime import peer_folder
from swarm import invite as invites
from swarm.protocol import Role


def make(folder: Path, role: Role, seconds: float | None, note: str, as_json: bool, as_qr: bool) -> int:
    """Print a new word. Raises Refusal where this folder may not make it."""
    word = invitations.invite(folder, role, seconds)
    _print(folder, word, note, {"invite": word, "role": role.value}, as_json, as_qr)
    return 0


def renew(folder: Path, old: str, seconds: float | None, note: str, as_json: bool, as_qr: bool) -> int:
    """Print a word again with a later end, or keep it. Raises Refusal, InviteError."""
    word = invitations.renew(folder, old, seconds)
    if word is None:
        kept = "the word is kept: memberships of this folder's peers, and of others, are renewed with it"
        print(f"{kept} within an hour while they run", file=sys.stderr)
    else:
        _print(folder, word, note, {"invite": word}, as_json, as_qr)
    return 0


def listed(folder: Path, as_json: bool) -> int:
    """Print what words this folder has. Raises Refusal where it holds no run."""
    words = made_words.words(invitations.run_of(folder))
    if as_json:
        print(json.dumps([_plain(word) for word in words], indent=2))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("made", "role", "ends", "note", "word"):
        table.add_column(column, no_wrap=column != "note")
    for word in words:
        table.add_row(
            _minute(word.made),
            word.role.value if word.role else "what fits",
            _end(word),
            word.note,
            f"…{word.word[-8:]}",
        )
    Console().print(table)
    print("`swarm invite --list --json` prints the words themselves", file=sys.stderr)
    return 0


def _print(folder: Path, word: str, note: str, said: dict[str, str], as_json: bool, as_qr: bool) -> None:
    if as_qr:
        invites.qr_code(word, error="l").terminal(sys.stderr, compact=True)
    print(json.dumps(said) if as_json else word)
    try:
        made_words.keep(folder, word, note)
    except OSError as error:
        print(f"the word is not on the list of this folder's words: {error}", file=sys.stderr)
    if not invitations.answers(folder) and not set(peer_folder.running(folder)) - {"up"}:
        print(
            "nobody answers to this invite now, as far as this folder knows: start a peer of the run here"
            f" again (`swarm start` or `swarm join`, --folder {folder})",
            file=sys.stderr,
        )


def _end(word: Word) -> str:
    if word.expires == invites.FOREVER:
        return "never"
    return _minute(word.expires) + (" (over)" if word.expires < time.time() else "")


def _minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _plain(word: Word) -> dict[str, object]:
    role = word.role.value if word.role else None
    return {
        "invite": word.word,
        "role": role,
        "made": word.made,
        "expires": word.expires or None,
        "note": word.note,
    }
