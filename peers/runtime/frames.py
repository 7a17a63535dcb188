"""Seals and opens a run's frames, and encrypts them in a private run, which only members can read.

    private run: epoch 4 | nonce 12 | ChaCha20-Poly1305 of the frame, with the run's key of that epoch

Other connected peers see ciphertext, and topic names with a part of the run's digest. Mail travels over
libp2p's encrypted streams, but any peer may dial: MemberMail presents this peer's membership to peers that
have not seen it. Not handled here: which peers answer which (swarm.core.membership), the keys
(peers.runtime.membership.run_keys).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from peers.runtime.membership.run_keys import RunKeys
from swarm.core.membership import UNSHOWN
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.limits import MAIL_LIMIT, REQUEST, Limit
from swarm.net.ports import Handler, Mail, Refused, Turns
from swarm.protocol import Service
from swarm.types import Digest, PeerId

T = TypeVar("T")

_EPOCH, _NONCE = 4, 12
OVERHEAD = _EPOCH + _NONCE + 16
"""Bytes that encryption adds to a frame: the key's epoch, the nonce and the tag."""


SHOWN = 4096
"""Peers that are remembered as having seen a membership; after that it is presented to them again."""


class UnknownKey(wire.WireError):
    """A frame is encrypted with a key that is not here."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"encrypted with key {epoch} of this run, which is not here")
        self.epoch = epoch


class Frames:
    """Seals and opens the frames of one run as one peer."""

    def __init__(
        self, run: Digest, keyring: wire.Signer, membership: Membership | None, keys: RunKeys | None
    ) -> None:
        """`keys`: of a private run; None in a public one."""
        self._run, self._keyring, self.keys = run, keyring, keys
        self.membership = membership
        """Sent with every frame; a renewed one replaces it."""

    def seal(self, noun: object, limit: Limit = MAIL_LIMIT) -> bytes:
        """Encode and sign a noun, and encrypt it in a private run. Raises WireError beyond `limit` bytes, and
        UnknownKey before the run's first key is here."""
        if self.keys is None:
            return wire.seal(noun, self._run, self._keyring, self.membership, limit)
        epoch, nonce = max(self.keys.epoch, 0), os.urandom(_NONCE)
        within = limit._replace(sealed=limit.sealed - OVERHEAD)
        frame = wire.seal(noun, self._run, self._keyring, self.membership, within)
        return epoch.to_bytes(_EPOCH, "big") + nonce + self._cipher(epoch).encrypt(nonce, frame, None)

    def read(self, data: bytes, limit: Limit, kind: type[T]) -> tuple[wire.Opened, T]:
        """Decrypt, verify and decode a frame. Raises WireError when it is not a valid frame of this run with
        a noun of this kind, UnknownKey when its key is not here."""
        opened = self._open(data, limit)
        return opened, wire.decode(opened.body, kind)

    def _open(self, data: bytes, limit: Limit) -> wire.Opened:
        if self.keys is not None:
            if not OVERHEAD < len(data) <= limit.sealed:
                raise wire.WireError(f"frame of {len(data)} bytes, limit {limit.sealed}")
            cipher, data = self._cipher(int.from_bytes(data[:_EPOCH], "big")), data[_EPOCH:]
            try:
                data = cipher.decrypt(data[:_NONCE], data[_NONCE:], None)
            except InvalidTag as error:
                raise wire.WireError("not encrypted with this run's key") from error
        return wire.unseal(data, self._run, self._keyring, limit)

    def _cipher(self, epoch: int) -> ChaCha20Poly1305:
        assert self.keys is not None
        if (key := self.keys.of(epoch)) is None:
            raise UnknownKey(epoch)
        return ChaCha20Poly1305(key)


class MemberMail:
    """A Mail port that shows this peer's membership wherever that is asked for."""

    def __init__(self, mail: Mail, membership: Callable[[], Membership | None]) -> None:
        self._mail, self._membership = mail, membership
        self.guard = mail.guard
        self._shown: set[PeerId] = set()
        """Peers that have seen it: a peer that has not breaks off a large message."""

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        if len(data) > REQUEST and to not in self._shown:
            await self._show(to, timeout)
        try:
            return await self._mail.send(to, service, data, timeout, idle)
        except Refused as error:
            if str(error) != UNSHOWN or not await self._show(to, timeout):
                raise
        return await self._mail.send(to, service, data, timeout, idle)

    async def _show(self, to: PeerId, timeout: float) -> bool:
        """False where there is nothing to show."""
        if (mine := self._membership()) is None:
            return False
        await self._mail.send(to, Service.ENTER, wire.encode(mine), timeout)
        if len(self._shown) >= SHOWN:
            self._shown.clear()
        self._shown.add(to)
        return True

    async def serve(self, service: str, handler: Handler, turns: Turns | None = None) -> None:
        await self._mail.serve(service, handler, turns)
