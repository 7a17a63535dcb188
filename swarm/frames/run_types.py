"""The definition of a run: the Spec that all its peers agree on, and memberships in it.

    Spec  <- digest in the invite, in every frame        owner -> Delegation -> Membership of a peer
                                                         owner -> RevocationList: whose membership has ended

Not handled: how a Spec travels (peers.build.joining.spec_transfer), how a membership is checked
(swarm.core.membership).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from swarm.limits import FRAME_LIMIT
from swarm.protocol import Role
from swarm.types import Count, Digest, PeerId, Size, Struct, Word

Files = Annotated[dict[Word, Digest], Meta(max_length=1024)]
"""Name -> sha256."""


class Spec(Struct, tag="spec"):
    """Everything that all peers of a run must agree on. Its digest is in the invite, in every release and in
    every frame."""

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
    """Local data and reward code of the task, and of evaluation sets: `SET/data.parquet`."""
    sizes: Annotated[dict[Word, int], Meta(max_length=2048)] = {}
    """Bytes of each of `files`, and of each of `task` under `task/<name>`: a joiner knows the size of each
    request."""
    keys: Digest = Digest("")
    """Of a private run's first key, which the Spec does not hold."""
    packages: Annotated[dict[Word, Word], Meta(max_length=64)] = {}
    """Name -> version of the packages whose code makes the tasks, of an evaluation set's `SET/NAME`
    (swarm.tasks.packages)."""


class Delegation(Struct, omit_defaults=True):
    """The owner's permission for the holder of `key` to admit peers to a role until `expires` (unix
    seconds)."""

    role: Role
    expires: int
    key: Annotated[bytes, Meta(max_length=64)]
    signature: Annotated[bytes, Meta(max_length=64)]
    """By the owner, over (run name, role, expires, key, final, uses)."""
    final: bool = False
    """Memberships that follow from it end with it: none is renewed."""
    uses: Annotated[int, Meta(ge=0)] = 0
    """Peers that it admits; 0: any number. With a number it signs no membership: a machine with the owner's
    key, which counts, makes one of it."""


class Membership(Struct, omit_defaults=True):
    """A peer's proof that it may act in a role: owner -> delegation -> peer, checkable offline."""

    peer: PeerId
    delegation: Delegation
    signature: Annotated[bytes, Meta(max_length=64)]
    """By the delegation's key, over the peer id, delegation and origin."""
    origin: Annotated[bytes, Meta(max_length=64)] = b""
    """Of a renewed one: the first bytes of the keys of all invites by which the peer came, the newest first,
    so that to revoke one of them reaches it (swarm.core.revocation.named)."""


REVOKED = 1024
"""Entries of a run's list of revocations, and members that one of them keeps."""


class Revocation(Struct, omit_defaults=True):
    """One peer, or one invite, that does not count any more."""

    at: Count
    """When the owner did so, unix seconds."""
    peer: PeerId = PeerId("")
    invite: Annotated[bytes, Meta(max_length=64)] = b""
    """Key of the invite's delegation: it makes no members, and those that it made are none."""
    kept: Annotated[tuple[PeerId, ...], Meta(max_length=REVOKED)] = ()
    """Members by that invite that stay."""


class Pardon(Struct):
    """Whatever learners found of a sampler before, it is let back."""

    at: Count
    """When the owner did so, unix seconds."""
    peer: PeerId


class RevocationList(Struct):
    """All revocations of a run's owner; the list with the highest number counts."""

    number: Count
    entries: Annotated[tuple[Revocation, ...], Meta(max_length=REVOKED)] = ()
    keys: Digest = Digest("")
    """Of a private run's keys from now on: `number` + 1 of them, the last of which no listed peer ever
    had."""
    pardons: Annotated[tuple[Pardon, ...], Meta(max_length=REVOKED)] = ()


class SignedRevocations(Struct, tag="revocations"):
    """A RevocationList as it travels."""

    content: Annotated[bytes, Meta(max_length=FRAME_LIMIT)]
    signature: Annotated[bytes, Meta(max_length=64)]
    """By the run's owner, over the run's name and `content`."""


class Entry(Struct, tag="entry"):
    """A peer's answer to a newcomer, and to others after a revocation."""

    revoked: Annotated[bytes, Meta(max_length=FRAME_LIMIT)]
    """SignedRevocations; none while no peer is revoked."""
    keys: Annotated[bytes, Meta(max_length=32 * (REVOKED + 1))] = b""
    """Of a private run, all epochs in a row; for members alone."""
