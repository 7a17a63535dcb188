"""The types that learners of a run in `sites` mode exchange: contributions to a version, and the list of
those that count."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from swarm.types import MARK_BYTES, MARKED, Digest, Finite, PeerId, Struct

CONTRIBUTED = 16 * MARKED
"""Most groups of one contribution that are told apart: of as many steps as a version has, 128 KiB."""


class Contribution(Struct, tag="contribution"):
    """A learner's training since a version, on a slow line: the address of its bytes
    (swarm.learn.learners.contribution). Signed by its learner's envelope."""

    version: int
    """That it starts from."""
    weights: Digest
    """Of that version."""
    learner: PeerId
    root: Digest
    """Of its blocks."""
    size: int
    groups: int
    """Trained on for it."""
    weight: Finite
    """In the mean of contributions, in full groups."""


class Contributed(Struct):
    """The content of a contribution's blocks."""

    groups: Annotated[bytes, Meta(max_length=MARK_BYTES * CONTRIBUTED)]
    """Marks of the groups that it was trained on (`swarm.core.agreement.trained.mark`)."""
    values: Annotated[bytes, Meta(max_length=(1 << 32) - 1)]
    """See swarm.learn.learners.contribution. Its receiver limits the blocks to a model's size; this is
    msgpack's own limit."""


class ContributionList(Struct, tag="contributions"):
    """The contributions that count in the next version: the address of its entries. Signed by its leader's
    envelope."""

    version: int
    """That they start from."""
    weights: Digest
    leader: PeerId
    root: Digest
    """Of the blocks of its entries, as msgpack."""
    size: int


class ListEntry(Struct):
    """One contribution of a list."""

    learner: PeerId
    root: Digest
    size: int
    groups: int
    weight: Finite
    """In the weighted mean; above 0."""
    share: Finite
    """Factor of the contribution: 1, or less when its norm is far beyond the usual."""


ListEntries = Annotated[tuple[ListEntry, ...], Meta(max_length=4096)]
