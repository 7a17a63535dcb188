"""`swarm revoke PEER|INVITE`: excludes a peer, or all peers that joined by an invite, from the run.

    a peer's id or name    -> the peer, and for later newcomers the invite by which it came
    a word, or its end     -> the invite, and all members that it made
    the folder's list and these, signed with owner.key -> <run folder>/revoked, in a private run keys with
    another one                                           -> the peers that run here

A revoked peer still knows the invite's secret and could rejoin under another key, so its invite is revoked
for newcomers too; other peers that joined by it stay. Not handled here: how a list reaches other machines
(peers.runtime.membership.revocations).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from peers.build.joining import invitations, issued_invites
from peers.build.joining.issued_invites import IssuedInvite
from peers.build.run_folder import RunFolder
from peers.errors import CannotHere, Refusal, WrongUsage, say
from peers.runtime import peer_folder
from peers.runtime.membership import contacts, members, revocations, run_keys
from swarm.core.revocation import NONE, FullList, Revocations, link, sealed
from swarm.frames.run_types import REVOKED, Pardon, Revocation
from swarm.membership import invite as invites
from swarm.membership.identity import human_name, public_key
from swarm.membership.invite import InviteError
from swarm.protocol import Role
from swarm.storage.durable import write_durably
from swarm.types import Digest, PeerId

END = 6
"""Fewest trailing characters that identify an invite: `swarm invite --list` shows eight."""


def main(folder: Path, who: str) -> int:
    """Raises Refusal, WrongUsage, CannotHere, OSError."""
    run = invitations.run_of(folder)
    run.owner()
    with revocations.locked(run.path):
        told = known(run)
        new, open_still = _revocations(run, who.strip().lstrip("…"), int(time.time()))
        before = told.list.entries
        if added := [one for one in new if not _is_in(one, before)]:
            publish(run, (*before, *added), told.list.pardons)
            _renew_own(run)
        for one in new:
            print(_sentence(one, before))
    for sentence in open_still:
        say(sentence)
    return 0


def known(run: RunFolder) -> Revocations:
    """The list in this folder; the caller holds the folder's lock. Raises CannotHere where it cannot be read:
    the next list would lack its entries, and reuse a number that other peers have seen."""
    told = run.revocations
    if told.sealed == NONE and (run.path / revocations.REVOKED).exists():
        raise CannotHere(f"nothing was revoked or pardoned: {revocations.damaged(run.path)}. Then try again")
    return told


def publish(run: RunFolder, entries: Sequence[Revocation], pardons: Sequence[Pardon]) -> None:
    """Sign the run's next list and keep it for the peers that run here, while the folder's lock is held.
    Raises Refusal, CannotHere, OSError."""
    number, keys = run.revocations.number + 1, _with_another(run)
    digest = run_keys.digest_of(keys) if keys else Digest("")
    try:
        content = sealed(run.name, number, entries, run.owner().sign, digest, pardons)
    except FullList as error:
        raise Refusal(f"{error}: start a new run, with new invites for the peers that stay") from error
    revocations.keep(run.path, content, keys)
    _print_when_known(run, number)


def _with_another(run: RunFolder) -> bytes:
    """The keys of a private run, and a new one; none of a public run. Raises CannotHere."""
    if (keys := run.keys()) is None:
        return b""
    if keys.epoch != run.revocations.number:
        raise CannotHere(
            f"{run.path / run_keys.KEYS} is not whole: start a peer here, which asks others for it, and try"
            " again"
        )
    return keys.all + run_keys.fresh()


def _revocations(run: RunFolder, who: str, now: int) -> tuple[list[Revocation], list[str]]:
    """Entries to add for a peer or an invite, and steps that remain for its owner. Raises WrongUsage for
    neither."""
    if (key := _invite(run, who)) is not None:
        return [Revocation(at=now, invite=key)], []
    met = members.of_run(run.path)
    peer = peer_named(run, who, ", or an invite or its last letters, as `swarm invite --list` shows them")
    found = [Revocation(at=now, peer=peer)]
    if peer not in met or not met[peer].invites:
        return found, [
            f"{human_name(peer)}'s invite is not known here, and with it the peer could come back under"
            " another key: revoke the invite too (`swarm invite --list` shows those made here)"
        ]
    came_by, *claimed = map(link, met[peer].invites)
    told = [
        f"by its own membership alone {human_name(peer)} joined first with {_described(run, key)}: revoke"
        " that invite too if this peer had it"
        for key in claimed
        if not run.revocations.has_invite(key)
    ]
    if not run.revocations.has_invite(came_by):
        others = sorted(
            one.peer for one in met.values() if came_by in map(link, one.invites) and one.peer != peer
        )
        key = next((key for key, _ in _made(run) if link(key) == came_by), came_by)
        found.append(Revocation(at=now, invite=key, kept=tuple(others[:REVOKED])))
        if (more := len(others) - REVOKED) > 0:
            told.append(
                f"{more} of the {len(others)} other peers of the same invite are revoked too, since a list"
                f" names at most {REVOKED} that stay: send them a new invite (`swarm invite`)"
            )
    return found, told


def _made(run: RunFolder) -> Iterator[tuple[bytes, IssuedInvite]]:
    """Key and text of each invite that `swarm invite --list` shows and that makes members."""
    for one in issued_invites.issued_invites(run):
        if (given := invites.read(one.text, 0.0).delegate) is not None:
            yield given.delegation.key, one


def _described(run: RunFolder, came_by: bytes) -> str:
    """What `swarm invite --list` shows of the invite with this link, where that has it."""
    for key, one in _made(run):
        if link(key) == came_by:
            return f"the invite …{one.text[-8:]}" + f" ({one.note})" * bool(one.note)
    return f"the invite with the key {came_by.hex()[:16]}"


def _invite(run: RunFolder, who: str) -> bytes | None:
    """Key of the invite that `who` is, or whose last characters it is, among this folder's. Raises
    WrongUsage."""
    if invites.clean(who).startswith(invites.PREFIX):
        said = invites.read(who, 0.0)
        if said.run != run.digest or said.delegate is None:
            raise WrongUsage("this invite makes no members of this run: there is nothing to revoke")
        return said.delegate.delegation.key
    if len(who) < END:
        return None
    ends = [
        invites.read(one.text, 0.0) for one in issued_invites.issued_invites(run) if one.text.endswith(who)
    ]
    keys = {one.delegate.delegation.key for one in ends if one.delegate is not None}
    if len(keys) > 1:
        raise WrongUsage(f"several invites of {run.path} end with {who}: give the whole invite")
    return keys.pop() if keys else None


def peer_named(run: RunFolder, who: str, instead: str = "") -> PeerId:
    """The peer with this id, or the peer of this name seen in this folder's journals. Raises WrongUsage,
    which offers `instead` as the alternative."""
    if public_key(PeerId(who)) is not None:
        return PeerId(who)
    known = {*members.of_run(run.path), *(one.peer for one in contacts.of_run(run.path))}
    found = [peer for peer in known if human_name(peer) == who]
    if len(found) != 1:
        why = "several peers have this name" if found else "no known peer of this run has this name"
        raise WrongUsage(
            f"{why}: {who!r}. Give the whole id (12D3Koo..., on the dashboard and in `swarm status --json`)"
            + instead
        )
    return found[0]


def _is_in(one: Revocation, entries: tuple[Revocation, ...]) -> bool:
    """Whether the list already covers this entry."""
    return any(
        (one.peer, one.invite) == (there.peer, there.invite) and not set(there.kept) - set(one.kept)
        for there in entries
    )


def _renew_own(run: RunFolder) -> None:
    """Replace this folder's own invites that make no members any more: its peers join by them."""
    for role in Role:
        path = run.invite_path(role)
        try:
            old = invites.read(path.read_text(), 0.0)
        except (OSError, ValueError, InviteError):
            continue  # none is kept; `swarm start` writes them all
        if old.delegate is not None and run.revocations.has_invite(old.delegate.delegation.key):
            write_durably(path, run.invite(role, old.addresses).encode(), mode=0o600)


