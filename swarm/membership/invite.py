"""Invites: one word, `swarm1...`, with everything that a newcomer needs, and the memberships made from it.

    bytes = layout 1 | protocol 2 | flags 1 (role, uses, final, delegation) | run digest 32 | expires 4
            | count 1, addresses | [owner's delegation: seed 32, signature 64 | [uses 2]] | checksum 8
    word  = "swarm1" + lower-case base32 of the bytes, without padding

`read` is offline: it distinguishes a damaged invite from an expired one and from one of another protocol
before a packet is sent. The checksum finds typing errors, not forgers: a forged invite's claims are checked
later, the bootstrap's peer id by the transport handshake and the run by its digest. An invite with a
delegation carries a secret (its holder can make members until it expires); without one it is public.

Memberships: `delegate` (the owner, when it writes an invite) -> Delegate; `admit` (the holder of the invite)
-> Membership -- `renewed` (the owner) --> a later one. They are checked in swarm.core.membership and renewed
in peers.runtime.membership.renewal. An invite ends by its expiry, or when the owner revokes it
(swarm.core.revocation).
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from enum import StrEnum

import segno
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarm import PROTOCOL
from swarm.core import membership
from swarm.frames.run_types import Delegation, Membership
from swarm.membership import identity
from swarm.protocol import Role
from swarm.types import Digest, PeerId, Struct

PREFIX = "swarm1"
LAYOUT = 1
ADDRESSES = 3
"""Three addresses of the longest kind keep the invite below 700 letters, which still fit a QR code and a chat
line."""

CHECKSUM = 8
"""64 bits: a damaged invite passes once in 10^19."""

FOREVER = 0
LIFETIME = 30 * 86400
"""Seconds of an invite that makes members, and of a membership: a leaked invite or a lost laptop is harmless
after a month."""

_TEXT_LIMIT = 4096
"""Characters of a text that are read: whole pasted lines, not files."""

_ROLES = (None, *Role)
"""Roles by their number on the wire: append only. None lets the newcomer choose."""

_DELEGATED, _FINAL, _COUNTED = 0x80, 0x40, 0x20
_IP4, _IP6, _DNS4, _DNS6, _DNS = 1, 2, 3, 4, 5
_KINDS = {"ip4": _IP4, "ip6": _IP6, "dns4": _DNS4, "dns6": _DNS6, "dns": _DNS}
_NAMES = {number: name for name, number in _KINDS.items()}


class InviteProblem(StrEnum):
    """What is wrong with an invite."""

    DAMAGED = "damaged"
    EXPIRED = "expired"
    PROTOCOL = "protocol"


class InviteError(Exception):
    """An invite that cannot be used; the message gives the reason and a remedy."""

    def __init__(self, kind: InviteProblem, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Delegate(Struct, frozen=True):
    """The owner's permission to make members of one role, with the secret key that it is for."""

    seed: bytes
    """32 bytes: the Ed25519 private key of `delegation.key`."""
    delegation: Delegation


class Invite(Struct, frozen=True):
    """The contents of an invite."""

    run: Digest
    addresses: tuple[str, ...]
    """Bootstraps, `/ip4/.../tcp/.../p2p/<peer id>`, at most three."""
    role: Role | None = None
    """The role that the newcomer is invited to; None: any that fits its machine."""
    expires: int = FOREVER
    """Unix seconds; 0 is never."""
    protocol: int = PROTOCOL
    delegate: Delegate | None = None
    """Permission to become a member; strangers' invites have none."""

    def roles(self, private: bool) -> list[Role]:
        """Those in which its holder may act, in a private run or a public one."""
        mine = self.role if self.delegate is not None else None
        return [role for role in Role if role is mine or not membership.needs_membership(role, private)]

    @property
    def uses(self) -> int:
        """Peers that it admits; 0: any number."""
        return self.delegate.delegation.uses if self.delegate is not None else 0

    def admit(self, peer: PeerId) -> Membership | None:
        """The membership that this invite gives to `peer`, or for one with a number of uses, the claim to one
        of them; None without a delegation."""
        return admit(self.delegate, peer) if self.delegate is not None else None


def make(
    run: Digest,
    addresses: Sequence[str],
    role: Role | None = None,
    expires: int = FOREVER,
    delegate: Delegate | None = None,
) -> str:
    """Encode an invite as text. Raises ValueError for no or too many addresses, one without a peer id, a
    wrong digest."""
    if not 1 <= len(addresses) <= ADDRESSES:
        raise ValueError(f"an invite names 1 to {ADDRESSES} addresses, not {len(addresses)}")
    digest = bytes.fromhex(run)
    if len(digest) != 32:
        raise ValueError(f"a run's digest has 32 bytes, not {len(digest)}")
    if delegate is not None and (delegate.delegation.expires, delegate.delegation.role) != (expires, role):
        raise ValueError("an invite has the role and the expiry of its delegation")
    flags = (
        _ROLES.index(role)
        | (_DELEGATED if delegate else 0)
        | (_FINAL if delegate and delegate.delegation.final else 0)
        | (_COUNTED if delegate and delegate.delegation.uses else 0)
    )
    uses = delegate.delegation.uses if delegate else 0
    body = b"".join(
        (
            bytes((LAYOUT,)),
            PROTOCOL.to_bytes(2, "big"),
            bytes((flags,)),
            digest,
            expires.to_bytes(4, "big"),
            bytes((len(addresses),)),
            *(_pack_address(address) for address in addresses),
            delegate.seed + delegate.delegation.signature if delegate else b"",
            uses.to_bytes(2, "big") if uses else b"",
        )
    )
    return PREFIX + base64.b32encode(body + _checksum(body)).decode().rstrip("=").lower()


