"""Row `tokens`: tokens/s that a swarm samples and trains on, and the share of wall time that its learners
compute.

    1 learner + 1 sampler, 2 + 3 (real processes)
        against one process that does all in turn
        against TRL's GRPOTrainer

Row `tokens-13M` is the same with a model of 12.7M parameters, without TRL.

All use the same model, task, batch and group size, and one thread a process. A completion's token, the end
token included, counts when its group was trained on. Learners compute during the `learn` and `step` seconds
of their Trained events; the rest of their time is split by the states in Moved events. CPU seconds per token
are those of all processes of all peers: on a shared machine they are more meaningful than tokens/s.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.figures.table import Figure, Gap, Line, Say, Unmeasured
from lab.swarms.local_swarm import LocalSwarm, settings
from lab.swarms.partner import Answer, Partner
from swarm import events
from swarm.protocol import Role

SECONDS = 10.0
SIZES = ((1, 1), (2, 3))
"""(learners, samplers)."""

WIDE = {"hidden": 512, "layers": 4}
"""Of the model of row `tokens-13M`."""

WIDE_SECONDS, WIDE_WARM = 60.0, 2
"""As SECONDS and WARM, for a model of which a version takes six seconds."""

MISHAPS = (events.RoundBroke, events.Snapped, events.CaughtUp)
WARM = 5
"""Versions before the time begins: connections, caches, the optimizer's memory."""


@dataclass(frozen=True)
class MeasuredSpan:
    """A swarm's figures over so many seconds."""

    trained: float
    """Tokens/s trained on, over all learners."""
    sampled: float
    """Tokens/s sampled."""
    versions: float
    """Versions/s."""
    computing: float
    """Share of wall time of a learner, mean over learners."""
    states: dict[str, float]
    """Share of wall time in each state of the round, mean over learners."""
    mishaps: dict[str, int]
    """Events of the kinds in MISHAPS, over all learners."""
    cpu: dict[str, float]
    """Cores used, by what used them."""


def measure(
    say: Say, seconds: float = SECONDS, sizes: Sequence[tuple[int, int]] = SIZES, reference: bool = True
) -> list[Line]:
    setup = _setup(seconds, WARM)
    windows = _windows(say, sizes, setup)
    lines = _lines("tokens", windows)
    return lines + (_against_trl(say, setup, windows) if reference else [])


def wide(say: Say) -> list[Line]:
    """Row `tokens-13M`: the cost of a group and a version beside the model does not grow with it."""
    from swarm.learn.models import tiny

    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        tiny.make(Path(folder), "llama", **WIDE)
        windows = _windows(say, SIZES, _setup(WIDE_SECONDS, WIDE_WARM, f"run.model.name={folder}"))
    return _lines("tokens-13M", windows)


def _setup(seconds: float, warm: int, *sets: str) -> Answer:
    """The settings of one process in turn, and those of a swarm with the settings `sets`."""
    from peers.build.model import base_model

    model = base_model.folder(settings(*sets).run)
    return {"model": str(model), "seconds": seconds, "warm": warm, "settings": sets}


Windows = dict[tuple[int, int], tuple[MeasuredSpan, Answer]]
"""Of a swarm, and of one process in turn, by the swarm's size."""


def _windows(say: Say, sizes: Sequence[tuple[int, int]], setup: Answer) -> Windows:
    # Both sides of a ratio are measured one right after the other.
    return {size: (_swarm(say, *size, setup), _alone(say, setup)) for size in sizes}


def _lines(row: str, windows: Windows) -> list[Line]:
    return [line for size, both in windows.items() for line in _figures(row, size, *both)]


def _figures(row: str, size: tuple[int, int], window: MeasuredSpan, alone: Answer) -> list[Line]:
    what = "{} learner{} + {} sampler{}".format(size[0], "s" * (size[0] > 1), size[1], "s" * (size[1] > 1))
    rate = alone["tokens"] / alone["seconds"]
    states = ", ".join(f"{state} {share:.0%}" for state, share in window.states.items() if share >= 0.005)
    mishaps = "".join(f"; {count} {kind}" for kind, count in window.mishaps.items() if count)
    cores, parts = (
        sum(window.cpu.values()),
        ", ".join(f"{part} {used:.2f}" for part, used in window.cpu.items()),
    )
    return [
        Figure(
            row=row,
            what=f"sampled and trained on, {what}",
            value=window.trained,
            unit="tokens/s",
            against="one process in turn",
            other=rate,
            note=(
                f"{window.versions:.1f} versions/s against {alone['versions'] / alone['seconds']:.1f}; "
                f"sampled {window.sampled:.0f} tokens/s"
            ),
            cpu=window.trained / cores,
            other_cpu=alone["tokens"] / alone["cpu"],
        ),
        Figure(
            row=row,
            what=f"a learner computes, {what}",
            value=window.computing,
            unit="of wall time",
            against="one process in turn",
            other=alone["learn"] / alone["seconds"],
            note=f"{states}{mishaps}",
        ),
        Figure(
            row=row,
            what=f"CPU, {what}",
            value=1e6 * cores / window.trained,
            unit="s/M tokens",
            against="one process in turn",
            other=1e6 * alone["cpu"] / alone["tokens"],
            note=f"{cores:.2f} cores in use: {parts}",
        ),
    ]