def _sentence(one: Revocation, before: tuple[Revocation, ...]) -> str:
    """The result in a sentence, where the list had the entries `before`."""
    was = _is_in(one, before)
    if one.peer:
        who = f"{human_name(one.peer)} ({one.peer})"
        return f"{who} was revoked before: nothing changes" if was else f"{who} is revoked"
    invite = f"the invite with the key {one.invite.hex()[:16]}"
    if was:
        return f"{invite} was revoked before: nothing changes"
    if any(there.invite == one.invite for there in before):
        return f"{invite} was revoked before; those who came by it and had stayed are out now, too"
    others = (
        "1 other that came by it stays"
        if len(one.kept) == 1
        else f"{len(one.kept)} others that came by it stay"
    )
    stay = f"; {others}" if one.kept else ""
    return f"{invite} makes no members any more{stay}"


def _print_when_known(run: RunFolder, number: int) -> None:
    running = set(peer_folder.running(run.path)) - {"up"}
    when = (
        "the peers that run here announce it to all others within seconds"
        if running
        else f"no peer runs in {run.path}: others learn of it once one does (`swarm start`). In a folder that"
        " was brought back from a copy start one before you revoke: others may have another list of this"
        " number, and then do not take this one"
    )
    say(f"list {number} of this run's revocations: {when}")
