"""Memberships: which peer may act in which role, checked from signatures alone.

    owner's key --Delegation(role, expires)--> an invite's key --Membership(peer)--> a peer

The chain is checkable offline by anybody who has the Spec (it names the owner's key), so a learner can be
admitted while the owner sleeps. Not handled here: whether what a trusted peer says is true.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.protocol import ROLES, Role
from swarm.run_types import Delegation, Membership
from swarm.types import PeerId

Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, data, signature) -> whether the signature is genuine."""


def delegation_bytes(run_name: str, role: Role, expires: int, key: bytes, final: bool = False) -> bytes:
    """The bytes of a delegation that the owner signs."""
    kind = b"swarm-delegation-final\0" if final else b"swarm-delegation\0"
    return kind + "\0".join((run_name, role.value, str(expires))).encode() + b"\0" + key


def membership_bytes(peer: PeerId, delegation: Delegation) -> bytes:
    """The bytes of a membership that the delegation's key signs."""
    return b"swarm-membership\0" + peer.encode() + b"\0" + delegation.signature


def is_delegated(run_name: str, delegation: Delegation, owner: bytes, verify: Verify) -> bool:
    """Whether the run's owner signed this delegation."""
    signed = delegation_bytes(run_name, delegation.role, delegation.expires, delegation.key, delegation.final)
    return verify(owner, signed, delegation.signature)


def needs_membership(role: Role, private: bool) -> bool:
    """Whether a role needs a membership. Learners decide what all peers run, seeds and evaluators when the
    run ends; strangers may sample and watch in a public run."""
    return private or ROLES[role].member


class Trust:
    """Checks the memberships of one run. Valid ones are remembered, so that a heartbeat costs no second
    signature check."""

    def __init__(self, run_name: str, owner: bytes, private: bool, verify: Verify) -> None:
        self._run_name, self._owner, self._private, self._verify = run_name, owner, private, verify
        self._good: dict[PeerId, Membership] = {}

    def objection(self, peer: PeerId, role: Role, membership: Membership | None, now: float) -> str | None:
        """Why `peer` may not act as `role`, or None."""
        return self._lack(peer, role, membership, now) if needs_membership(role, self._private) else None

    def invited(self, peer: PeerId, role: Role, membership: Membership | None, now: float) -> bool:
        """Whether the run's owner vouches for the peer in this role; in a public run a stranger may act
        without."""
        return self._lack(peer, role, membership, now) is None

    def _lack(self, peer: PeerId, role: Role, membership: Membership | None, now: float) -> str | None:
        """What is wrong with the peer's membership, or None."""
        if membership is None:
            return f"no membership, and a {role.value} needs one"
        if membership.delegation.role is not role:
            return f"its membership is for a {membership.delegation.role.value}, not a {role.value}"
        if now > membership.delegation.expires:
            return "its membership has expired: ask for a new invite"
        if self._good.get(peer) == membership:
            return None
        if (why := self._forgery(peer, membership)) is None:
            self._good[peer] = membership
        return why

    def _forgery(self, peer: PeerId, membership: Membership) -> str | None:
        delegation = membership.delegation
        if membership.peer != peer:
            return "its membership belongs to another peer"
        if not is_delegated(self._run_name, delegation, self._owner, self._verify):
            return "its membership is not signed by the run's owner"
        if not self._verify(delegation.key, membership_bytes(peer, delegation), membership.signature):
            return "its membership is not signed by its delegation"
        return None
