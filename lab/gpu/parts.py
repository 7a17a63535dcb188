"""One part of the row `gpu`, in a process of its own.

    python -m lab.gpu.parts '{"part": "hf", ...}' (a Setup)
        -> {"said"} of progress, {"line"} of the table, each as it comes, and {"done"}

    model    writes the random model
    hf       samples through transformers, and replays a group where it was sampled and on the CPU
    learner  memory of a step beside `swarm fit`'s prediction; gradients of packed and of padded rows
    vllm     samples through vLLM, which refuses to start where it does not draw with our noise, and replays a
             group where it was sampled

Engines and learners are those of peers. Not handled here: limits of time, and what a failure means
(lab.gpu.row).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from lab.figures.table import TOO_MANY, Figure, Gap, Line, number
from lab.processes.made_groups import made_group
from lab.swarms.partner import opened, say
from peers.errors import UserError
from swarm.core.audits.auditing import Audits
from swarm.processes.processors import processors
from swarm.sample.base import Completions, EngineError
from swarm.settings import loading
from swarm.settings.config import Config
from swarm.storage.weights import Weights
from swarm.types import PeerId, Struct

MIB = 1 << 20

MEDIAN, SPREAD = 27 / 256, 1.0
"""Of the lengths of a learner's completions: their median as a share of the longest, and the standard
deviation of their logarithm. Most answers are short, and some reach the limit."""

PROBING = 45.0
"""Seconds to measure the memory of one kind of training: a start, and two steps."""

TRAININGS = ("full", "lora")

REPLAYED = 2
"""Completions of a group that is replayed: of 256 tokens each, a CPU takes some ten seconds."""

Step = str | Line


class Setup(Struct):
    """What a part is asked for, and what all parts have in common."""

    row: str
    device: str
    """`cuda` or `cpu`."""
    dtype: str
    """Of the engines, as in `peer.engine.dtype`."""
    hidden: int
    layers: int
    entries: dict[str, int]
    """Of the model's config, as swarm.learn.models.tiny.make takes them."""
    tasks: int
    group: int
    prompt: int
    tokens: int
    """Tasks of a call and groups of a gradient; completions of a group; tokens of a prompt, and of a
    completion at most."""
    turns: int
    """After one that warms up."""
    part: str = ""
    model: str = ""
    """The model's folder."""

    @property
    def prompts(self) -> list[str]:
        """One for each task; every digit is a token."""
        return [str(7 * 10 ** (self.prompt - 1) + number) for number in range(self.tasks)]

    @property
    def place(self) -> str:
        return "the CPU" if self.device == "cpu" else "the GPU"

    def config(self, *words: str) -> Config:
        """Settings of the run and the peer, with others on top (as after `--set`)."""
        own = (
            "run.private=true",  # no copy of the policy for audits
            f"run.sampling.group_size={self.group}",
            f"run.sampling.max_tokens={self.tokens}",
            f"run.batch.groups={self.tasks}",
            f"run.batch.micro={self.tasks}",
            "run.optimizer.lr=1e-6",
            f"peer.engine.tasks={self.tasks}",
            f"peer.engine.dtype={self.dtype}",
            f"peer.engine.device={self.device}",
            f"peer.learner.device={self.device}",
            "peer.learner.gpus=1",
        )
        return loading.load(None, [*own, *words]).config

    def figure(self, what: str, value: float, unit: str, **rest: Any) -> Figure:
        return Figure(row=self.row, what=what, value=value, unit=unit, **rest)


def main() -> int:
    import torch

    setup = msgspec.convert(opened(), Setup)
    torch.set_num_threads(processors())  # one part at a time has the machine
    try:
        for step in PARTS[setup.part](setup):
            if isinstance(step, str):
                say(said=step)
            else:
                say(line=msgspec.to_builtins(step))
    except (UserError, EngineError) as error:
        say(failed=str(error))
    else:
        say(done=True)
    return 0


# --- the model ----------------------------------------------------------------------------------------------


