"""The row that measures a GPU, rehearsed on the CPU; its processes are forks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import peft  # noqa: F401  # forks have what is imported here
import pytest
from engine_workers import fork_workers
from forks import fork_children
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

from lab.figures.table import Figure, Gap, Unmeasured
from lab.gpu import parts as gpu_parts
from lab.gpu import row as gpu
from lab.gpu.parts import Setup, Step
from peers.build.model import factory  # noqa: F401
from peers.commands.fit import probe
from peers.errors import UserError
from peers.fit import hardware
from swarm.learn.models import tiny  # noqa: F401
from swarm.processes import process
from swarm.sample.base import EngineError


def part(command: list[str]) -> None:
    sys.argv = command[2:]
    gpu_parts.main()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_parts, "processors", lambda: 1)  # tests share the cores
    fork_workers(monkeypatch)
    fork_children(monkeypatch, process, part)
    fork_children(monkeypatch, probe, lambda _: probe.main())


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forked")
def test_a_rehearsal_has_the_rows_of_engines_learner_memory_and_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    said: list[str] = []
    lines = gpu.rehearse(said.append)
    figures = {line.what: line for line in lines if isinstance(line, Figure)}
    replayed = "a group of hf on the CPU, replayed on the CPU"
    assert [*figures] == [
        "sampled by hf, 2 prompts x 4 completions x 16 tokens",
        f"{replayed}: largest difference",
        f"{replayed}: tokens that are off",
        "memory of a step of one group, full",
        "memory of a step of one group, lora",
        "forward and backward, full, groups as rows",
        "peak memory of that, full",
        "forward and backward, lora, groups as rows",
        "peak memory of that, lora",
    ], lines
    assert 0 < figures[f"{replayed}: largest difference"].value < 0.5, "bfloat16 beside float32"
    off = figures[f"{replayed}: tokens that are off"]
    assert off.value == 0 and "verdict: honest" in off.note
    for training in gpu_parts.TRAININGS:
        assert figures[f"forward and backward, {training}, groups as rows"].ratio
        assert figures[f"memory of a step of one group, {training}"].other
    assert [line.why.split(":")[0] for line in lines if isinstance(line, Gap)] == ["vllm"]
    assert "hf samples" in said and "gradients, lora" in said


def figure(setup: Setup) -> Step:
    return setup.figure("came", 1.0, "tokens/s")


def refuses(setup: Setup) -> Iterator[Step]:
    yield figure(setup)
    raise EngineError("no memory is left")


def dies(setup: Setup) -> Iterator[Step]:
    yield "dies"
    os._exit(3)


def hangs(setup: Setup) -> Iterator[Step]:
    yield figure(setup)
    time.sleep(60.0)


@pytest.mark.usefixtures("forked")
def test_a_part_that_fails_or_hangs_is_a_gap_beside_its_figures_and_the_next_ones_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {"model": lambda _: iter(["made"]), "hf": refuses, "learner": dies, "vllm": hangs}
    monkeypatch.setattr(gpu_parts, "PARTS", parts)
    monkeypatch.setattr(gpu, "find_spec", lambda _: object())
    monkeypatch.setattr(gpu, "LIMITS", {"model": 20.0, "hf": 20.0, "learner": 20.0, "vllm": 1.0})
    monkeypatch.setattr(gpu, "LEAST", 0.5)
    monkeypatch.setattr("lab.swarms.partner.GOODBYE", 0.1)
    first, refused, died, last, hung = gpu.rehearse(lambda _: None)
    assert isinstance(first, Figure) and isinstance(last, Figure)
    whys = [line.why for line in (refused, died, hung) if isinstance(line, Gap)]
    assert whys[0].endswith("no memory is left") and whys[0].startswith("hf: ")
    assert "exit code 3" in whys[1] and "did not answer within" in whys[2]


@pytest.mark.usefixtures("forked")
def test_a_row_whose_time_is_over_begins_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TOTAL", gpu.GOODBYE + gpu.LEAST - 1.0)
    with pytest.raises(Unmeasured, match="are over"):
        gpu.rehearse(lambda _: None)


def test_without_a_gpu_it_says_what_it_needs_and_what_can_be_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = hardware.machine()._replace(gpus=())
    monkeypatch.setattr(hardware, "machine", lambda: machine)
    with pytest.raises(Unmeasured, match=r"names no GPU .*`make gpu-check.* gpu-rehearsal"):
        gpu.measure(lambda _: None)


@pytest.mark.parametrize(
    ("built", "why"), [(None, "a CPU build"), ("13.0", "the driver here may be too old")]
)
def test_a_torch_that_finds_no_gpu_says_why(
    built: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", built)
    with pytest.raises(UserError, match=f"does not find this machine's GPU: .*{why}.*`make gpu-check"):
        list(gpu_parts.PARTS["model"](gpu.WHOLE))
