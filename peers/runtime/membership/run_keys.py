"""The keys of a private run: its frames are encrypted with them, with a new one after each revocation.

    owner: fresh keys -- their digest in the Spec, then in each list of revocations
    <run folder>/keys <--> RunKeys <-- service `enter`, to members alone -- RunKeys of another peer

An epoch is the number of a list of revocations: peers in that list never had its key. Kept frames of earlier
epochs remain readable. In a public run there are no keys. Not handled here: membership
(swarm.core.membership), frames (peers.runtime.frames).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from swarm.storage.durable import Torn, read_checked, write_checked
from swarm.types import Digest

KEYS = "keys"
"""File in a run folder, mode 0600."""

SIZE = 32
"""Bytes of a key of ChaCha20-Poly1305."""


def digest_of(keys: bytes) -> Digest:
    """By which keys are known before they are had: of all, in order."""
    return Digest(hashlib.blake2b(keys, digest_size=32, person=b"swarm-run-keys").hexdigest())


def fresh() -> bytes:
    return os.urandom(SIZE)


def kept(run_folder: Path) -> bytes:
    """The keys in this folder; none where there is no such file, or a damaged one. Raises OSError."""
    try:
        keys = read_checked(run_folder / KEYS)
    except (FileNotFoundError, Torn):
        return b""
    return keys if len(keys) % SIZE == 0 else b""


def named(keys: bytes, number: int, digest: Digest, first: Digest) -> bytes:
    """Those of these keys that belong to a run's list with this number, by their digest; where they are
    incomplete, those of its first list, whose digest is `first`. Later keys belong to an unfinished
    revocation: no other peer has them."""
    all_of_it = keys[: (number + 1) * SIZE]
    if digest_of(all_of_it) == digest:
        return all_of_it
    return keys[: number * SIZE] if digest_of(keys[:SIZE]) == first else b""


def keep(run_folder: Path, keys: bytes) -> None:
    """Raises OSError."""
    write_checked(run_folder / KEYS, keys, mode=0o600)


class RunKeys:
    """The keys of one peer, all epochs in a row."""

    def __init__(self, keys: bytes = b"") -> None:
        self.all = keys

    @property
    def epoch(self) -> int:
        """The newest; -1: there is no key."""
        return len(self.all) // SIZE - 1

    def of(self, epoch: int) -> bytes | None:
        """The key of an epoch, if it is here."""
        return self.all[epoch * SIZE :][:SIZE] if 0 <= epoch <= self.epoch else None

    def take(self, keys: bytes, digest: str) -> bool:
        """Take keys if there are more than here and their digest is right."""
        if len(keys) <= len(self.all) or len(keys) % SIZE or digest_of(keys) != digest:
            return False
        self.all = keys
        return True