def _against_trl(say: Say, setup: Answer, windows: Windows) -> list[Line]:
    say("TRL's GRPOTrainer")
    try:
        with Partner("lab.processes.baseline_trl", setup) as partner:
            trl = partner.receive()
    except Unmeasured as error:
        return [Gap(row="tokens", why=f"TRL's GRPOTrainer: {error}")]
    rate = trl["tokens"] / trl["seconds"]
    size, (window, alone) = list(windows.items())[-1]
    note = f"{trl['versions'] / trl['seconds']:.1f} versions/s of TRL {trl['trl']}"
    one = alone["tokens"] / alone["seconds"]
    values = {f"swarm of {size[0]} + {size[1]}": window.trained, "one process in turn": one}
    return [
        Figure(row="tokens", what=what, value=value, unit="tokens/s", against="TRL", other=rate, note=note)
        for what, value in values.items()
    ]


def _alone(say: Say, setup: Answer) -> Answer:
    say("one process in turn")
    with Partner("lab.processes.baseline_process", setup) as partner:
        return partner.receive()


def _swarm(say: Say, learners: int, samplers: int, setup: Answer) -> MeasuredSpan:
    with LocalSwarm(*setup["settings"]) as home:
        say(f"starting {learners} + {samplers}")
        names = [home.join(Role.LEARNER) for _ in range(learners)]
        samples = [home.join(Role.SAMPLER) for _ in range(samplers)]
        home.until(
            "all learners to train together",
            lambda: all(trains(home, name, learners, setup["warm"]) for name in names),
        )
        home.until("all samplers to sample", lambda: all(has(home, name, events.Sampled) for name in samples))
        say(f"measuring {learners} + {samplers}")
        # From a step to a step: the tokens of the one that has begun would count on neither side, or on both.
        _until_next_step(home, names[0])
        began, before = time.time(), home.cpu()
        home.sleep(setup["seconds"])
        _until_next_step(home, names[0])
        ended, after = time.time(), home.cpu()
        cpu = {part: (after[part] - before[part]) / (ended - began) for part in after}
        return _window(home, names, samples, (began, ended), cpu)


def _window(
    home: LocalSwarm,
    learners: Sequence[str],
    samplers: Sequence[str],
    span: tuple[float, float],
    cpu: dict[str, float],
) -> MeasuredSpan:
    began, ended = span
    seconds, size = ended - began, home.config.run.sampling.group_size
    mine = {name: [event for event in home.events(name) if event.at <= ended] for name in learners}
    steps = {
        name: [e for e in mine[name] if isinstance(e, events.Trained) and e.at > began] for name in learners
    }
    every = [step for some in steps.values() for step in some]
    sampled = [
        e
        for name in samplers
        for e in home.events(name)
        if isinstance(e, events.Sampled) and began < e.at <= ended
    ]
    if not every:
        raise Unmeasured(f"no learner made a step within {seconds:.0f} s")
    spent: dict[str, float] = {}
    for some in mine.values():
        for state, share in _states(some, began, ended).items():
            spent[state] = spent.get(state, 0.0) + share / seconds / len(learners)
    return MeasuredSpan(
        trained=sum(step.groups * size * step.metrics["length"] for step in every if step.groups) / seconds,
        sampled=sum(event.tokens for event in sampled) / seconds,
        versions=max(map(len, steps.values())) / seconds,
        computing=sum(step.learn + step.step for step in every) / seconds / len(learners),
        states=dict(sorted(spent.items(), key=lambda item: -item[1])),
        mishaps=Counter(
            type(e).__name__
            for some in mine.values()
            for e in some
            if isinstance(e, MISHAPS) and e.at > began
        ),
        cpu=cpu,
    )


def _states(mine: Sequence[events.AnyEvent], began: float, ended: float) -> dict[str, float]:
    """Seconds in each state between the two moments; a Moved event names the state that begins."""
    spent: dict[str, float] = {}
    moves = [event for event in mine if isinstance(event, events.Moved)]
    for move, after in zip(moves, [*(later.at for later in moves[1:]), ended], strict=True):
        inside = max(0.0, min(after, ended) - max(move.at, began))
        spent[move.state] = spent.get(move.state, 0.0) + inside
    return spent


def trains(home: LocalSwarm, peer_folder: str, learners: int, warm: int = WARM) -> bool:
    """Whether the learner made `warm` versions, and its last round had so many members."""
    steps = _steps(home, peer_folder)
    return len(steps) >= warm and steps[-1].members == learners


def _until_next_step(home: LocalSwarm, learner: str) -> None:
    before = len(_steps(home, learner))
    home.until("the next version", lambda: len(_steps(home, learner)) > before)


def _steps(home: LocalSwarm, learner: str) -> list[events.Trained]:
    return [event for event in home.events(learner) if isinstance(event, events.Trained)]


def has(home: LocalSwarm, peer_folder: str, kind: type[events.Event]) -> bool:
    """Whether the peer's journal has such an event."""
    return any(isinstance(event, kind) for event in home.events(peer_folder))
