"""What makes a run: the Spec that all its peers agree on, and who may act in it.

    Spec  <- digest in the invite, in every frame        owner -> Delegation -> Membership of a peer

Not handled: how a Spec travels (peers.build.spec_transfer), how a membership is checked
(swarm.core.membership).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from swarm.protocol import Role
from swarm.types import Digest, PeerId, Size, Struct, Word

Files = Annotated[dict[Word, Digest], Meta(max_length=1024)]
"""Name -> sha256."""


class Spec(Struct, tag="spec"):
    """What all peers of a run must agree on. Its digest is in the invite, in every release and in every
    frame."""

    protocol: int
    run: Annotated[dict[Word, object], Meta(max_length=64)]
    """The `[run]` half of the config, complete with defaults."""
    owner: Word
    """Hex Ed25519 public key that signs memberships."""
    files: Files
    """Model folder: config.json, tokenizer files, and the base's weights where a run trains an adapter on a
    local model."""
    genesis: Digest
    """Root of the bf16 safetensors of version 0: all weights, or the first adapter."""
    release_size: Size
    """Bytes of these, and so of every release: names, shapes and type of its tensors stay."""
    task: Files = {}
    """Local data and reward code of the task."""
    sizes: Annotated[dict[Word, int], Meta(max_length=2048)] = {}
    """Bytes of each of `files`, and of each of `task` under `task/<name>`: a joiner knows what it asks
    for."""


class Delegation(Struct, omit_defaults=True):
    """The owner's permission for the holder of `key` to admit peers to a role until `expires` (unix
    seconds)."""

    role: Role
    expires: int
    key: Annotated[bytes, Meta(max_length=64)]
    signature: Annotated[bytes, Meta(max_length=64)]
    """By the owner, over (run name, role, expires, key, final)."""
    final: bool = False
    """Memberships that follow from it end with it: none is renewed."""


class Membership(Struct):
    """A peer's proof that it may act in a role: owner -> delegation -> peer, checkable offline."""

    peer: PeerId
    delegation: Delegation
    signature: Annotated[bytes, Meta(max_length=64)]
    """By the delegation's key, over the peer id."""