def read(text: str, now: float) -> Invite:
    """Read an invite from a pasted text. `swarm join` before it, line breaks and capitals in it are ignored.
    Raises InviteError."""
    body = _body(text)
    reader = _Reader(body)
    reader.take(1)
    protocol = int.from_bytes(reader.take(2), "big")
    if protocol != PROTOCOL:
        todo = (
            "upgrade this program"
            if protocol > PROTOCOL
            else "install the swarm's older version, or ask its owner to upgrade"
        )
        raise InviteError(
            InviteProblem.PROTOCOL,
            f"the invite's swarm speaks protocol {protocol}, this program {PROTOCOL}: {todo}",
        )
    flags = reader.take(1)[0]
    role_number = flags & ~(_DELEGATED | _FINAL | _COUNTED)
    if role_number >= len(_ROLES):
        raise _damaged("it names a role that does not exist")
    role = _ROLES[role_number]
    run = Digest(reader.take(32).hex())
    expires = int.from_bytes(reader.take(4), "big")
    addresses = tuple(_unpack_address(reader) for _ in range(min(reader.take(1)[0], ADDRESSES)))
    given = _delegate(reader, flags, role, expires) if flags & _DELEGATED and role is not None else None
    if reader.left:
        raise _damaged(f"{reader.left} bytes too many")
    if expires != FOREVER and now > expires:
        raise InviteError(
            InviteProblem.EXPIRED,
            f"the invite expired {_ago(now - expires)} ago: ask the swarm's owner for a new one",
        )
    return Invite(run=run, addresses=addresses, role=role, expires=expires, delegate=given)


def _delegate(reader: _Reader, flags: int, role: Role, expires: int) -> Delegate:
    seed, signature = reader.take(32), reader.take(64)
    uses = int.from_bytes(reader.take(2), "big") if flags & _COUNTED else 0
    delegation = Delegation(
        role=role,
        expires=expires,
        key=keyring(seed).public,
        signature=signature,
        final=bool(flags & _FINAL),
        uses=uses,
    )
    return Delegate(seed=seed, delegation=delegation)


def qr_code(word: str, error: str = "m") -> segno.QRCode:
    """The invite as a QR code; `error` is the standard's level of correction, l, m, q or h. In capitals,
    which `read` takes too: a QR code has 5.5 bits for such a letter and 8 for a small one."""
    return segno.make_qr(word.upper(), error=error)


def delegate(
    owner: identity.Keyring, run_name: str, role: Role, expires: int, final: bool = False, uses: int = 0
) -> Delegate:
    """A fresh key, and the owner's signed permission for it to make members of `role` until `expires` (unix
    seconds).

    `final`: they end then as well; else the owner's machine renews them. `uses`: see Delegation.
    """
    if expires == FOREVER:
        raise ValueError("a delegation must expire: a list of revocations may not reach all peers")
    seed = Ed25519PrivateKey.generate().private_bytes_raw()
    return _signed(owner, run_name, seed, role, expires, final, uses)


def lengthen(owner: identity.Keyring, run_name: str, old: Delegate, expires: int) -> Delegate:
    """The same permission for the same key, until `expires`."""
    one = old.delegation
    return _signed(owner, run_name, old.seed, one.role, expires, one.final, one.uses)


def _signed(
    owner: identity.Keyring, run_name: str, seed: bytes, role: Role, expires: int, final: bool, uses: int
) -> Delegate:
    key = keyring(seed).public
    return Delegate(seed=seed, delegation=_delegation(owner, run_name, key, role, expires, final, uses))


def _delegation(
    owner: identity.Keyring, run_name: str, key: bytes, role: Role, expires: int, final: bool, uses: int = 0
) -> Delegation:
    signature = owner.sign(membership.delegation_bytes(run_name, role, expires, key, final, uses))
    return Delegation(role=role, expires=expires, key=key, signature=signature, final=final, uses=uses)


def admit(delegate: Delegate, peer: PeerId, origin: bytes = b"") -> Membership:
    """Sign a membership: `peer` may act in the delegation's role. `origin`: see Membership."""
    return _admitted(keyring(delegate.seed), delegate.delegation, peer, origin)


