"""One training of the staleness study: a cell as a simulated world of the real roles, and the figures of its
run.

    Cell -> Scenario (prices, delays, window) -> World(sim.spawn) -- events --> Figures -> row

The delays are the paper's (arXiv 2508.17850): log-normal with median 339 s, cut at 1800 s. A cell's `delay` D
sets the pace: a version takes 1800/D seconds, for that is what sampling its batch is priced at, so that D
versions pass within the longest delay. With `way = "upload"` every group is late by a draw of its own, as if
each came from another sampler: the ages of trained groups follow the law itself. With `way = "policy"` each
new policy is late at its sampler, as in the paper's experiments, and is used until the next one is there. D =
0 has no delay and a window of no versions: exactly on-policy, at the price of refusing what was sampled while
the learner stepped.

Invariant: one cell gives one row, in any order and in any process. A training that diverges is a row: refused
gradients leave the policy as it is until the virtual time is up. Not handled: which cells there are
(lab.studies.staleness.staleness), what rows mean (report).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lab.studies.experiments import Row
from lab.studies.method_names import defined, parsed
from peers.build.model import base_model
from peers.commands import sim
from peers.runtime.watching.run_figures import quantile
from swarm.events import Counted, Evaluated, Event, RoundBroke, Trained
from swarm.learn.files.weights import from_bytes
from swarm.protocol import Role
from swarm.sample.toy import ToyEngine
from swarm.settings import config as settings
from swarm.settings.config import DelayLaw, Run
from swarm.sim.scenario import Scenario, SimulatedLinks
from swarm.sim.world import SimPeer, World
from swarm.types import Struct, Verdict

LONGEST = 1800.0
"""Seconds; the paper's cut."""

MEDIAN = 339.0
"""Seconds; of the paper's log-normal law, and of every law here."""

SHAPE = 1.5
"""Weibull: with it the coefficient of variation is the log-normal's, 0.68, so that only the law's form
differs."""

LAWS = {
    "lognormal": DelayLaw(law="lognormal", seconds=MEDIAN, shape=0.617, longest=LONGEST),
    "weibull": DelayLaw(
        law="weibull", seconds=MEDIAN / math.log(2) ** (1 / SHAPE), shape=SHAPE, longest=LONGEST
    ),
    "exponential": DelayLaw(law="exponential", seconds=MEDIAN / math.log(2), longest=LONGEST),
    "constant": DelayLaw(law="constant", seconds=MEDIAN, longest=LONGEST),
}
"""Equal medians. Means: 410 s, 391 s, 489 s (before the cut) and 339 s."""

IDLE = 30.0
"""Seconds of a version where no delay sets the pace: any figure gives the same training."""

SLACK = 2
"""Versions beyond D that the window admits: one is under way while a group is sampled, one while its batch
fills."""

GROUPS, COMPLETIONS = 16, 8
"""A batch of the learner: the smallest with which the demo's model learns steadily, and 50 ms of a core a
version."""

EVERY = 10
"""Versions between evaluations."""

START = 1
"""Seed of the policy that all trainings of a domain start from."""

FIGURES = ("reward", "kl", "ess", "weight_var", "grad_norm", "cosine", "zero", "entropy", "lag_versions")
"""Columns that are means over a training's versions, by their names in Trained.metrics."""


class Domain(NamedTuple):
    """How a task is set up for the study."""

    options: dict[str, int | float | str | bool]
    tokens: int
    """Longest completion, the end token included."""
    held_out: int = 256
    """Tasks of an evaluation."""


DOMAINS = {
    "toy": Domain({"buckets": 32, "letters": 4, "alphabet": 8}, 4),
    "digit-sums": Domain({"digits": 4}, 5),
    "sorting": Domain({"digits": 4}, 5),
    "brackets": Domain({}, 6),
}
"""`toy` has a table for a policy; the others have the demo's language model."""


