"""`swarm invite`: prints an invite as text, JSON or a QR code, gives one a later expiry, or lists those of
this folder.

The invite alone goes to stdout, so that `swarm invite | swarm join -` works; everything else goes to stderr.
Not handled here: which folder may make which invite (peers.build.joining.invitations).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dashboard.text import duration
from peers.build.joining import invitations, issued_invites
from peers.build.joining.issued_invites import IssuedInvite
from peers.console import Listing
from peers.errors import WrongUsage, drawn, say
from peers.runtime import peer_folder
from peers.runtime.membership import invite_quota
from swarm.core.revocation import Revocations
from swarm.limits import cut
from swarm.membership import invite as invites
from swarm.protocol import Role
from swarm.types import PeerId


def make(
    folder: Path, role: Role, uses: int, seconds: float | None, note: str, as_json: bool, as_qr: bool
) -> int:
    """Print a new invite. Raises Refusal where this folder may not make it."""
    note = cut(note)  # before the invite is made: then it is printed and on the list
    text = invitations.invite(folder, role, seconds, uses)
    _print(folder, text, note, {"invite": text, "role": role.value}, as_json, as_qr)
    return 0


def renew(folder: Path, old: str, seconds: float | None, note: str, as_json: bool, as_qr: bool) -> int:
    """Print an invite again with a later expiry, or keep it. Raises Refusal, InviteError, and WrongUsage for
    an expiry of `seconds` where memberships do not end with the invite."""
    given = invites.read(old, 0.0).delegate
    if seconds is not None and given is not None and not given.delegation.final:
        raise WrongUsage(
            "memberships of this invite are renewed and do not end with it: leave --expires out, or make a"
            " new invite with it"
        )
    text = invitations.renew(folder, old, seconds)
    if text is None:
        kept = "the invite is kept: memberships of this folder's peers, and of others, are renewed with it"
        say(f"{kept} within an hour while they run")
    else:
        _print(folder, text, cut(note), {"invite": text}, as_json, as_qr)
    return 0


def listed(folder: Path, as_json: bool) -> int:
    """Print the invites of this folder. Raises Refusal where it holds no run."""
    run = invitations.run_of(folder)
    invites_here, out = issued_invites.issued_invites(run), run.revocations
    left = {one.text: _left(one, invite_quota.used(run.path)) for one in invites_here}
    if as_json:
        plain = [_plain(one, _is_revoked(one, out), left[one.text]) for one in invites_here]
        print(json.dumps(plain, indent=2))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("invite", "role", "made", "ends", "uses", "note"):  # 58 columns of 80 before the note
        table.add_column(column, no_wrap=column != "note")
    for one in invites_here:
        table.add_row(
            f"…{one.text[-8:]}",
            one.role.value if one.role else "what fits",
            _time(one.made, "%Y-%m-%d"),
            "revoked" if _is_revoked(one, out) else _end(one),
            "any" if (uses := left[one.text]) is None else str(uses),
            Text(one.note),
        )
    Listing().print(table)
    say("`swarm invite --list --json` prints the invites in full")
    return 0


def _print(folder: Path, text: str, note: str, said: dict[str, str], as_json: bool, as_qr: bool) -> None:
    if as_qr:
        invites.qr_code(text, error="l").terminal(drawn(sys.stderr), compact=True)
    print(json.dumps(said) if as_json else text)
    try:
        issued_invites.keep(folder, text, note)
    except OSError as error:
        say(f"the invite is not on this folder's list: {error}")
    if set(peer_folder.running(folder)) - {"up"}:
        return
    again = f"start a peer of the run here again (`swarm start` or `swarm join`, --folder {folder})"
    if (age := invitations.since_last_beat(folder)) is None:
        why = "no peer answers this invite now, as far as this folder knows"
    else:
        why = (
            f"no peer of this folder runs, and the last heartbeat of another was {duration(age)} ago: if all"
            " have left since, as at the end of a run, no peer answers this invite"
        )
    say(f"{why}: {again}")


def _end(issued: IssuedInvite) -> str:
    if issued.expires == invites.FOREVER:
        return "never"
    return "expired" if issued.expires < time.time() else _time(issued.expires, "%Y-%m-%d %H:%M")


def _is_revoked(issued: IssuedInvite, out: Revocations) -> bool:
    given = invites.read(issued.text, 0.0).delegate
    return given is not None and out.has_invite(given.delegation.key)


def _left(issued: IssuedInvite, taken: Mapping[str, Collection[PeerId]]) -> int | None:
    """Remaining uses of an invite, as this folder counts them; None: unlimited."""
    given = invites.read(issued.text, 0.0).delegate
    if given is None or not given.delegation.uses:
        return None
    return given.delegation.uses - len(taken.get(given.delegation.key.hex(), ()))


def _time(at: float, form: str) -> str:
    return time.strftime(form, time.localtime(at))


def _plain(issued: IssuedInvite, revoked: bool, left: int | None) -> dict[str, object]:
    role = issued.role.value if issued.role else None
    return {
        "invite": issued.text,
        "role": role,
        "made": issued.made,
        "expires": issued.expires or None,
        "note": issued.note,
        "revoked": revoked,
        "uses_left": left,
    }
