"""Row `real`: wall and CPU seconds of a pretrained model to 90 % of configs/smollm2.toml's held-out tasks.

    1 learner + 1 sampler (real processes)
        against TRL's GRPOTrainer, with as many threads as there are cores

As the row `accuracy`, with SmolLM2-135M-Instruct and an adapter: the same model, prompts, group size, batch,
learning rate, warm-up and adapter. All are ready when the time begins. An evaluation is the same there and
here, of one in EVERY versions, and counts on no side, but the swarm's evaluator takes turns with the others
on the same cores. Filling batches by signal is the run's: TRL trains on all groups.
"""

from __future__ import annotations

from pathlib import Path

from lab.figures.table import Line, Say
from lab.rows import accuracy
from peers.commands.parsing import shipped
from swarm.processes.processors import processors

CONFIG = "smollm2.toml"

TARGET = 0.9

EVERY = 2
"""Versions between two examinations."""

SECONDS = 3600.0
"""Of training that has not reached the target: TRL takes some twenty a version."""


def measure(say: Say, target: float = TARGET) -> list[Line]:
    config = str(shipped.settings(Path(CONFIG)))
    setup = accuracy.setup_of(config, target, EVERY, SECONDS, processors())
    trl = accuracy.baseline(say, setup, "trl")
    name = "a swarm of 1 + 1"
    say(name)
    climb = accuracy.swarm(1, 1, setup)
    return [accuracy.figure("real", target, name, climb, "TRL's GRPOTrainer", trl)]
