"""Row `accuracy`: wall and CPU seconds from the demo's warm start to a held-out accuracy.

    1 learner + 1 sampler, 2 + 3 (real processes)
        against one process that samples and trains in turn
        against TRL's GRPOTrainer

All have the same model, task, group size, batch, optimizer and learning rate, and one thread a process; TRL
has GRPO's loss, the others the run's. All are ready when the time begins: models are loaded, processes have
joined. The accuracy is that of greedy answers to the same held-out tasks, examined every EVERY versions; that
time does not count on any side (the swarm's evaluator is a process more on the same cores, whose CPU is left
out). One training is one throw of dice: its figures differ by a fifth from run to run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lab.figures.table import Figure, Gap, Line, Say, Unmeasured
from lab.rows.tokens import SIZES, has
from lab.swarms.local_swarm import LocalSwarm, settings
from lab.swarms.partner import Answer, Partner
from peers.runtime.limits import pause
from swarm import events
from swarm.protocol import Role

TARGET = 0.6
"""Of the held-out tasks, from a warm start at a third: the demo ends at 0.9, for which TRL takes a minute."""

EVERY = 5
"""Versions between two examinations: a second or less of the swarm."""

SECONDS = 100.0
"""Of training that has not reached the target: the row goes on without it."""

LOOK = 0.5
"""Seconds between two looks at the swarm's CPU, which cost some."""


class Climb(NamedTuple):
    """The way to the target."""

    seconds: float
    cpu: float
    """Seconds of all processes that took part."""
    versions: int
    accuracy: float
    """Of the first examination at the target or above."""


def setup_of(config: str, target: float, every: int, seconds: float, threads: int) -> Answer:
    """The settings of all sides. `config`: a file, or nothing for the demo's; `every`: versions between two
    examinations; `seconds`: of training that has not reached the target."""
    from peers.build.model import base_model

    run = settings(config=config).run
    return {
        "model": str(base_model.folder(run)),
        "target": target,
        "every": every,
        "tasks": run.evaluation.tasks,
        "seconds": seconds,
        "config": config,
        "threads": threads,
    }


def measure(
    say: Say, target: float = TARGET, sizes: Sequence[tuple[int, int]] = SIZES, reference: bool = True
) -> list[Line]:
    setup = setup_of("", target, EVERY, SECONDS, threads=1)
    alone = baseline(say, setup, "process")
    climbs = {"one process in turn": alone}
    for learners, samplers in sizes:
        name = f"a swarm of {learners} + {samplers}"
        say(name)
        climbs[name] = swarm(learners, samplers, setup)
    lines: list[Line] = [
        figure("accuracy", target, name, climb, "one process in turn", alone)
        for name, climb in climbs.items()
        if climb is not alone
    ]
    if reference:
        try:
            trl = baseline(say, setup, "trl")
        except Unmeasured as why:
            return [*lines, Gap(row="accuracy", why=f"TRL's GRPOTrainer: {why}")]
        against = "TRL's GRPOTrainer"
        lines += [figure("accuracy", target, name, climb, against, trl) for name, climb in climbs.items()]
    return lines


def figure(row: str, target: float, what: str, climb: Climb, against: str, other: Climb) -> Figure:
    return Figure(
        row=row,
        what=f"{target:.0%} of held-out tasks, {what}",
        value=climb.seconds,
        unit="s",
        against=against,
        other=other.seconds,
        note=(
            f"version {climb.versions} had {climb.accuracy:.0%}, {other.versions} there {other.accuracy:.0%};"
            f" {climb.cpu:.0f} CPU s against {other.cpu:.0f}"
        ),
        cpu=climb.cpu,
        other_cpu=other.cpu,
    )


def baseline(say: Say, setup: Answer, who: str) -> Climb:
    """The climb of lab.processes.climbing. Raises Unmeasured."""
    say({"process": "one process in turn", "trl": "TRL's GRPOTrainer"}[who])
    with Partner("lab.processes.climbing", {**setup, "who": who}) as partner:
        told = partner.receive(2 * setup["seconds"])  # with its examinations
    return Climb(*(told[name] for name in Climb._fields))


def swarm(learners: int, samplers: int, setup: Answer) -> Climb:
    """The climb of a swarm of so many. Raises Unmeasured."""
    target, endless = setup["target"], ("run.stop.accuracy=0", "run.stop.versions=0")
    every = f"run.evaluation.every={setup['every']}"
    with LocalSwarm(every, *endless, config=setup["config"], patience=setup["seconds"]) as home:
        evaluator = home.join(Role.EVALUATOR)
        samples = [home.join(Role.SAMPLER) for _ in range(samplers)]
        home.until("samplers to be ready", lambda: all(has(home, name, events.Adopted) for name in samples))
        home.until("the warm start's accuracy", lambda: has(home, evaluator, events.Evaluated))
        pause.keep(home.folder, math.inf)
        learns = [home.join(Role.LEARNER) for _ in range(learners)]
        home.until("everybody to rest", lambda: all(_rests(home, name) for name in (*learns, *samples)))
        used = Used(home, evaluator)
        used.look()
        pause.end(home.folder)
        home.until(f"an accuracy of {target:.0%}", used.until(lambda: _reached(home, evaluator, target)))
        version, accuracy = next(_examined(home, evaluator, target))
        made = next(e for name in learns for e in _trained(home, name) if e.version == version)
        used.look()
        began = min(when for name in samples for when in _begun(home, name))
        return Climb(made.at - began, used.at(made.at) - used.at(began), version, accuracy)


class Used:
    """CPU seconds of a swarm without its evaluator, at any moment between two looks."""

    def __init__(self, home: LocalSwarm, evaluator: str) -> None:
        self._home, self._without = home, (evaluator,)
        self._times: list[float] = []
        self._seconds: list[float] = []

    def look(self) -> None:
        self._seconds.append(sum(self._home.cpu(self._without).values()))
        self._times.append(time.time())

    def until(self, holds: Callable[[], bool]) -> Callable[[], bool]:
        """`holds`, asked LOOK seconds after the last look, which is taken then."""

        def looked() -> bool:
            if time.time() < self._times[-1] + LOOK:
                return False
            self.look()
            return holds()

        return looked

    def at(self, when: float) -> float:
        import numpy as np

        return float(np.interp(when, self._times, self._seconds))


def _examined(home: LocalSwarm, evaluator: str, target: float) -> Iterator[tuple[int, float]]:
    """Versions that reached the target, and their accuracy."""
    for event in home.events(evaluator):
        if isinstance(event, events.Evaluated) and event.accuracy >= target:
            yield event.version, event.accuracy


def _reached(home: LocalSwarm, evaluator: str, target: float) -> bool:
    return any(True for _ in _examined(home, evaluator, target))


def _trained(home: LocalSwarm, learner: str) -> Iterator[events.Trained]:
    return (event for event in home.events(learner) if isinstance(event, events.Trained))


def _begun(home: LocalSwarm, sampler: str) -> Iterator[float]:
    """When each of its groups was begun."""
    for event in home.events(sampler):
        if isinstance(event, events.Sampled):
            yield event.at - event.seconds


def _rests(home: LocalSwarm, peer_folder: str) -> bool:
    notes = (event for event in home.events(peer_folder) if isinstance(event, events.Noted))
    return any(" rests: " in note.text for note in notes)
