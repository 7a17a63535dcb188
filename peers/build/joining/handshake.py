"""A newcomer's credentials, and the lists and keys that it receives before it takes part.

    invite, or a membership of an earlier life --shown--> Membership --> MemberMail, which presents it
    an invite with a number of uses --shown--> the peer that counts them -- "renew" --> Membership
    run, MemberMail --had_keys--> list of revocations, keys of a private run --> the run folder

Not handled here: whether a membership is good (swarm.core.membership), the run itself
(peers.build.joining.spec_transfer).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from peers.build import run_folder
from peers.build.joining.connect_retry import ConnectRetry
from peers.build.local_peer import LocalPeer
from peers.build.run_folder import DamagedSpec, RunFolder
from peers.errors import NoPeerAnswers, Refusal
from peers.runtime import peer_folder
from peers.runtime.membership import invite_quota, revocations
from peers.runtime.peer_folder import MEMBERSHIP
from swarm.core.revocation import link, named
from swarm.frames import wire
from swarm.frames.run_types import Entry, Membership
from swarm.membership.invite import Invite
from swarm.net.ports import Mail, NetError
from swarm.protocol import Role, Service
from swarm.storage.durable import write_durably
from swarm.types import PeerId

PATIENCE = 5.0
"""Seconds for an answer of some kilobytes."""

ASKED = 4
"""Peers that are queried, one after the other until one answers; heartbeats later bring the rest."""


async def shown(
    invite: Invite,
    role: Role,
    path: Path,
    local: LocalPeer,
    mail: Mail,
    peers: Sequence[PeerId],
    retrying: ConnectRetry,
) -> Membership | None:
    """The membership that this peer, which is to act as `role`, has before it knows the run: a renewed one,
    or by its invite, of which no use is taken for another role. `path` is the run folder. Raises Refusal
    where all uses of the invite are taken."""
    kept, mine = peer_folder.membership(local.folder), invite.admit(local.keyring.me)
    if (
        kept is not None
        and kept.delegation.role is role
        and time.time() <= kept.delegation.expires
        and not (mine is not None and await _is_better(mine, kept, path, mail, peers))
    ):
        return kept
    if mine is None or not invite.uses:
        return mine
    if invite.role is not role:
        return None
    return await retrying.until_had(lambda: _claimed(mine, local, mail, peers))


async def _is_better(
    mine: Membership, kept: Membership, path: Path, mail: Mail, peers: Sequence[PeerId]
) -> bool:
    """Whether the run's owner revoked the kept membership, but not the one of the new invite. Connected peers
    are queried for the list."""
    if link(mine.delegation.key) in named(kept, b""):
        return False  # the same invite, or one of those that a renewal names
    try:
        run = run_folder.read(path)
    except DamagedSpec:
        return False  # no other list can be checked before it is fetched again
    if run is None:
        return False
    with contextlib.suppress(NoPeerAnswers, Refusal):  # the list counts, here or from others
        await had_keys(run, kept, mail, peers)
    out = run.revocations
    return out.why(kept.peer, kept) is not None and out.why(mine.peer, mine) is None


async def _claimed(claim: Membership, local: LocalPeer, mail: Mail, peers: Sequence[PeerId]) -> Membership:
    """The membership that one of these peers issues for a claim, kept in this peer's folder. Raises Refusal
    when all uses are taken, NoPeerAnswers when no peer here counts them."""
    said = []
    for peer in peers:
        try:
            answer = await mail.send(peer, Service.RENEW, wire.encode(claim))
            made = wire.decode(answer, Membership)
        except (NetError, wire.WireError) as error:
            said.append(f"{peer}: {error}")
            continue
        if (made.peer, made.delegation.role) == (claim.peer, claim.delegation.role):
            write_durably(local.folder / MEMBERSHIP, answer)
            return made
        said.append(f"{peer}: gave another peer's membership")
    if any(invite_quota.TAKEN in why for why in said):
        raise Refusal(f"{invite_quota.TAKEN}: ask the run's owner for another one")
    raise NoPeerAnswers(
        "this invite is for a number of uses, which peers of the folder with the run's owner.key count, and"
        f" none of them answers ({'; '.join(said) or 'no peer is connected'})"
    )


async def had_keys(run: RunFolder, mine: Membership | None, mail: Mail, peers: Sequence[PeerId]) -> None:
    """Fetch the run's list of revocations, and the keys of a private run, into its folder. Raises Refusal
    when this peer was revoked, NoPeerAnswers when no peer has the keys."""
    trust, keys, said = run.trust, run.keys(), []
    for peer in peers[:ASKED]:
        try:
            question = wire.encode(mine) if mine is not None else b""
            entry = wire.decode(await mail.send(peer, Service.ENTER, question, timeout=PATIENCE), Entry)
            trust.revocations.take(entry.revoked)
        except (NetError, wire.WireError) as error:
            said.append(f"{peer}: {error}")
            continue
        if keys is not None:
            keys.take(entry.keys, trust.revocations.list.keys)
        revocations.keep_newer(run.path, trust.revocations, keys.all if keys is not None else b"")
        if mine is not None and trust.revocations.why(mine.peer, mine) is not None:
            raise Refusal(revocations.GONE)
        if keys is None or keys.epoch >= trust.revocations.number:
            return
    if keys is not None and keys.epoch < 0:
        why = "; ".join(said) or "no peer is connected"
        raise NoPeerAnswers(
            f"the keys of run {run.digest[:12]} are not in {run.path}, and no peer gave them: {why}"
        )
