"""An identity on its way to another machine: a key file, encrypted with a passphrase.

    bytes = MARK | cost 1 | salt 16 | nonce 12 | AES-256-GCM of an Identity, all before it authenticated
    key   = scrypt(passphrase, salt, n = 2^cost, r = 8, p = 1), RFC 7914

A wrong passphrase and a damaged file look alike. Not handled here: where a key file lies, that two processes
use one key.
"""

from __future__ import annotations

import os
from typing import Annotated

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec import Meta

from swarm import wire
from swarm.identity import IdentityError
from swarm.types import Digest, Struct, Word

MARK = b"swarm-identity-1\n"

COST = 17
"""128 MiB and half a second for each guess."""

MOST = 20
"""Highest cost that is read: 1 GiB. A file that somebody made may ask for any."""

_SALT, _NONCE = 16, 12
_HEAD = len(MARK) + 1 + _SALT + _NONCE


class Identity(Struct, frozen=True):
    """What is exported of a peer, or of a run's owner."""

    name: Word
    """Of the peer's folder, such as `learner-1`, or `owner`."""
    run: Digest
    """Digest of the run."""
    key: Annotated[bytes, Meta(max_length=1024)]
    """The key file."""
    membership: Annotated[bytes, Meta(max_length=1024)] = b""
    """As the peer's folder keeps it, where it was renewed."""


def sealed(identity: Identity, passphrase: str) -> bytes:
    """Encrypt an identity."""
    head = MARK + bytes((COST,)) + os.urandom(_SALT + _NONCE)
    return head + AESGCM(_key(head, passphrase)).encrypt(head[-_NONCE:], wire.encode(identity), head)


def opened(data: bytes, passphrase: str) -> Identity:
    """Raises IdentityError."""
    head, content = data[:_HEAD], data[_HEAD:]
    if not head.startswith(MARK) or len(head) < _HEAD or head[len(MARK)] > MOST:
        raise IdentityError("it is no identity that `swarm identity export` wrote")
    try:
        return wire.decode(AESGCM(_key(head, passphrase)).decrypt(head[-_NONCE:], content, head), Identity)
    except (InvalidTag, wire.WireError) as error:
        raise IdentityError("the passphrase is another one, or the file is damaged") from error


def _key(head: bytes, passphrase: str) -> bytes:
    salt = head[-_SALT - _NONCE : -_NONCE]
    return Scrypt(salt=salt, length=32, n=1 << head[len(MARK)], r=8, p=1).derive(passphrase.encode())
