"""Seals and opens a run's frames, and encrypts them in a private run, which only invited peers can read.

The key of a private run is derived from its digest, which only invites carry: other connected peers see
ciphertext, and topic names with a part of the digest. Mail travels over libp2p's encrypted streams, but any
peer may dial; MemberMail adds the sender's membership to every request, and answers members only.
"""

from __future__ import annotations

import hashlib
import os
from typing import TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from swarm import wire
from swarm.core.membership import Trust
from swarm.core.stream_slots import largest
from swarm.limits import MAIL_LIMIT, Limit
from swarm.net.ports import Clock, Handler, Keyring, Mail, Refused
from swarm.net.turns import AnswerTurns
from swarm.run_types import Membership
from swarm.types import Digest, PeerId

T = TypeVar("T")

_NONCE = 12
OVERHEAD = _NONCE + 16
"""Bytes that encryption adds to a frame: the nonce and the tag."""


class Frames:
    """Seals and opens the frames of one run as one peer."""

    def __init__(self, run: Digest, keyring: Keyring, membership: Membership | None, private: bool) -> None:
        self._run, self._keyring = run, keyring
        self.membership = membership
        """Sent with every frame; a renewed one replaces it."""
        key = hashlib.blake2b(bytes.fromhex(run), digest_size=32, person=b"swarm-frames").digest()
        self._cipher = ChaCha20Poly1305(key) if private else None

    def seal(self, noun: object, limit: Limit = MAIL_LIMIT) -> bytes:
        """Encode and sign a noun, and encrypt it in a private run. Raises WireError beyond `limit` bytes."""
        if self._cipher is None:
            return wire.seal(noun, self._run, self._keyring, self.membership, limit)
        nonce = os.urandom(_NONCE)
        within = limit._replace(sealed=limit.sealed - OVERHEAD)
        return nonce + self._cipher.encrypt(
            nonce, wire.seal(noun, self._run, self._keyring, self.membership, within), None
        )

    def read(self, data: bytes, limit: Limit, kind: type[T]) -> tuple[wire.Opened, T]:
        """Decrypt, verify and decode a frame. Raises WireError when it is not a valid frame of this run with
        a noun of this kind."""
        opened = self._open(data, limit)
        return opened, wire.decode(opened.body, kind)

    def _open(self, data: bytes, limit: Limit) -> wire.Opened:
        if self._cipher is not None:
            if not OVERHEAD < len(data) <= limit.sealed:
                raise wire.WireError(f"frame of {len(data)} bytes, limit {limit.sealed}")
            try:
                data = self._cipher.decrypt(data[:_NONCE], data[_NONCE:], None)
            except InvalidTag as error:
                raise wire.WireError("not encrypted with this run's key") from error
        return wire.unseal(data, self._run, self._keyring, limit)


class MemberMail:
    """The Mail port of a private run: requests are frames, and only those of members are answered."""

    def __init__(self, mail: Mail, frames: Frames, trust: Trust, clock: Clock) -> None:
        self._mail, self._frames, self._trust, self._clock = mail, frames, trust, clock

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        return await self._mail.send(to, service, self._frames.seal(data), timeout, idle)

    async def serve(self, service: str, handler: Handler, turns: AnswerTurns | None = None) -> None:
        most = largest(service)
        limit = Limit(most, most + wire.HEAD)

        async def members_only(sender: PeerId, message: bytes) -> bytes:
            try:
                opened, request = self._frames.read(message, limit, bytes)
            except wire.WireError as error:
                raise Refused(f"this run is private: {error}") from error
            role = opened.membership.delegation.role if opened.membership is not None else None
            why = (
                self._trust.objection(sender, role, opened.membership, self._clock.now())
                if role
                else "you have no membership"
            )
            if opened.sender != sender or why is not None:
                raise Refused(
                    f"this run is private, and {why or 'you speak for somebody else'}: ask its owner for an"
                    " invite"
                )
            return await handler(sender, request)

        await self._mail.serve(service, members_only, turns)
