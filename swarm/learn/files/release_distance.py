"""How far another release of this learner's version is from its own, in units of its last step.

    mine, theirs, the version before -> ||theirs - mine|| / ||mine - before||, of the released values

All members of a round step along the same bytes, so that their versions differ by the rounding of one
optimizer step. Only tensors with blocks that differ are read, and of these a piece at a time. Not handled:
moments that differ, as after a release was loaded without them (peers.learner.agreement.other_bytes).
"""

from __future__ import annotations

import math

import torch

from swarm.learn.files.release_file import ReleaseFile
from swarm.storage.blocks import Blocks


def apart(mine: Blocks, theirs: Blocks, before: Blocks) -> float:
    """In steps; infinite where mine is the version before. Raises ValueError where theirs is no release of
    this model, or not finite, and Damaged."""
    own, other, parent = ReleaseFile(mine), ReleaseFile(theirs), ReleaseFile(before)
    if not own.places == other.places == parent.places:
        raise ValueError("these weights are of another model")
    off, step = _distance(other, own), _distance(own, parent)
    return off / step if step else math.inf if off else 0.0


def _distance(one: ReleaseFile, other: ReleaseFile) -> float:
    names, square = one.changed(other.contents), 0.0
    one.check(names)
    for name in sorted(names):
        for (_, a), (_, b) in zip(one.pieces(name), other.pieces(name), strict=True):
            square += float(torch.linalg.vector_norm(a.double() - b.double())) ** 2
    return math.sqrt(square)
