"""The weights of one policy version on this machine, as roles, learners and engines hand them to each other.

    learner.weights() -> Weights -> releases.publish
    releases.fetch    -> Weights -> engine.load, learner.load

A role passes them on and reads their version and digest; `data` and `blocks` are for code that decodes or
sends the bytes (swarm.learn.files.weights, swarm.net.blobs.store). Not handled here: the content of the
bytes, how they travel.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.storage.blocks import Blocks
from swarm.types import Digest


@dataclass(frozen=True)
class Weights:
    """Equal when their bytes are."""

    version: int = field(compare=False)
    blocks: Blocks
    """As released: bf16 safetensors of the whole model, or of its adapter alone."""

    @classmethod
    def of(cls, data: bytes, version: int) -> Weights:
        """Hashes `data`: a third of a second of CPU for a GB."""
        return cls(version, Blocks.of(data))

    @property
    def digest(self) -> Digest:
        """Identifies the version's bytes: the root of their blocks."""
        return self.blocks.root

    @property
    def data(self) -> bytes:
        return self.blocks.whole
