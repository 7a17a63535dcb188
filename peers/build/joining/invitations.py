"""Invites to a run: read when a peer joins, kept in its folder, and made from there for others.

    text --usable_invite--> Invite --keep--> invites/<role>, where it may make members
    owner's key, or a kept invite; peers seen here --invite--> an invite with live addresses
    invite --renew--> with the owner's key: the same with a later expiry; elsewhere: kept, and memberships

Any peer's folder makes invites for roles without membership. Not handled here: the encoding of an invite
(swarm.membership.invite), renewal of memberships (peers.runtime.membership.renewal).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from peers.build.run_folder import RunFolder, default_path, read
from peers.errors import Refusal
from peers.runtime.membership import contacts
from peers.runtime.membership.contacts import Contact
from peers.runtime.peer_folder import MEMBERSHIP, membership, peer_of, running
from swarm.core.audits.auditing import NOTHING_REPLAYED
from swarm.core.membership import is_delegated
from swarm.membership import invite as invites
from swarm.membership.identity import verify
from swarm.membership.invite import Invite, InviteError, InviteProblem
from swarm.net.libp2p.listening import Scope, scope_of
from swarm.protocol import ROLES, Role
from swarm.settings.config import Listen
from swarm.storage.durable import write_durably
from swarm.types import PeerId

LIVE = 600.0
"""Seconds since its last heartbeat in which a peer counts as live: ten times the delay with which a running
peer writes it down."""


def invite(path: Path, role: Role, seconds: float | None = None, uses: int = 0) -> str:
    """`swarm invite`: a new invite with the addresses of live peers. Raises Refusal when this folder may not
    make it, or knows no peer, and where the role has nothing to do."""
    run = run_of(path)
    if role is Role.AUDITOR and run.settings.sampling.quantized:
        raise Refusal(f"an auditor has no work in this run: {NOTHING_REPLAYED}")
    return run.invite(role, _addresses(run), seconds, uses)


def renew(path: Path, word: str, seconds: float | None = None) -> str | None:
    """`swarm invite --renew`: the same invite with a later expiry where the owner's key is. Elsewhere the
    invite is kept, for memberships of this folder's peers and of others, and the result is None. Raises
    Refusal, InviteError."""
    run = run_of(path)
    old = invites.read(word, 0.0 if run.is_owners else time.time())
    if old.delegate is None or not _is_of(run, old):
        raise Refusal("this invite makes no members of this run, so its expiry does not matter")
    if run.revocations.has_invite(old.delegate.delegation.key):
        raise Refusal("this invite was revoked by the run's owner: `swarm invite` makes a new one")
    if not run.is_owners:
        if seconds is not None:
            raise Refusal(f"{path} has no owner.key, which is needed to change an invite's expiry")
        if old.uses:
            raise Refusal(
                "an invite for a number of uses makes members only in the folder with the run's owner.key"
            )
        if not keep(run, old, word):
            raise Refusal(
                "the invite kept here does not expire earlier: ask the run's owner for a longer one"
            )
        return None
    until = int(time.time() + (invites.LIFETIME if seconds is None else seconds))
    if until < old.expires:
        raise Refusal("this invite already expires later than that: `swarm revoke INVITE` ends it")
    delegate = invites.lengthen(run.owner(), run.name, old.delegate, until)
    return invites.make(run.digest, _addresses(run), old.role, until, delegate)


def keep(run: RunFolder, invite: Invite, word: str) -> bool:
    """Keep an invite that makes members, unless the one kept for its role lasts as long. Raises OSError."""
    if invite.delegate is None or invite.role is None or run.is_owners or not _is_of(run, invite):
        return False
    if invite.uses:
        return False  # it makes claims, not members
    here = run.given(invite.role)
    if here is not None and here.delegation.expires >= invite.expires:
        return False
    write_durably(run.invite_path(invite.role), invites.clean(word).encode(), mode=0o600)
    return True


def _is_of(run: RunFolder, invite: Invite) -> bool:
    """Whether the run's owner signed the delegation in this invite."""
    given, owner = invite.delegate, bytes.fromhex(run.spec.owner)
    return (
        given is not None
        and invite.run == run.digest
        and is_delegated(run.name, given.delegation, owner, verify)
    )


def run_of(path: Path) -> RunFolder:
    """The run in this folder. Raises Refusal when there is none."""
    if (run := read(path)) is None:
        raise Refusal(f"{path} holds no run: `swarm start` begins one there, `swarm join` takes part in one")
    return run