def _model(setup: Setup) -> Iterator[Step]:
    import torch

    from swarm.learn.models import tiny

    if setup.device == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"built for CUDA {built}, which the driver here may be too old for" if built else "a CPU build"
        raise UserError(
            f"torch {torch.__version__} does not find this machine's GPU: it is {why}; `make gpu-check`"
            " installs a CUDA build in .venv-gpu"
        )
    yield "writing a random Qwen3 in bfloat16"
    folder = Path(setup.model)
    tiny.make(folder, "qwen3", hidden=setup.hidden, layers=setup.layers, **setup.entries)
    size = (folder / "model.safetensors").stat().st_size
    yield f"{size / 2e6:.1f}M parameters"


# --- engines ------------------------------------------------------------------------------------------------


def _hf(setup: Setup) -> Iterator[Step]:
    group = yield from _sampled(setup, "hf")
    for device in dict.fromkeys((setup.device, "cpu")):
        yield from _replayed(setup, "hf", group, device)


def _vllm(setup: Setup) -> Iterator[Step]:
    group = yield from _sampled(setup, "vllm")
    yield from _replayed(setup, "vllm", group, setup.device)


def _sampled(setup: Setup, name: str) -> Generator[Step, None, Completions]:
    """Calls as a sampler makes them. Returns a group of REPLAYED completions of the first prompt, whose seed
    is 0."""
    from peers.build.model.engine_process import EngineProcess

    model, config = Path(setup.model), setup.config(f"peer.engine.name={name}")
    engine = EngineProcess(config.peer.engine, name)
    try:
        yield f"{name} starts"
        engine.set_up(model, config)
        engine.load(Weights.of((model / "model.safetensors").read_bytes(), 0))
        yield f"{name} samples"
        rates, seeds = list[float](), range(setup.tasks)
        for _ in range(1 + setup.turns):
            began = time.perf_counter()
            groups = engine.sample(setup.prompts, setup.group, seeds)
            rates.append(sum(len(group.tokens) for group in groups) / (time.perf_counter() - began))
        (small,) = engine.sample(setup.prompts[:1], REPLAYED, [0])
    finally:
        engine.close()
    shape = f"{setup.tasks} prompts x {setup.group} completions x {setup.tokens} tokens"
    yield Figure.of_turns(
        rates[1:], row=setup.row, what=f"sampled by {name}, {shape}", unit="tokens/s", note="in one call"
    )
    return small


def _replayed(setup: Setup, name: str, group: Completions, device: str) -> Iterator[Step]:
    """That group, replayed as a learner on that device does."""
    from peers.build.model import factory
    from swarm.draws.replays import weigh

    where = "the CPU" if device == "cpu" else "the GPU"
    yield f"replaying a group of {name} on {where}"
    config = setup.config(f"peer.learner.device={device}")
    replay = factory.replay(Path(setup.model), config)
    rows = [row.tolist() for row in np.split(group.tokens, np.cumsum(group.lengths)[:-1])]
    found = replay.replay(setup.prompts[0], rows, 0)
    weighed = weigh(found, group.logprobs, replay.allowed)
    finding, _ = Audits().take(PeerId("sampler"), weighed, 0.0)
    differ = np.abs(found.logprobs - group.logprobs)
    what = f"a group of {name} on {setup.place}, replayed on {where}"
    yield setup.figure(
        f"{what}: largest difference",
        weighed.largest,
        "nats",
        note=(
            f"mean margin {number(float(found.margins.mean()))}, mean difference of log-probabilities"
            f" {number(float(differ.mean()))}; allowed for one token: {number(replay.allowed.hard)}"
        ),
    )
    yield setup.figure(
        f"{what}: tokens that are off",
        weighed.off,
        TOO_MANY,
        note=f"{weighed.off / weighed.tokens:.2%} of {weighed.tokens}; the verdict: {finding}",
    )


# --- the learner --------------------------------------------------------------------------------------------


def _learner(setup: Setup) -> Iterator[Step]:
    for training in TRAININGS:
        yield from _memory(setup, training)
    for training in TRAININGS:
        yield from _gradients(setup, training)


