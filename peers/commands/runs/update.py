"""`swarm update`: says whether a run needs another version of this program, and the line that installs one.

It installs nothing. A run states its protocol in its specification and in its invites; settings that this
program does not know come from another version (swarm.settings.loading).
"""

from __future__ import annotations

import time
from pathlib import Path

from peers.build import run_folder
from peers.errors import Refusal
from swarm import PROTOCOL, __version__, extras
from swarm.membership import invite as invites
from swarm.membership.invite import InviteError, InviteProblem
from swarm.protocol import JOINING
from swarm.settings import loading

ME = f"{extras.DISTRIBUTION} {__version__} (protocol {PROTOCOL})"


def update(folder: Path | None, word: str) -> int:
    """Print whether this program can take part in the run of this invite, or of this folder. Raises Refusal
    with the next step when it cannot."""
    why = _of_word(word) if word else _of_folder(folder)
    if why:
        raise Refusal(why)
    print(f"{ME} is a version that this run takes; the newest there is: {extras.upgrade()}")
    return 0


def _of_word(word: str) -> str:
    try:
        invites.read(word, time.time())
    except InviteError as error:
        if error.kind is not InviteProblem.PROTOCOL:
            raise
        return f"{error}. This is {ME}; {_next()}"
    return ""


def _of_folder(folder: Path | None) -> str:
    assert folder is not None
    run = run_folder.opened(folder)
    if run.spec.protocol != PROTOCOL:
        age = "a newer" if run.spec.protocol > PROTOCOL else "an older"
        return f"run {run.name} speaks protocol {run.spec.protocol}, that of {age} version: {ME}; {_next()}"
    unknown = loading.unknown(run.spec.run)
    roles = [role.value for role in JOINING if any(loading.matters(key, role) for key in unknown)]
    if roles:
        what = f"settings of run {run.name} that this program does not know: {', '.join(unknown)}"
        return f"{what}. It can be no {' or '.join(roles)} there: this is {ME}; {_next()}"
    return ""


def _next() -> str:
    return (
        f"`{extras.upgrade()}` takes the newest version, and `swarm --version` where its seed runs says which"
        " one it has"
    )
