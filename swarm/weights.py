"""The weights of one policy version on this machine, as roles, learners and engines hand them to each other.

    learner.weights() -> Weights -> releases.publish
    releases.fetch    -> Weights -> engine.load, learner.load

A role passes them on and reads their version and digest; `data` is for whoever decodes or sends the bytes
(swarm.learn.weights, swarm.net.blobs). Not handled here: what the bytes mean, how they travel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from swarm.types import Digest


@dataclass(frozen=True)
class Weights:
    """Equal when their bytes are."""

    version: int = field(compare=False)
    digest: Digest
    """SHA-256 of `data`."""
    data: bytes = field(compare=False, repr=False)
    """As released: bf16 safetensors of the whole model, or of its adapter alone."""

    @classmethod
    def of(cls, data: bytes, version: int) -> Weights:
        """Hashes `data`: half a second of CPU for a GB."""
        return cls(version, Digest(hashlib.sha256(data).hexdigest()), data)