def _memory(setup: Setup, training: str) -> Iterator[Step]:
    """Of two steps of one group each, in a process of its own, as `swarm fit` measures it."""
    from peers.commands.fit import probe
    from peers.fit import fits, hardware

    yield f"measuring the memory of a step, {training}"
    config = setup.config(f"run.model.training={training}", "run.batch.groups=1", "run.batch.micro=1")
    machine, gpu = hardware.machine(), setup.device != "cpu"
    case = fits.Case.of(Path(setup.model), config, machine if gpu else machine._replace(gpus=()))
    shape = case.run_shape._replace(prompt=setup.prompt)
    predicted = fits.needs(case, shape, fits.LEARNER, training).easy.model
    job = probe.Job(
        what="learner", folder=setup.model, config=config, prompt=setup.prompt, gpu=1.0 if gpu else 0.0
    )
    outcome = probe.run(job, PROBING)
    if outcome.failed:
        yield Gap(row=setup.row, why=f"memory of a step, {training}: {outcome.detail}")
        return
    yield setup.figure(
        f"memory of a step of one group, {training}",
        outcome.peak / MIB,
        "MiB",
        against="`swarm fit`'s prediction",
        other=predicted / MIB,
        note=(
            f"{setup.group} completions of {setup.tokens} tokens, a prompt of {setup.prompt}; with weights"
        ),
    )


def _gradients(setup: Setup, training: str) -> Iterator[Step]:
    """Of groups as one row each, and of completions with a padded row each, all in one pass, in turns: as the
    row `learner` compares on a CPU."""
    from peers.build.model import factory
    from peers.fit import hardware
    from swarm.learn.learners.learner import Learner
    from swarm.learn.models.policy import LanguageModel

    yield f"gradients, {training}"
    config = setup.config(f"run.model.training={training}")
    packed, tokens = factory.learner(Path(setup.model), config)
    assert isinstance(packed, Learner)
    padded = Learner(
        LanguageModel(packed.policy.module, tokens, "to compare", in_step=True),  # type: ignore[arg-type]
        config.run,
        config.peer.learner,
        ram=lambda: hardware.memory()[1],
    )
    lengths = _lengths(setup)
    groups = [made_group(i, row, tokens.vocabulary) for i, row in enumerate(lengths)]
    rewards = [group.rewards for group in groups]
    useful = setup.tasks * setup.prompt + sum(map(sum, lengths))

    def gradient(learner: Learner) -> float:
        began = time.perf_counter()
        learner.gradient(groups, setup.prompts, rewards, time.time())
        return useful / (time.perf_counter() - began)

    turns = [(gradient(packed), gradient(padded)) for _ in range(1 + setup.turns)][1:]
    cells = setup.tasks * setup.group * (setup.prompt + max(map(max, lengths)))
    said = packed.padded and f"; not packed: {packed.padded}"
    middle = median(length for row in lengths for length in row)
    yield Figure.of_turns(
        (mine for mine, _ in turns),
        (its for _, its in turns),
        row=setup.row,
        what=f"forward and backward, {training}, groups as rows",
        unit="tokens/s",
        against="padded rows",
        note=(
            f"{useful} distinct tokens, {cells} in padded rows: {setup.tasks} groups of {setup.group},"
            f" prompts of {setup.prompt}, completions of {min(map(min, lengths))} to"
            f" {max(map(max, lengths))}, median {middle:g}{said}"
        ),
    )
    mine, its = packed.statistics(), padded.statistics()
    yield setup.figure(
        f"peak memory of that, {training}",
        mine["peak"] / MIB,
        "MiB",
        against="padded rows",
        other=its["peak"] / MIB,
        note=(
            f"of all in use, both learners' weights included; at most {mine['micro']:g} and {its['micro']:g}"
            " groups in one pass"
        ),
    )


def _lengths(setup: Setup) -> list[tuple[int, ...]]:
    """Of each group's completions."""
    spread = np.random.default_rng(0).lognormal(0.0, SPREAD, (setup.tasks, setup.group))
    lengths = np.clip(np.rint(MEDIAN * setup.tokens * spread), 2, setup.tokens).astype(int)
    lengths[0, 0] = setup.tokens
    return [tuple(row) for row in lengths.tolist()]


PARTS: dict[str, Callable[[Setup], Iterator[Step]]] = {
    "model": _model,
    "hf": _hf,
    "learner": _learner,
    "vllm": _vllm,
}

if __name__ == "__main__":
    sys.exit(main())
