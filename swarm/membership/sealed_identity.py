"""An identity on its way to another machine: a key file, encrypted with a passphrase.

    bytes = MARK | cost 1 | salt 16 | nonce 12 | AES-256-GCM of an Identity, all before it authenticated
    key   = scrypt(passphrase, salt, n = 2^cost, r = 8, p = 1), RFC 7914

A wrong passphrase and a damaged file look alike. Not handled here: the location of a key file, and two
processes with one key.
"""

from __future__ import annotations

import os
from typing import Annotated

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec import Meta

from swarm.frames import wire
from swarm.membership.identity import IdentityError
from swarm.types import Root, Struct, Word

MARK = b"swarm-identity-1\n"

COST = 17
"""128 MiB and half a second for each guess."""

LEAST, MOST = 1, 20
"""Accepted costs, up to 1 GiB: a file from elsewhere may ask for any."""

NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""Pattern of the name of a peer's folder: the name in a file from elsewhere cannot point outside."""

NONE = "it is not a key that `swarm identity export` wrote"

_SALT, _NONCE = 16, 12
_HEAD = len(MARK) + 1 + _SALT + _NONCE


class Identity(Struct, frozen=True):
    """The exported identity of a peer, or of a run's owner."""

    name: Annotated[Word, Meta(pattern=rf"^{NAME}\Z")]
    """Of the peer's folder, for example `learner-1`, or `owner`."""
    run: Root
    """Digest of the run."""
    key: Annotated[bytes, Meta(max_length=1024)]
    """The key file."""
    membership: Annotated[bytes, Meta(max_length=1024)] = b""
    """As the peer's folder keeps it, where it was renewed."""


def sealed(identity: Identity, passphrase: str) -> bytes:
    """Encrypt an identity."""
    head = MARK + bytes((COST,)) + os.urandom(_SALT + _NONCE)
    return head + AESGCM(_key(head, passphrase)).encrypt(head[-_NONCE:], wire.encode(identity), head)


def check_head(data: bytes) -> None:
    """Raise IdentityError for bytes that are no identity, whatever the passphrase."""
    head = data[:_HEAD]
    if not head.startswith(MARK) or len(head) < _HEAD or not LEAST <= head[len(MARK)] <= MOST:
        raise IdentityError(NONE)


def opened(data: bytes, passphrase: str) -> Identity:
    """Raises IdentityError."""
    check_head(data)
    head, content = data[:_HEAD], data[_HEAD:]
    try:
        return wire.decode(AESGCM(_key(head, passphrase)).decrypt(head[-_NONCE:], content, head), Identity)
    except InvalidTag as error:
        raise IdentityError("the passphrase is another one, or the file is damaged") from error
    except wire.WireError as error:
        raise IdentityError(NONE) from error
    except MemoryError as error:
        raise IdentityError(f"to open it takes {1 << head[len(MARK)] >> 10} MiB of free memory") from error


def _key(head: bytes, passphrase: str) -> bytes:
    salt = head[-_SALT - _NONCE : -_NONCE]
    return Scrypt(salt=salt, length=32, n=1 << head[len(MARK)], r=8, p=1).derive(passphrase.encode())
