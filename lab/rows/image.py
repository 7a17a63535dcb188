"""Row `image`: memory and time that a version takes of a learner and of a sampler beside image and engine.

One process packs, patches and takes versions of a random Llama (lab.processes.imaging). Not handled
here: the bytes of patches (row `patches`), how they travel (row `lines`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lab.figures.table import Figure
from lab.swarms.partner import Partner
from swarm.protocol import Role

if TYPE_CHECKING:
    from lab.figures.table import Say

HIDDEN, LAYERS = 1024, 8
"""Of a model of 100M parameters: what does not grow with a model is little beside it."""

SHARE = 0.012
"""Of the values that change in a version: as at a learning rate of 1e-6."""


def measure(say: Say, hidden: int = HIDDEN, layers: int = LAYERS) -> list[Figure]:
    from swarm.learn.models import tiny

    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        model = tiny.make(Path(folder) / "model", "llama", hidden=hidden, layers=layers)
        with Partner("lab.processes.imaging", {"model": str(model), "work": folder, "share": SHARE}) as child:
            say("a learner's version")
            learner = child.hear()
            say("a sampler's version")
            sampler = child.hear()
    size = learner["bytes"]
    return [
        Figure(
            row="image",
            what=f"peak memory of a version at a {who}",
            value=100 * told["extra"] / size,
            unit="% of the release",
            note=f"beside what was there; release of {size / 1e6:.0f} MB, {what}; aim <= {aim}",
        )
        for who, told, what, aim in (
            (Role.LEARNER, learner, f"packed, held, patched ({100 * learner['patch'] / size:.2f} %)", 20),
            (Role.SAMPLER, sampler, "patch applied, loaded by hf", 10),
        )
    ] + [
        Figure(
            row="image",
            what="apply a patch to an image",
            value=size / 1e9 / sampler["applied"],
            unit="GB of release a CPU second",
            note="base read and checked, blocks changed, hashed and written, one thread",
        ),
        Figure(
            row="image",
            what="hf loads a release of which a tenth changed",
            value=sampler["some"],
            unit="CPU s",
            against="all of it",
            other=sampler["whole"],
        ),
    ]
