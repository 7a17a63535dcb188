"""Row `progress`: how much of one learner's training is left to learners that are averaged, that miss each
other, or that are killed, at a learning rate at which most steps do not show in a release.

Learners of one process take the same number of versions each (lab.processes.progress). Not handled
here: the time that a round, a fetch or a restart takes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lab.figures.table import Figure
from lab.swarms.partner import Answer, Partner

if TYPE_CHECKING:
    from lab.figures.table import Say

HIDDEN, LAYERS = 64, 2
"""Of a model of 150,000 parameters: a gradient and a step take 0.1 s of CPU."""

VERSIONS = 40
"""A minute of CPU for each of the cases; at 1e-6 the order of the cases shows after twenty."""


def measure(say: Say, hidden: int = HIDDEN, layers: int = LAYERS, versions: int = VERSIONS) -> list[Figure]:
    from swarm.learn.models import tiny

    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        model = tiny.make(Path(folder), "llama", hidden=hidden, layers=layers)
        setup = {"model": str(model), "versions": versions}
        with Partner("lab.processes.progress", setup) as child:
            reference, *others = child.hear()["cases"]
            say(f"{versions} versions of {reference}")
            alone = _result(child)
            for case in others:
                say(f"of {case}")
                found.append(_figure(case, _result(child), reference, alone, versions))
    return found


def _result(child: Partner) -> Answer:
    """The next case's, after it has said now and then that it is under way."""
    while "fall" not in (told := child.hear()):
        pass
    return told


def _figure(case: str, told: Answer, reference: str, alone: Answer, versions: int) -> Figure:
    return Figure(
        row="progress",
        what=case,
        value=1000 * told["fall"],
        unit="thousandths of a nat",
        against=reference,
        other=1000 * alone["fall"],
        note=(
            f"fall of a held-out loss in {versions} versions;"
            f" {told['along']:.2f} of the reference's way along it"
        ),
    )
