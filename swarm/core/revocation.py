"""Revocations: whom the run's owner has put out, and which samplers let back, as one signed list that every
peer keeps.

    entries --sealed (owner's key)--> bytes --Revocations.take--> why a peer may not act any more

A list has a number. One with a higher number that the owner signed takes the place of the one before; any
other changes nothing, so that lists may arrive late and from anybody. What a peer said before it was revoked
stays said: a release outlives its publisher. Not handled here: how a list travels
(peers.runtime.revocations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm import wire
from swarm.run_types import REVOKED, Membership, Pardon, Revocation, RevocationList, SignedRevocations
from swarm.types import Digest, PeerId

Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, data, signature) -> whether the signature is genuine."""

NONE = b""
"""The list of a run whose owner has revoked nobody."""

IT, YOU = "its membership of this run was revoked", "your membership of this run was revoked by its owner"


KEY = 32
"""Bytes of an invite's key."""


class FullList(ValueError):
    """A list that has REVOKED entries takes no more."""


def sealed(
    run_name: str,
    number: int,
    entries: Sequence[Revocation],
    sign: Callable[[bytes], bytes],
    keys: Digest = Digest(""),  # noqa: B008 (an alias of str)
    pardons: Sequence[Pardon] = (),
) -> bytes:
    """The list as it travels; `sign` is the owner's, `keys` those of a private run. Raises FullList."""
    if max(len(entries), len(pardons), number) > REVOKED:
        raise FullList(f"a run's list of revocations has {REVOKED} entries at most")
    new = RevocationList(number=number, entries=tuple(entries), keys=keys, pardons=tuple(pardons))
    content = wire.encode(new)
    return wire.encode(SignedRevocations(content=content, signature=sign(_signed(run_name, content))))


def _signed(run_name: str, content: bytes) -> bytes:
    return b"swarm-revocations\0" + run_name.encode() + b"\0" + content


class Revocations:
    """The newest list of one run that a peer has."""

    def __init__(self, run_name: str, owner: bytes, verify: Verify) -> None:
        self._run_name, self._owner, self._verify = run_name, owner, verify
        self.list, self.sealed = RevocationList(number=0), NONE
        self._peers: dict[PeerId, float] = {}
        self._invites: dict[bytes, Revocation] = {}
        self._pardons: dict[PeerId, float] = {}

    @property
    def number(self) -> int:
        return self.list.number

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Those who were revoked by name."""
        return tuple(self._peers)

    def take(self, data: bytes) -> bool:
        """Take a list if it is newer than the one here. Raises WireError for one that the owner did not
        sign."""
        new = self.opened(data)
        if new.number <= self.number:
            return False
        self.list, self.sealed = new, data
        self._peers = {one.peer: one.at for one in new.entries if one.peer}
        self._pardons = {one.peer: one.at for one in new.pardons}
        self._invites = {}
        for one in new.entries:
            if one.invite:
                self._invites[one.invite] = _stricter(one, self._invites.get(one.invite, one))
        return True

    def opened(self, data: bytes) -> RevocationList:
        """What a list says. Raises WireError for one that the owner did not sign."""
        if data == NONE:
            return RevocationList(number=0)
        signed = wire.decode(data, SignedRevocations)
        if not self._verify(self._owner, _signed(self._run_name, signed.content), signed.signature):
            raise wire.WireError("a list of revocations that is not signed by the run's owner")
        return wire.decode(signed.content, RevocationList)

    def why(
        self, peer: PeerId, membership: Membership | None = None, said: float | None = None
    ) -> str | None:
        """Why `peer` may not act, with this membership, or None. `said`: when it said what is looked at, unix
        seconds, for what counts although its author is gone."""
        if (since := self._peers.get(peer)) is not None and (said is None or said >= since):
            return IT
        if membership is None or not self._invites:
            return None  # every frame is asked about, and most runs revoke no invite
        for key in self.named(membership):
            one = self._invites.get(key)
            if one is not None and peer not in one.kept and (said is None or said >= one.at):
                return "the invite by which it became a member was revoked"
        return None

    def named(self, membership: Membership) -> tuple[bytes, ...]:
        """`named`, of this run."""
        return named(membership, self._owner)

    def pardoned(self, sampler: PeerId) -> float:
        """When the owner let a sampler back last, unix seconds; 0: never."""
        return self._pardons.get(sampler, 0.0)

    def has_invite(self, key: bytes) -> bool:
        """Whether the invite with this key makes no members any more."""
        return key in self._invites


def named(membership: Membership, owner: bytes) -> tuple[bytes, ...]:
    """Keys of the invites by which a member came: the first is proven, and the others are what the holders of
    that one say.

    An invite's key signs what its holder likes. With the owner's own key nobody else makes a membership, and
    what it names first is the key by which the one before was signed. Without an invite there is none.
    """
    key, said = membership.delegation.key, membership.origin
    keys = [said[at : at + KEY] for at in range(0, len(said), KEY)]
    return tuple(dict.fromkeys(keys if key == owner else [key, *keys]))


def carried(membership: Membership, owner: bytes) -> bytes:
    """`Membership.origin` of the one that takes this one's place: the key that is proven, and the one of
    whose invite its peer is said to have come first."""
    keys = named(membership, owner)
    return b"".join((*keys[:1], *keys[1:][-1:]))


def _stricter(one: Revocation, other: Revocation) -> Revocation:
    """Both of one invite: who stays by the one alone is out."""
    kept = tuple(sorted({*one.kept} & {*other.kept}))
    return Revocation(at=min(one.at, other.at), invite=one.invite, kept=kept)