# --- addresses ----------------------------------------------------------------------------------------------


def _addresses(run: RunFolder) -> list[str]:
    """Addresses of up to three members with recent heartbeats, seeds first; then those of kept invites, and
    of members without; of strangers where none of these is known. Raises Refusal when no address is known."""
    out, since = run.revocations, time.time() - LIVE
    met = [one for one in contacts.of_run(run.path) if out.why(one.peer) is None]
    members = [one for one in met if one.vouched or run.settings.private]
    lately, before = ([one for one in members if (one.heard >= since) is late] for late in (True, False))
    lately.sort(key=_rank)
    found = [*mixed(one.addresses for one in lately), *_kept(run), *mixed(one.addresses for one in before)]
    named = [one for one in dict.fromkeys(found) if invites.can_name(one)]
    named = named or [one for one in mixed(one.addresses for one in met) if invites.can_name(one)]
    if not named:
        raise Refusal(
            f"no peer of this run that others could dial is known in {run.path}: start one here first, with"
            " `swarm start` or `swarm join`"
        )
    return named[: invites.ADDRESSES]


def since_last_beat(path: Path) -> float | None:
    """Seconds since the last heartbeat that this folder's peers received from a dialable peer, leaving out
    this folder's own peers that have ended since; None where that is not recent."""
    here = running(path)
    ended = {peer_of(one) for one in path.glob("peers/*") if one.name not in here}
    ages = [time.time() - one.heard for one in contacts.of_run(path) if one.peer not in ended]
    return min((max(age, 0.0) for age in ages if age <= LIVE), default=None)


def reach(addresses: Sequence[str], me: PeerId, listen: Listen, port: int, dialled: bool | None) -> str:
    """Why invites with these addresses do not work for everyone, and what to do; empty where they do, or
    where this peer is meant for this machine alone. `dialled`: whether others could dial this peer."""
    hosts = {text.split("/")[2]: text.endswith(me) for text in addresses}
    public = [mine for host, mine in hosts.items() if scope_of(host) is Scope.PUBLIC]
    if not hosts or scope_of(listen.host) is Scope.LOOPBACK:
        return ""
    if (public and dialled is not False) or not all(public):
        return ""
    private = [host for host in hosts if scope_of(host) is Scope.PRIVATE]
    kind = "are addresses" if len(private) > 1 else "is an address"
    why = (
        f"{' and '.join(private)} {kind} of a private network"
        if private
        else "others cannot dial this machine"
    )
    return (
        f"These invites reach machines of this network only: {why}. For others, forward TCP port {port} of"
        " the router to this machine (or try `--set peer.listen.upnp=true`) and start it with `--set"
        f" 'peer.listen.announce=[\"/ip4/PUBLIC-ADDRESS/tcp/{port}\"]'`; or have any peer of the run on a"
        " machine with a public address: invites then name it, and it relays connections to this one."
    )


def mixed(peers: Iterable[Sequence[str]]) -> list[str]:
    """The first address of each, then the second of each, and so on."""
    return [address for same in zip_longest(*peers) for address in same if address is not None]


def _rank(contact: Contact) -> tuple[bool, bool]:
    return contact.role is not Role.SEED, not ROLES[contact.role].posts


def _kept(run: RunFolder) -> list[str]:
    """Addresses of the invites that are kept here."""
    found: list[str] = []
    for role in Role:
        try:
            found += invites.read(run.invite_path(role).read_text(), 0.0).addresses
        except (OSError, ValueError, InviteError):
            continue  # none is kept, or a damaged one, which `swarm start` and `swarm join` write anew
    return found


# --- joining ------------------------------------------------------------------------------------------------


def usable_invite(word: str, path: Path | None, now: float) -> Invite:
    """Read the invite of a peer that joins. An expired one is accepted when the run folder holds a membership
    that is still valid, or an invite for the same role: the peer rejoins.

    `path` is the run folder; None is the default folder of the invite's run. Raises InviteError.
    """
    try:
        return invites.read(word, now)
    except InviteError as error:
        if error.kind is not InviteProblem.EXPIRED:
            raise
        invite = invites.read(word, 0.0)
        folder = path or default_path(invite.run[:12])
        kept = (membership(file.parent) for file in folder.glob(f"peers/*/{MEMBERSHIP}"))
        run = read(folder)
        given = run.given(invite.role) if run is not None and invite.role is not None else None
        longer = given is not None and now <= given.delegation.expires
        if not longer and not any(one is not None and now <= one.delegation.expires for one in kept):
            raise
        return invite
