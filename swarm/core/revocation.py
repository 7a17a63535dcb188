"""Revocations: peers and invites that the run's owner excluded, and samplers that were pardoned, as one
signed
list that every peer keeps.

    entries --sealed (owner's key)--> bytes --Revocations.take--> why a peer may not act any more

A list has a number. One with a higher number that the owner signed replaces the one before; any other
changes nothing, so that lists may arrive late and from any peer. Messages from before a revocation stay
valid: a release outlives its publisher. Not handled here: how a list travels
(peers.runtime.membership.revocations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.frames import wire
from swarm.frames.run_types import REVOKED, Membership, Pardon, Revocation, RevocationList, SignedRevocations
from swarm.types import Digest, PeerId

Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, data, signature) -> whether the signature is genuine."""

NONE = b""
"""The list of a run without revocations."""

WAS_REVOKED = "was revoked"
"""In each sentence that says so: by it a dashboard distinguishes revoked peers from silent ones."""

IT = f"its membership of this run {WAS_REVOKED}"
YOU = f"your membership of this run {WAS_REVOKED} by its owner"

KEY = 32
"""Bytes of an invite's key."""

LINK = 9
"""Of these in a membership's way: two of a run's invites never have the same ones, and a way of LINKS is as
short as two keys."""

LINKS = 7
"""Invites of a way at most: each of them lasts for a month."""


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
        """Peers that were revoked by name."""
        return tuple(self._peers)

    def take(self, data: bytes) -> bool:
        """Accept a list if it is newer than the one here. Raises WireError for one that the owner did not
        sign."""
        new = self.opened(data)
        if new.number <= self.number:
            return False
        self.list, self.sealed = new, data
        self._peers = {one.peer: one.at for one in new.entries if one.peer}
        self._pardons = {one.peer: one.at for one in new.pardons}
        self._invites = {}
        for one in new.entries:
            if key := link(one.invite):
                self._invites[key] = _stricter(one, self._invites.get(key, one))
        return True

    def opened(self, data: bytes) -> RevocationList:
        """The entries of a list. Raises WireError for one that the owner did not sign."""
        if data == NONE:
            return RevocationList(number=0)
        signed = wire.decode(data, SignedRevocations)
        if not self._verify(self._owner, _signed(self._run_name, signed.content), signed.signature):
            raise wire.WireError("a list of revocations that is not signed by the run's owner")
        return wire.decode(signed.content, RevocationList)

    def why(
        self, peer: PeerId, membership: Membership | None = None, said: float | None = None
    ) -> str | None:
        """Why `peer` may not act, with this membership, or None. `said`: unix time of its message, for
        messages that count although their author is gone."""
        if (since := self._peers.get(peer)) is not None and (said is None or said >= since):
            return IT
        if membership is None or not self._invites:
            return None  # every frame is asked about, and most runs revoke no invite
        for key in self.named(membership):
            one = self._invites.get(key)
            if one is not None and peer not in one.kept and (said is None or said >= one.at):
                return f"the invite by which it became a member {WAS_REVOKED}"
        return None

    def named(self, membership: Membership) -> tuple[bytes, ...]:
        """`named`, of this run."""
        return named(membership, self._owner)

    def pardoned(self, sampler: PeerId) -> float:
        """When the owner let a sampler back last, unix seconds; 0: never."""
        return self._pardons.get(sampler, 0.0)

    def has_invite(self, key: bytes) -> bool:
        """Whether the invite with this key, or this link, makes no members any more."""
        return link(key) in self._invites


def link(key: bytes) -> bytes:
    """The link in a membership's chain for an invite with this key."""
    return key[:LINK]


def named(membership: Membership, owner: bytes) -> tuple[bytes, ...]:
    """Links of the chain by which a member came, the newest first: the first is proven, and each of the
    others is a claim of the holders of the one before it.

    An invite's key signs anything that its holder likes: a member may make up links before its own, and
    cannot lose one that comes after, which others sign. With the owner's own key no other makes a membership,
    and the first link that it names is the key by which the one before was signed. Without an invite there is
    none.
    """
    key, said = membership.delegation.key, membership.origin
    size = KEY if len(said) in (KEY, 2 * KEY) else LINK  # earlier versions named one or two whole keys
    # a rest that is no whole link is left out: with it a longer way could be read as whole keys
    links = [link(said[at : at + size]) for at in range(0, len(said) - size + 1, size)]
    return tuple(dict.fromkeys(links if key == owner else [link(key), *links]))


def carried(membership: Membership, owner: bytes, signer: bytes) -> bytes | None:
    """`Membership.origin` of the one that `signer` makes in this one's place: its whole chain. None where
    that and the signer's are more than LINKS: then only the owner, whose key is no link, renews it. (A member
    with more than LINKS of its own has made them up: those that are left out then are its own.)"""
    links = [one for one in named(membership, owner) if one != link(signer)]
    if signer != owner and len(links) >= LINKS:
        return None
    return b"".join(links[:LINKS])


def _stricter(one: Revocation, other: Revocation) -> Revocation:
    """Both of one invite: a peer stays only where both let it stay."""
    kept = tuple(sorted({*one.kept} & {*other.kept}))
    return Revocation(at=min(one.at, other.at), invite=one.invite, kept=kept)
