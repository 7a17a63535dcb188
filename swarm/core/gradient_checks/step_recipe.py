"""The inputs of a step, beside its batches: all that determines its bits.

    Arithmetic of each gradient
    Ingredient of each member, in the round's order + bytes of a part --> swarm.net.averaging.recomputed_mean

Members announce the ingredients of their mean while their group forms, so all of them know it. Not handled:
the source of groups and tensors (peers.learner.recorder).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from swarm.types import Count, Finite, PeerId, Size, Struct, Word

MEMBERS = 1024
"""Most members of a round that is recorded."""


class Arithmetic(Struct, frozen=True):
    """What rounds a gradient's values: other machines make other bits of the same groups."""

    chunks: Annotated[tuple[Size, ...], Meta(max_length=1 << 12)] = ()
    """Groups that went through the policy at a time; empty where the same bits cannot be recomputed."""
    device: Word = ""
    dtype: Word = ""
    """Of forward and backward pass."""
    threads: Count = 0
    torch: Word = ""
    """Its version."""


class Ingredient(Struct, frozen=True):
    """A member as it counts in a mean; see swarm.core.gradient_checks.norm_screening.AnnouncedNorm."""

    peer: PeerId
    weight: Finite
    norm: Finite
    usual: Finite
    share: Count
    """Of the values that it reduces, in proportion to the others' (swarm.core.agreement.shares)."""


class MeanRecipe(Struct, frozen=True):
    """How a round's mean is made of its members' tensors."""

    members: Annotated[tuple[Ingredient, ...], Meta(max_length=MEMBERS)]
    part: Size
    """Bytes of a part."""
