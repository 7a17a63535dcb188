"""The types that learners of a run in `sites` mode exchange: contributions to a version, and which of them
count."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from swarm.types import MARK_BYTES, MARKED, Digest, Finite, PeerId, Struct

CONTRIBUTED = 16 * MARKED
"""Most groups of one contribution that are told apart: of as many steps as a version has, 128 KiB."""


class Contribution(Struct, tag="contribution"):
    """What a learner on a slow line trained since a version: the address of its bytes
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
    """What the blocks of a contribution hold."""

    groups: Annotated[bytes, Meta(max_length=MARK_BYTES * CONTRIBUTED)]
    """Marks of the groups that it was trained on (`swarm.core.agreement.trained.mark`)."""
    values: Annotated[bytes, Meta(max_length=(1 << 32) - 1)]
    """See swarm.learn.learners.contribution. Whoever fetches them holds their blocks to what a model can
    need; this is msgpack's own limit."""


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
