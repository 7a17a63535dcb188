"""Memberships: which peer may act in which role, checked from signatures alone.

    owner's key --Delegation(role, expires)--> an invite's key --Membership(peer)--> a peer

The chain is checkable offline by any peer that has the Spec (it names the owner's key), so a learner can be
admitted while the owner sleeps. It ends with its delegation, or when the owner revokes the peer or the invite
(swarm.core.revocation). Not handled here: whether a trusted peer tells the truth.
"""

from __future__ import annotations

from collections import OrderedDict

from swarm.core.revocation import YOU, Revocations, Verify
from swarm.frames.grammar import an
from swarm.frames.run_types import Delegation, Membership
from swarm.limits import remember
from swarm.protocol import ROLES, Role, Service
from swarm.types import PeerId

PRIVATE = "this run is private"
UNSHOWN = f"{PRIVATE}: show your membership first"
"""Why a private run does not answer a peer that is not known as a member."""

REMEMBERED = 4096
"""Memberships with a valid chain: the holder of an invite can make any number of peers."""


def delegation_bytes(
    run_name: str, role: Role, expires: int, key: bytes, final: bool = False, uses: int = 0
) -> bytes:
    """The bytes of a delegation that the owner signs."""
    kind = "swarm-delegation" + ("-final" if final else "") + (f"-{uses}-uses" if uses else "")
    return "\0".join((kind, run_name, role.value, str(expires))).encode() + b"\0" + key


def membership_bytes(peer: PeerId, delegation: Delegation, origin: bytes = b"") -> bytes:
    """The bytes of a membership that the delegation's key signs."""
    return b"swarm-membership\0" + peer.encode() + b"\0" + delegation.signature + origin


def is_delegated(run_name: str, delegation: Delegation, owner: bytes, verify: Verify) -> bool:
    """Whether the run's owner signed this delegation."""
    one = delegation
    signed = delegation_bytes(run_name, one.role, one.expires, one.key, one.final, one.uses)
    return verify(owner, signed, one.signature)


def needs_membership(role: Role, private: bool) -> bool:
    """Whether a role needs a membership. Learners decide what all peers run, seeds and evaluators when the
    run ends; strangers may sample and watch in a public run."""
    return private or ROLES[role].member


class Trust:
    """Checks the memberships of one run. Valid ones are remembered, so that a heartbeat costs no second
    signature check."""

    def __init__(self, run_name: str, owner: bytes, private: bool, verify: Verify) -> None:
        self._run_name, self._owner, self._private, self._verify = run_name, owner, private, verify
        self._good: OrderedDict[PeerId, Membership] = OrderedDict()
        self.revocations = Revocations(run_name, owner, verify)

    def objection(
        self,
        peer: PeerId,
        role: Role,
        membership: Membership | None,
        now: float,
        said: float | None = None,
    ) -> str | None:
        """Why `peer` may not act as `role`, or None. `said`: see Revocations.why."""
        lack = self.lack(peer, role, membership, now) if needs_membership(role, self._private) else None
        return lack or self.revocations.why(peer, membership, said)

    def invited(self, peer: PeerId, role: Role, membership: Membership | None, now: float) -> bool:
        """Whether the run's owner vouches for the peer in this role; in a public run a stranger may act
        without."""
        return self.lack(peer, role, membership, now) is None and not self.revocations.why(peer, membership)

    def vouches(self, peer: PeerId, now: float) -> bool:
        """Whether a peer's kept frames count with the times that they state: a seed or learner by its last
        valid membership took them before their author was revoked."""
        mine = self._good.get(peer)
        if mine is None or mine.delegation.role not in (Role.SEED, Role.LEARNER):
            return False
        return self.invited(peer, mine.delegation.role, mine, now)

    def revoked(self, peer: PeerId) -> str | None:
        """Why the owner lets this peer not act any more, with the last good membership that it showed, or
        None."""
        return self.revocations.why(peer, self._good.get(peer))

    def refusal(self, peer: PeerId, service: str, now: float) -> str | None:
        """Why a peer may not use a service, before its question is read, or None. In a private run whoever
        has not shown a membership may do that, and no more."""
        if service == Service.ENTER:
            return None
        if self.revoked(peer) is not None:
            return YOU
        if not self._private or service == Service.RENEW:
            return None
        mine = self._good.get(peer)
        return None if mine is not None and now <= mine.delegation.expires else UNSHOWN

    def members(self, now: float) -> list[PeerId]:
        """Peers whose last valid membership holds now."""
        return [
            peer
            for peer, one in self._good.items()
            if now <= one.delegation.expires and self.revocations.why(peer, one) is None
        ]

    def shown(self, peer: PeerId) -> Membership | None:
        """The last good membership that a peer showed."""
        return self._good.get(peer)

    def lack(self, peer: PeerId, role: Role, membership: Membership | None, now: float) -> str | None:
        """What is wrong with the peer's membership, revocations apart, or None."""
        if membership is None:
            return f"no membership, and {an(role.value)} needs one"
        if membership.delegation.role is not role:
            return f"its membership is for {an(membership.delegation.role.value)}, not {an(role.value)}"
        if now > membership.delegation.expires:
            return "its membership has expired: ask for a new invite"
        if membership.delegation.uses:
            return "its invite is for a number of uses, of which it has not taken one yet"
        if self._good.get(peer) == membership:
            return None
        if (why := self._forgery(peer, membership)) is None:
            remember(self._good, peer, membership, REMEMBERED)
        return why

    def claim_objection(self, peer: PeerId, claim: Membership, now: float) -> str | None:
        """Why `peer` may not have one of the uses of an invite, by that invite's signature, or None."""
        if now > claim.delegation.expires:
            return "the invite has expired: ask for a new one"
        return self._forgery(peer, claim) or self.revocations.why(peer, claim)

    def _forgery(self, peer: PeerId, membership: Membership) -> str | None:
        delegation = membership.delegation
        if membership.peer != peer:
            return "its membership belongs to another peer"
        if not is_delegated(self._run_name, delegation, self._owner, self._verify):
            return "its membership is not signed by the run's owner"
        signed = membership_bytes(peer, delegation, membership.origin)
        if not self._verify(delegation.key, signed, membership.signature):
            return "its membership is not signed by its delegation"
        return None
