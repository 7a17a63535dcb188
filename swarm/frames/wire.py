"""Frames: seals and opens the signed, size-limited envelopes around all messages between peers.

    bytes = flag (0 plain, 1 zstd) + msgpack Envelope{schema, run, sender, body, membership, signature}
    body  = msgpack of one of the nouns of `swarm.types` or an event, tagged

`seal` encodes and signs a noun; `unseal` checks the size before and after inflation against the limit of the
kind, then schema, run and signature; only then the caller decodes the body into the type that it expects,
whose collections have limits of their own. Nothing is ever unpickled. Every failure is a WireError whose
message is fit for an event. Not handled here: whether the sender may act in its role (swarm.core.membership).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from swarm.frames.compression import CompressionError, deflate, inflate
from swarm.frames.grammar import an
from swarm.frames.run_types import Membership
from swarm.limits import FRAME_LIMIT, MAIL_LIMIT, UNREADABLE, Limit
from swarm.protocol import SCHEMA, Key, Topic
from swarm.types import Array, Digest, PeerId, Struct

HEAD = 4 << 10
"""Bytes of a frame besides its numbers: envelope, membership, ids, digests and times need half of it."""

COMPRESS_FROM = 1024
"""Bytes: compressing a smaller frame saves little."""

T = TypeVar("T")


class WireError(ValueError):
    """A frame that is malformed, too large or not signed as required; the message gives the reason."""


class Signer(Protocol):
    """Signs with this peer's key, verifies with any peer's."""

    @property
    def me(self) -> PeerId:
        """This peer's id."""
        ...

    def sign(self, data: bytes) -> bytes:
        """Signature of 64 bytes."""
        ...

    def verify(self, peer: PeerId, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is of `data` by the key inside `peer`; False also for an id that holds no
        key."""
        ...


class Envelope(Struct):
    """A frame's contents: a signed body and the sender's membership."""

    schema: int
    run: Digest
    sender: PeerId
    body: Annotated[bytes, Meta(max_length=MAIL_LIMIT.inflated)]
    membership: Annotated[bytes, Meta(max_length=1024)]
    """msgpack Membership, empty for strangers."""
    signature: Annotated[bytes, Meta(max_length=64)]
    """By the sender, over (schema, run, membership, body)."""


class Opened(NamedTuple):
    """A frame whose signature is genuine."""

    sender: PeerId
    body: bytes
    membership: Membership | None


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)


def encode(noun: object) -> bytes:
    """A noun as msgpack."""
    return _encoder.encode(noun)


def decode(data: bytes, kind: type[T]) -> T:
    """msgpack -> `kind`. Raises WireError naming the field that does not fit."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE as error:
        plain = getattr(kind, "__origin__", kind)  # without what it is annotated with
        raise WireError(f"not {an(getattr(plain, '__name__', str(plain)))}: {error}") from error


def group_limit(completions: int, tokens: int, heads: int = 0) -> Limit:
    """The limit of a group of `completions` with up to `tokens` tokens each: 8 bytes a token, 6 for each
    token of its head, 16 for a completion's length and reward."""
    inflated = min(HEAD + completions * (16 + (8 + 6 * heads) * tokens), MAIL_LIMIT.inflated)
    return Limit(min(inflated, FRAME_LIMIT), inflated)


def seal(
    noun: object, run: str, keyring: Signer, membership: Membership | None = None, limit: Limit = MAIL_LIMIT
) -> bytes:
    """Encode and sign a noun. Raises WireError when the result would be larger than `limit`."""
    body = encode(noun)
    proof = encode(membership) if membership is not None else b""
    envelope = Envelope(
        schema=SCHEMA,
        run=Digest(run),
        sender=keyring.me,
        body=body,
        membership=proof,
        signature=keyring.sign(_signed(run, proof, body)),
    )
    whole = encode(envelope)
    plain = len(whole) < min(COMPRESS_FROM, limit.sealed)
    data = b"\0" + whole if plain else b"\1" + deflate(whole)
    if len(data) > limit.sealed or len(whole) > limit.inflated:
        sizes = f"{len(data)} bytes ({len(whole)} inflated)"
        raise WireError(
            f"{type(noun).__name__} of {sizes} does not fit into {limit.sealed} ({limit.inflated})"
        )
    return data


def unseal(data: bytes, run: str, keyring: Signer, limit: Limit = MAIL_LIMIT) -> Opened:
    """Check signed bytes -> sender, membership and the undecoded body. Raises WireError."""
    if not 1 < len(data) <= limit.sealed:
        raise WireError(f"frame of {len(data)} bytes, limit {limit.sealed}")
    flag, payload = data[0], data[1:]
    if flag not in (0, 1):
        raise WireError(f"unknown frame flag {flag}")
    envelope = _open_envelope(_inflate(payload, limit.inflated) if flag else payload)
    if envelope.schema != SCHEMA:
        raise WireError(f"schema {envelope.schema}, this peer speaks {SCHEMA}")
    if envelope.run != run:
        raise WireError(f"of another run ({envelope.run[:12]})")
    if not keyring.verify(
        envelope.sender, _signed(run, envelope.membership, envelope.body), envelope.signature
    ):
        raise WireError(f"signature is not that of {envelope.sender}")
    membership = decode(envelope.membership, Membership) if envelope.membership else None
    return Opened(envelope.sender, envelope.body, membership)


def _signed(run: str, membership: bytes, body: bytes) -> bytes:
    head = b"swarm-frame" + SCHEMA.to_bytes(2, "big") + run.encode()
    return head + len(membership).to_bytes(4, "big") + membership + body


def _open_envelope(data: bytes) -> Envelope:
    try:
        return _envelopes.decode(data)
    except UNREADABLE as error:
        raise WireError(f"not an envelope: {error}") from error


def _inflate(data: bytes, most: int) -> bytes:
    try:
        return inflate(data, 1, most)
    except CompressionError as error:
        raise WireError(str(error)) from error


def check_array(array: Array, dtype: Literal["int32", "float32"], shape: tuple[int, ...]) -> None:
    """Raises WireError unless the array has this type, this shape and exactly the bytes they need, 4 for a
    number."""
    if array.dtype != dtype or array.shape != shape:
        raise WireError(f"array is {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}")
    need = 4 * math.prod(shape)
    if len(array.data) != need:
        raise WireError(f"array of {dtype}{list(shape)} has {len(array.data)} bytes, needs {need}")


def topic(run: Digest, name: Topic | Key) -> str:
    """Gossip topic or board key of a run."""
    return f"{run[:16]}/{name}"
