"""Signed statements of a learner about its gradients and its versions.

    BatchManifest: the groups of a gradient, in order, and everything else that determines its bits
    StepManifest:  the version that a mean of gradients made, and how the mean was made

Not handled here: which peers get them (peers.learner.agreement.rechecks), how long they are kept
(peers.learner.recorder).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from swarm.core.gradient_checks.step_recipe import Arithmetic, MeanRecipe
from swarm.types import Count, Digest, Finite, Struct

GROUPS = 1 << 12
"""Most groups of a batch that is shown."""


class BatchManifest(Struct, frozen=True, tag="batch-manifest"):
    """The batch behind a learner's gradient of one version."""

    version: Count
    weights: Digest
    """Of the policy that computed it."""
    weight: Finite
    """Of the gradient in the round's mean."""
    groups: Annotated[tuple[Digest, ...], Meta(max_length=GROUPS)]
    """BLAKE3 of their samplers' frames, in the order in which they were learnt on; empty where a frame is
    not here any more."""
    masked: Annotated[tuple[Count, ...], Meta(max_length=GROUPS)] = ()
    """Indices of the groups that add nothing, since their log-probabilities are not believed."""
    arithmetic: Arithmetic = Arithmetic()


class StepManifest(Struct, frozen=True, tag="step-manifest"):
    """A version that a learner stepped to."""

    version: Count
    weights: Digest
    """Of the version, as it is released."""
    parent: Digest
    """The version before, whose gradients were averaged."""
    state: Digest
    """Of the learner's state after the step: masters in float32, moments, counts."""
    recipe: MeanRecipe | None = None
    """None: the step is along this learner's own gradient."""