def renewed(
    owner: identity.Keyring,
    run_name: str,
    role: Role,
    peer: PeerId,
    expires: int,
    *,
    origin: bytes,
    final: bool = False,
) -> Membership:
    """A membership signed with the owner's key: no other peer can make one, so that its `origin` is trusted
    (swarm.core.revocation.named). `final` as in `delegate`."""
    return _admitted(owner, _delegation(owner, run_name, owner.public, role, expires, final), peer, origin)


def _admitted(signer: identity.Keyring, delegation: Delegation, peer: PeerId, origin: bytes) -> Membership:
    signature = signer.sign(membership.membership_bytes(peer, delegation, origin))
    return Membership(peer=peer, delegation=delegation, signature=signature, origin=origin)


def keyring(seed: bytes) -> identity.Keyring:
    """The keyring of an Ed25519 private key of 32 bytes."""
    return identity.Keyring(Ed25519PrivateKey.from_private_bytes(seed))


def clean(text: str) -> str:
    """The invite in a pasted text, for example `swarm join swarm1... --as learner`."""
    word = text[:_TEXT_LIMIT].partition(" --")[0]
    return re.sub(r"""[\s`'"<>$]+""", "", word).lower().removeprefix("swarmjoin")


def _body(text: str) -> bytes:
    """Decode an invite to its bytes, with the checksum verified and cut off. Raises InviteError."""
    joined = clean(text)
    if not joined.startswith(PREFIX):
        raise _damaged(f"an invite begins with {PREFIX}")
    letters = joined.removeprefix(PREFIX)
    if many := letters.count(PREFIX):
        words = "two" if many == 1 else many + 1
        raise InviteError(InviteProblem.DAMAGED, f"these are {words} words: give one")
    if strange := re.search(r"[^a-z2-7]", letters):
        raise _damaged(f"it has a {strange[0]!r}, which no invite has")
    cut_off = f"its checksum does not fit, it may be cut off ({len(joined)} letters)"
    try:
        data = base64.b32decode(letters.upper() + "=" * (-len(letters) % 8))
    except ValueError as error:
        raise _damaged(cut_off) from error
    body, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
    # The unused bits of the last letter would otherwise let two texts be one invite.
    canonical = base64.b32encode(data).decode().rstrip("=").lower() == letters
    if not canonical or len(body) < 1 or _checksum(body) != checksum:
        raise _damaged(cut_off)
    if body[0] != LAYOUT:
        raise InviteError(
            InviteProblem.PROTOCOL,
            f"the invite is of kind {body[0]}, this program reads {LAYOUT}: upgrade this program",
        )
    return body


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM, person=b"swarm-invite").digest()


def _damaged(why: str) -> InviteError:
    return InviteError(
        InviteProblem.DAMAGED,
        f"the invite is damaged: {why}; copy it again, from `{PREFIX}` to its last letter",
    )


def _ago(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "a moment"


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise _damaged("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]


_ADDRESS = re.compile(r"^/(ip4|ip6|dns|dns4|dns6)/([^/]{1,255})/tcp/(\d{1,5})/p2p/([1-9A-HJ-NP-Za-km-z]+)$")


def _pack_address(address: str) -> bytes:
    """kind 1 | host (4 or 16 bytes, or length 1 and the name) | port 2 | public key of the peer 32."""
    match = _ADDRESS.match(address)
    if match is None:
        raise ValueError(f"{address} is not /ip4|ip6|dns/<host>/tcp/<port>/p2p/<peer id>")
    kind, host, port = _KINDS[match[1]], match[2], int(match[3])
    key = identity.public_key(PeerId(match[4]))
    if key is None or port > 65535:
        raise ValueError(f"{address} has no Ed25519 peer id or no possible port")
    if kind == _IP4:
        packed = ipaddress.IPv4Address(host).packed
    elif kind == _IP6:
        packed = ipaddress.IPv6Address(host).packed
    else:
        packed = bytes((len(host.encode()),)) + host.encode()
    return bytes((kind,)) + packed + port.to_bytes(2, "big") + key


def can_name(address: str) -> bool:
    """Whether an invite can name this address; one over a relay it cannot."""
    try:
        return bool(_pack_address(address))
    except ValueError:
        return False


def _unpack_address(reader: _Reader) -> str:
    kind = reader.take(1)[0]
    if kind not in _NAMES:
        raise _damaged("it names an address of an unknown kind")
    if kind in (_IP4, _IP6):
        host = str(ipaddress.ip_address(reader.take(4 if kind == _IP4 else 16)))
    else:
        try:
            host = reader.take(reader.take(1)[0]).decode()
        except UnicodeDecodeError as error:
            raise _damaged("it names a host that is no text") from error
    port = int.from_bytes(reader.take(2), "big")
    return f"/{_NAMES[kind]}/{host}/tcp/{port}/p2p/{identity.peer_id(reader.take(32))}"
