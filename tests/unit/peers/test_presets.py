"""Every preset loads, is what its page says, and takes two steps: with a tiny model of the same architecture
and a few rows of the same columns in place of what it downloads."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from nouns import seeds
from places import ROOT
from transformers import Qwen3Config

from peers.build.model import factory, task_source
from peers.build.run_folder import RunFolder
from peers.cli import parser
from peers.fit import fits
from peers.fit.calibration import Corrections
from peers.fit.hardware import Gpu, Machine
from swarm.frames.run_types import Spec
from swarm.learn.learners.learning_rates import with_learning_rate
from swarm.learn.models import tiny, tokenization
from swarm.settings.config import Config
from swarm.settings.loading import load, run_dict
from swarm.tasks.base import TaskSource
from swarm.types import Array, Digest, Group, PeerId, Task, Times

PAGE = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
QWEN3 = {
    "Qwen/Qwen3-0.6B": (1024, 3072, 28, 16, True),
    "Qwen/Qwen3-1.7B": (2048, 6144, 28, 16, True),
    "Qwen/Qwen3-8B": (4096, 12288, 36, 32, False),
}
"""As their configs on the Hub have them: width, width inside, layers, heads, tied embeddings."""

PRESETS = ("gsm8k-0.6b", "math-1.7b-lora", "reason-8b-qlora", "smollm2", "paper-delay64")
FAMILY = {
    "Qwen/Qwen3-0.6B": "qwen3",
    "Qwen/Qwen3-1.7B": "qwen3",
    "Qwen/Qwen3-8B": "qwen3",
    "smollm2": "llama",
    "embedded": "llama",
}
ROWS = {
    "data:openai/gsm8k": [
        {"question": f"What is {n} and 3?", "answer": f"It is\n#### {n + 3}"} for n in range(40)
    ],
    "data:zwhe99/MATH": [
        {"problem": f"Add {n} and 3.", "solution": f"So $\\boxed{{{n + 3}}}$."} for n in range(40)
    ],
    "data:agentica-org/DeepScaleR-Preview-Dataset": [
        {"problem": f"Add {n} and 3.", "answer": str(n + 3), "solution": "..."} for n in range(40)
    ],
}
"""Of each data set: its columns, and answers as it writes them."""

HERE = ("split", "subset", "held_out_split", "revision")
"""Options that name a part of a Hub data set."""


def preset(name: str) -> Config:
    return load(ROOT / "configs" / f"{name}.toml").config


@pytest.fixture(params=PRESETS)
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Config, RunFolder]]:
    """The preset on a tiny model and a few rows, with short completions and small batches; all else is its
    own."""
    config = preset(request.param)
    run, replace = with_learning_rate(config.run, 0)[0], msgspec.structs.replace
    model = tiny.make(tmp_path / "run" / "model", FAMILY[run.model.name])
    task = run.task
    if task.name in ROWS:
        rows = tmp_path / "rows.jsonl"
        rows.write_text("\n".join(map(json.dumps, ROWS[task.name])))
        options = {option: value for option, value in task.options.items() if option not in HERE} | {
            "held_out": 0.2
        }
        task = replace(task, name=f"data:{rows}", options=options)
    run = replace(
        run,
        task=task,
        model=replace(run.model, name=str(model)),
        sampling=replace(run.sampling, group_size=4, max_tokens=6),
        batch=replace(run.batch, groups=2),
    )
    spec = Spec(protocol=1, run=run_dict(run), owner="", files={}, genesis=Digest(""), release_size=1)
    yield Config(run=run, peer=config.peer), RunFolder(tmp_path / "run", spec, Digest("0" * 64))


def sealed(task: Task, version: int, seed: int, sampled: object, rewards: tuple[float, ...]) -> Group:
    tokens, logprobs = (np.asarray(getattr(sampled, name)) for name in ("tokens", "logprobs"))
    return Group(
        id=f"{seed:032x}",
        sampler=PeerId("me"),
        task=task.index,
        version=version,
        weights=Digest("0" * 64),
        draw=0,
        seed=seed,
        lengths=sampled.lengths,  # type: ignore[attr-defined]
        tokens=Array(dtype="int32", shape=tokens.shape, data=tokens.astype("<i4").tobytes()),
        logprobs=Array(dtype="float32", shape=logprobs.shape, data=logprobs.astype("<f4").tobytes()),
        rewards=rewards,
        times=Times(released=0.0, fetched=0.0, used=0.0, finished=0.0, sent=0.0),
    )


def rendered(folder: RunFolder, config: Config) -> TaskSource:
    render = tokenization.of_run(folder.model, config.run).render_all
    return task_source.source(folder, config, render, lambda line: None)


def test_a_preset_takes_two_steps(small: tuple[Config, RunFolder]) -> None:
    config, folder = small
    learner, _ = factory.learner(folder.model, config)
    engine = factory.hf(folder.model, config)
    source = rendered(folder, config)
    released = [learner.weights()]
    for step in range(2):
        engine.load(released[-1])
        tasks = [source.task(2 * step + i) for i in range(2)]
        asked = [task.prompt for task in tasks]
        groups, scored = [], []
        for i, (task, sampled) in enumerate(
            zip(tasks, engine.sample(asked, 4, seeds(2 * step, asked)), strict=True)
        ):
            own = source.rewards(task, sampled.texts)
            assert len(own) == 4 and all(map(math.isfinite, own))
            # a random model's answers are all wrong, and nothing would be learned
            scored.append((0.0, 1.0, 0.0, 1.0))
            groups.append(sealed(task, step, 2 * step + i, sampled, scored[-1]))
        gradient = learner.gradient(groups, [task.prompt for task in tasks], scored, 0.0)
        metrics = learner.step(gradient.vector)
        assert metrics["grad_norm"] > 0 and all(
            map(math.isfinite, [*gradient.metrics.values(), *metrics.values()])
        )
        assert gradient.metrics["kl"] < 1e-2  # sampler and learner have one policy
        released.append(learner.weights())
    source.close()
    engine.close()
    assert learner.version == 2
    assert len({weights.digest for weights in released}) > 1


@pytest.mark.nightly
def test_a_right_answer_of_each_data_set_is_worth_1(small: tuple[Config, RunFolder]) -> None:
    config, folder = small
    source = rendered(folder, config)
    task = source.task(0)
    right = (
        task.answer
        if config.run.task.name in ("digit-sums", "sentiment")
        else f"It is \\boxed{{{_number(task.answer)}}}."
    )
    assert source.rewards(task, [right])[0] >= config.run.evaluation.right
    source.close()


def _number(answer: str) -> str:
    return re.findall(r"\d+", answer)[-1]


# --- docs/presets.md ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_pages_memory_is_what_fit_predicts(tmp_path: Path) -> None:
    span = r"([\d.]+) to ([\d.]+) GB \|"
    stated = re.findall(rf"^\| `([\w.-]+)` \| (\w+) \| (\w+) \| {span} {span}", PAGE, re.MULTILINE)
    assert {row[0] for row in stated} == {
        name for name in PRESETS if name not in ("smollm2", "paper-delay64")
    }
    vast = Machine(gpus=(Gpu("any", 1 << 40, 1 << 40),), cores=8, ram=1 << 40, free=1 << 40)
    for name, role, kind, *numbers in stated:
        config = preset(name)
        width, inside, layers, heads, tied = QWEN3[config.run.model.name]
        Qwen3Config(
            vocab_size=151936,
            hidden_size=width,
            intermediate_size=inside,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=tied,
        ).save_pretrained(tmp_path)
        least, easy = fits.row(
            fits.Case.of(tmp_path, config, vast, Corrections("any", tmp_path / "none")), role, kind
        ).needs
        predicted = [least.computing, easy.computing, least.keeping, easy.keeping]
        assert [f"{value / fits.GB:.1f}" for value in predicted] == numbers, (name, role, kind)


def test_the_pages_commands_and_links_are_good() -> None:
    commands = re.findall(r"`swarm ([a-z]+ [^`]*)`", PAGE)
    assert len(commands) > 3
    for command in commands:
        words = parser().parse_args(shlex.split(command))
        named = [Path(value) for value in vars(words).values() if str(value).endswith(".toml")]
        assert all((ROOT / path).exists() for path in named)
    links = re.findall(r"\]\(([\w./-]+)\)", PAGE)
    assert links and not [link for link in links if not (ROOT / "docs" / link).exists()]
    assert all(f"configs/{name}.toml" in PAGE for name in PRESETS)
