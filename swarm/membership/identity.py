"""Identity of a peer: an Ed25519 key in a file, the libp2p id of that key, and a human name.

The key file is the protobuf that p2pd reads (`-id`), mode 0600. The peer id of an Ed25519 key contains the
public key, so that a signature can be checked from the id alone. The name is a function of the id: three
words for people; no code decides by it.
"""

from __future__ import annotations

import hashlib
import stat
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarm.storage.durable import make_folder, write_durably
from swarm.types import PeerId

_KEY_HEADER = bytes.fromhex("08011240")  # protobuf PrivateKey{type: Ed25519, data: 64 bytes}
# identity multihash of protobuf PublicKey{type: Ed25519, data: 32 bytes}
_ID_HEADER = bytes.fromhex("002408011220")
_ID_LENGTH = 52
"""Letters of every Ed25519 peer id. Checked before decoding: base58 takes time that grows with the square of
the length."""

KNOWN = 4096
"""Ids whose decoded keys are kept, about 1 MB: base58 takes as long as half a signature's check."""


class IdentityError(Exception):
    """The key file cannot be used; the message gives the reason and a remedy."""


class DamagedKey(IdentityError):
    """The key file has been read, and holds no key."""


class Keyring:
    """The `Signer` of frames: signs with one key, verifies signatures of all peers."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self._me = peer_id(self.public)

    @classmethod
    def new(cls) -> Keyring:
        """With a new key, and no file."""
        return cls(Ed25519PrivateKey.generate())

    @property
    def me(self) -> PeerId:
        return self._me

    def sign(self, data: bytes) -> bytes:
        """64 bytes."""
        return self._key.sign(data)

    def verify(self, peer: PeerId, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is of `data` by the key inside the id `peer`."""
        public = public_key(peer)
        return public is not None and verify(public, data, signature)


def peer_id(public: bytes) -> PeerId:
    """The libp2p id of a 32-byte Ed25519 public key."""
    return PeerId(base58.b58encode(_ID_HEADER + public).decode())


def public_key(peer: PeerId) -> bytes | None:
    """The 32-byte public key inside a peer id; None when the id is not the canonical id of an Ed25519
    key."""
    return _decoded(peer) if len(peer) == _ID_LENGTH else None


@lru_cache(KNOWN)
def _decoded(peer: PeerId) -> bytes | None:
    try:
        raw = base58.b58decode(peer)
    except ValueError:
        return None
    # base58 ignores blanks at the end: a key must not have several ids.
    return (
        raw[len(_ID_HEADER) :]
        if raw.startswith(_ID_HEADER) and base58.b58encode(raw) == peer.encode()
        else None
    )


def verify(public: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) is of `data` by the Ed25519 key `public` (32 bytes)."""
    try:
        _key(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(KNOWN)
def _key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


def open_key(path: Path) -> Keyring:
    """The keyring of the key file `path`, which is created when missing. Raises IdentityError, and of its
    kind DamagedKey."""
    try:
        if not path.exists():
            _create(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise IdentityError(f"{path} can be read by others (mode {mode:04o}): run `chmod 600 {path}`")
        data = path.read_bytes()
    except OSError as error:
        why = f"{error.strerror}; check the folder's owner and free space, or name another with --folder"
        raise IdentityError(f"cannot use the key file {path}: {why}") from error
    return keyring_of(data, str(path))


def keyring_of(data: bytes, where: str) -> Keyring:
    """The keyring of a key file's bytes, which an error calls `where`. Raises DamagedKey."""
    if not data.startswith(_KEY_HEADER) or len(data) != len(_KEY_HEADER) + 64:
        raise DamagedKey(f"{where} is not an Ed25519 key of this program: it has {len(data)} bytes")
    keyring = Keyring(Ed25519PrivateKey.from_private_bytes(data[len(_KEY_HEADER) :][:32]))
    if keyring.public != data[-32:]:
        raise DamagedKey(f"{where} is damaged: its two halves do not belong together")
    return keyring


def _create(path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    data = _KEY_HEADER + key.private_bytes_raw() + key.public_key().public_bytes_raw()
    make_folder(path.parent, 0o700)
    write_durably(path, data, mode=0o600)


def human_name(peer: PeerId) -> str:
    """Three words, for example `brisk-umber-otter`, the same at all peers."""
    digest = hashlib.blake2b(peer.encode(), digest_size=6).digest()
    words = (_MANNERS, _COLOURS, _ANIMALS)
    return "-".join(
        names[int.from_bytes(digest[2 * i : 2 * i + 2], "big") % len(names)] for i, names in enumerate(words)
    )


_MANNERS = (
    "able bold brave brisk bright calm careful cheery clever cosy curious daring deft eager early easy fair"
    " fast fine firm fond free fresh gentle glad good grand happy hardy honest jolly keen kind lively loyal"
    " lucky merry mild neat nimble noble patient plain polite proud quick quiet ready robust shy silent smart"
    " snug sober spry steady still strong sturdy subtle sunny sure swift tidy trusty vivid warm wise witty"
    " young zesty"
).split()
_COLOURS = (
    "amber azure beige black blue bronze brown cobalt copper coral cream crimson cyan ebony emerald golden"
    " green grey hazel indigo ivory jade khaki lilac lime magenta maroon mauve navy ochre olive opal orange"
    " pearl pink plum purple red rose ruby russet rust saffron sage scarlet sepia sienna silver tan teal"
    " topaz umber violet white yellow"
).split()
_ANIMALS = (
    "ant auk badger bat bear beaver bee bison boar bream carp cat civet cod crab crane crow deer dingo dog"
    " dove duck eagle eel egret elk emu falcon ferret finch fox frog gecko gnu goat goose grouse gull hare"
    " hawk heron horse ibex ibis jackal jay kite kiwi koala lark lemur linnet lion llama lynx magpie marten"
    " mole moose mouse newt ocelot okapi orca otter owl ox panda perch pika plover puffin puma quail rabbit"
    " ram raven robin rook seal shrew skua sloth snail stoat stork swan tapir tern thrush tiger toad trout"
    " vole walrus weasel whale wolf wombat wren yak zebra"
).split()
