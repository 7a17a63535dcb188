"""Frames: everything that one peer tells another is a sealed envelope.

    bytes = flag (0 plain, 1 zstd) + msgpack Envelope{schema, run, sender, body, membership, signature}
    body  = msgpack of one of the nouns of `swarm.types` or an event, tagged

In comes a noun and a keyring, out go bytes; the other way `unseal` checks size before anything is decoded, then schema, run
and signature, and only then decodes the body into the type the caller expects. Nothing is ever unpickled. Every failure is a
WireError whose message is fit for an event. Not handled here: whether the sender may act in its role (swarm.core.trust).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import zstandard

from swarm.types import Array, Digest, Membership, PeerId, Struct

SCHEMA = 1

BEAT_LIMIT = 1024
RELEASE_LIMIT = 1024
RECORD_LIMIT = 1024
# One value of a board passes hivemind's DHT process, whose pipe breaks above about 16 KiB; 1 KiB holds every record we have.
EVENT_LIMIT = 4096
FRAME_LIMIT = 4 << 20
# p2pd's own limit of a unary call; streams keep to it so that a peer can always hold `streams x limit` in memory.
BODY_LIMIT = 16 << 20
# What a compressed frame may grow to: 4 MiB of tokens compress about three times; a bomb stops here.
COMPRESS_ABOVE = 1024
PIECE = 64 << 10
# Bytes inflated at a time.

T = TypeVar("T")


class WireError(ValueError):
    """A frame that must not be believed; the message says why."""


class Signs(Protocol):
    @property
    def me(self) -> PeerId: ...

    def sign(self, data: bytes) -> bytes: ...

    def verify(self, peer: PeerId, data: bytes, signature: bytes) -> bool: ...


class Envelope(Struct):
    schema: int
    run: str
    sender: PeerId
    body: bytes
    membership: bytes
    """msgpack Membership, empty for strangers."""
    signature: bytes
    """By the sender, over (schema, run, membership, body)."""


class Opened(NamedTuple):
    sender: PeerId
    body: bytes
    membership: Membership | None


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)


def encode(noun: object) -> bytes:
    return _encoder.encode(noun)


def decode(data: bytes, kind: type[T]) -> T:
    """msgpack -> `kind`. Raises WireError naming the field that does not fit."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


def seal(noun: object, run: str, keyring: Signs, membership: Membership | None = None, limit: int = FRAME_LIMIT) -> bytes:
    """A noun -> signed bytes. Raises WireError when the result would be larger than `limit`."""
    body = encode(noun)
    proof = encode(membership) if membership is not None else b""
    envelope = Envelope(
        schema=SCHEMA,
        run=run,
        sender=keyring.me,
        body=body,
        membership=proof,
        signature=keyring.sign(_signed(run, proof, body)),
    )
    data = encode(envelope)
    data = b"\1" + zstandard.compress(data) if len(data) > COMPRESS_ABOVE else b"\0" + data
    if len(data) > limit:
        raise WireError(f"{type(noun).__name__} of {len(data)} bytes does not fit into {limit}")
    return data


def unseal(data: bytes, run: str, keyring: Signs, limit: int = FRAME_LIMIT) -> Opened:
    """Signed bytes -> who says it, and the undecoded body. Raises WireError."""
    if not 1 < len(data) <= limit:
        raise WireError(f"frame of {len(data)} bytes, limit {limit}")
    flag, payload = data[0], data[1:]
    if flag not in (0, 1):
        raise WireError(f"unknown frame flag {flag}")
    envelope = _open_envelope(_inflate(payload) if flag else payload)
    if envelope.schema != SCHEMA:
        raise WireError(f"schema {envelope.schema}, this peer speaks {SCHEMA}")
    if envelope.run != run:
        raise WireError(f"of another run ({envelope.run[:12]})")
    if not keyring.verify(envelope.sender, _signed(run, envelope.membership, envelope.body), envelope.signature):
        raise WireError(f"signature is not that of {envelope.sender}")
    membership = decode(envelope.membership, Membership) if envelope.membership else None
    return Opened(envelope.sender, envelope.body, membership)


def _signed(run: str, membership: bytes, body: bytes) -> bytes:
    head = b"swarm-frame" + SCHEMA.to_bytes(2, "big") + run.encode()
    return head + len(membership).to_bytes(4, "big") + membership + body


def _open_envelope(data: bytes) -> Envelope:
    try:
        return _envelopes.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not an envelope: {error}") from error


def _inflate(data: bytes) -> bytes:
    # A stream reader and our own count: python-zstandard ignores max_output_size when the frame declares a size.
    try:
        with zstandard.ZstdDecompressor(max_window_size=BODY_LIMIT).stream_reader(io.BytesIO(data)) as reader:
            out = b"".join(_pieces(reader))
    except zstandard.ZstdError as error:
        raise WireError(f"damaged compression: {error}") from error
    if len(out) > BODY_LIMIT:
        raise WireError(f"inflates beyond {BODY_LIMIT} bytes")
    return out


def _pieces(reader: zstandard.ZstdDecompressionReader) -> Iterator[bytes]:
    """The whole content, or just more than the budget. A heartbeat of 1 KiB must not cost a buffer of 16 MiB."""
    size = 0
    while size <= BODY_LIMIT and (piece := reader.read(PIECE)):
        size += len(piece)
        yield piece


_ITEM_SIZE = {"int32": 4, "float32": 4, "bfloat16": 2}


def check_array(array: Array, dtype: str, shape: tuple[int, ...]) -> None:
    """Raises WireError unless the array has this type, this shape and exactly the bytes they need."""
    if array.dtype != dtype or array.shape != shape:
        raise WireError(f"array is {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}")
    need = _ITEM_SIZE[dtype]
    for size in shape:
        need *= size
    if len(array.data) != need:
        raise WireError(f"array of {dtype}{list(shape)} has {len(array.data)} bytes, needs {need}")


def topic(run: Digest, name: str) -> str:
    """Gossip topic or board key of a run: `beat`, `beat/sampler`, `release`, `event`, `member`, `newest`."""
    return f"{run[:16]}/{name}"