class Cell(Struct):
    """One training."""

    domain: str
    method: str
    """A label: a name of OBJECTIVES, or `name/option=value/...`."""
    defined: str
    """Digest of the method's definition: a corrected method is another cell."""
    delay: int
    """D: versions that pass within the longest delay; 0 is on-policy."""
    lr: float
    seed: int
    """Of the tasks, the samples and the delays; the first policy is the same for all."""
    versions: int
    kl: float = 0.0
    """Weight of the KL term; 0 leaves the method's own."""
    law: str = "lognormal"
    way: str = "upload"
    setup: str = ""
    """Digest of the domain and of the settings that all trainings share: a changed one is another cell."""

    @classmethod
    def of(cls, domain: str, method: str, delay: int, lr: float, seed: int, versions: int) -> Cell:
        """With the digests of the domain and the method as they are now."""
        return cls(
            domain=domain,
            setup=setup(domain),
            method=method,
            defined=defined([method]),
            delay=delay,
            lr=lr,
            seed=seed,
            versions=versions,
        )


def setup(domain: str) -> str:
    """Hex digest of everything that a training in this domain depends on and that its cell does not
    contain."""
    shared = (DOMAINS[domain], GROUPS, COMPLETIONS, EVERY, START, SLACK, MEDIAN, LONGEST)
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:8]


def period(cell: Cell) -> float:
    """Seconds that a version takes."""
    return LONGEST / cell.delay if cell.delay else IDLE


def scenario(cell: Cell) -> Scenario:
    """Raises KeyError for a domain or a law that is not here."""
    law = LAWS[cell.law] if cell.delay else DelayLaw()
    pace, policy = period(cell), cell.way == "policy"
    return Scenario(
        name="study",
        # Twice the time of a training that reaches its last version at all.
        hours=(4 * cell.versions + 4 * cell.delay) * pace / 3600,
        peers={Role.SEED: 1, Role.LEARNER: 1, Role.SAMPLER: _samplers(cell), Role.EVALUATOR: 1},
        seed=cell.seed,
        prices={"sample": DelayLaw(law="constant", seconds=pace, longest=pace)},
        links=SimulatedLinks(latency=DelayLaw(law="constant", seconds=0.01)),
        delay=settings.Delay(policy=law) if policy else settings.Delay(upload=law),
        run=_run(cell, pace),
    )


def _run(cell: Cell, pace: float) -> Run:
    domain = DOMAINS[cell.domain]
    name, options = parsed(cell.method)
    return Run(
        name="study",
        seed=cell.seed,
        model=settings.Model(name=str(start(cell.domain)) if is_model(cell.domain) else "embedded"),
        task=settings.TaskSettings(name=cell.domain, options=domain.options),
        sampling=settings.Sampling(group_size=COMPLETIONS, max_tokens=domain.tokens),
        objective=settings.ObjectiveSettings(
            name=name, options=options | ({"kl": cell.kl} if cell.kl else {})
        ),
        optimizer=settings.Optimizer(lr=cell.lr),
        # Whole batches only, and room for all that comes: the pace is the samplers', never the credit's.
        batch=settings.BatchSize(groups=GROUPS, close_after=1e9, buffer=256.0),
        window=_window(cell),
        release=settings.Releasing(keep=2),
        evaluation=settings.Evaluation(tasks=domain.held_out, every=EVERY),
        pace=settings.Pace(beat=20 * pace, patience=100 * pace),
        stop=settings.Stop(versions=cell.versions),
    )


def _window(cell: Cell) -> settings.Window:
    """Seconds are the paper's where its way is; elsewhere versions count, and the first ones take longer than
    their pace."""
    versions = cell.delay + SLACK if cell.delay else 0
    # Samplers are honest here, and the subject is policies that are far apart: no band.
    return settings.Window(
        versions=versions, seconds=LONGEST if cell.way == "policy" else 2 * LONGEST, drift=1e6
    )


def is_model(domain: str) -> bool:
    return domain != "toy"


def _samplers(cell: Cell) -> int:
    # Where each group has a delay of its own, one sampler stands for any number, and samples a whole batch in
    # one call.
    return 4 if cell.way == "policy" else 1


@cache
def start(domain: str) -> Path:
    """The folder of the policy that trainings in this domain start from; made once, then found in the user's
    cache."""
    return base_model.folder(
        Run(seed=START, task=settings.TaskSettings(name=domain, options=DOMAINS[domain].options))
    )


def train(cell: Cell) -> Row:
    """One training, from the first policy to the last version, as a row."""
    figures = Figures()
    play(cell, scenario(cell), figures)
    return figures.row(cell)


def play(cell: Cell, played: Scenario, sink: Callable[[Event], None]) -> None:
    """Play a cell's scenario, perhaps with other settings, to its end; `sink` gets its events."""
    # a pool of threads for sixteen prompts is slower than none
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        engine = settings.EngineSettings(tasks=GROUPS // _samplers(cell))
        whole = msgspec.structs.replace(
            peer.config, peer=msgspec.structs.replace(peer.config.peer, engine=engine)
        )
        kit = sim.policy_parts(whole)
        if peer.role is Role.EVALUATOR and not is_model(cell.domain):
            kit = kit._replace(engine=lambda: FixedDraws(from_bytes))
        return sim.run_peer(dataclasses.replace(peer, config=whole), kit)

    World(played, spawn, sinks=[sink]).run()


class FixedDraws(ToyEngine):
    """Answers as the policy draws, the same numbers for every version.

    The most likely letters of a table that began uniform are right at any learning rate, however small: they
    show which exercises were seen, and not the policy's quality.
    """

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        return [one.texts[0] for one in self.sample(prompts, 1, range(START, START + len(prompts)))]


class Figures:
    """A fold of a training's events."""

    def __init__(self) -> None:
        self.curve: dict[int, float] = {}
        """Version -> held-out accuracy."""
        self.version = 0
        self._steps: list[Mapping[str, float]] = []
        self._lags: Counter[int] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._broken = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Trained():
                self.version = event.version
                self._steps.append(event.metrics)
            case Evaluated():
                self.curve[event.version] = event.accuracy
            case Counted():
                self._lags.update({int(lag): count for lag, count in event.versions.items()})
                self._verdicts.update(event.verdicts)
            case RoundBroke():
                self._broken += 1

    def row(self, cell: Cell) -> Row:
        """`curve` is held-out accuracy in per mille at every EVERY-th version from 0 on, with a space
        between; nan where none was measured by then."""
        points = self._filled(cell.versions)
        first, last = points[0], points[-1]
        best = max((point for point in points if not math.isnan(point)), default=math.nan)
        admitted = self._verdicts[Verdict.ADMIT]
        return {
            "first": first,
            "best": best,
            "last": last,
            "gap": best - last,
            "auc": _area(points),
            **{name: _mean([step[name] for step in self._steps if name in step]) for name in FIGURES},
            "weight_max": max(
                (step["weight_max"] for step in self._steps if "weight_max" in step), default=math.nan
            ),
            "lag_p95": quantile(self._lags, 0.95),
            "admitted": admitted,
            "refused": self._verdicts.total() - admitted,
            "reached": self.version,
            "broken": self._broken,
            "curve": " ".join(f"{1000 * point:.0f}" for point in points),
        }

    def _filled(self, versions: int) -> list[float]:
        """Accuracy at versions 0, EVERY, ...: a training that stopped stays what it was. NaN up to the
        first evaluation."""
        points = [self.curve.get(0, math.nan)]
        for version in range(EVERY, versions + 1, EVERY):
            points.append(self.curve.get(version, points[-1]))
        return points


def _area(points: Sequence[float]) -> float:
    """Mean height of the curve through equally spaced points."""
    return (sum(points) - (points[0] + points[-1]) / 2) / (len(points) - 1)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
