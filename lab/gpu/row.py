"""Rows `gpu`, for a machine with an NVIDIA GPU, which takes eight minutes at most, and `gpu-rehearsal`, the
same with a tiny model on a CPU. Both compute with a random Qwen3, so that nothing is downloaded.

    part      limit   what it measures (lab.gpu.parts)
    model      90 s   nothing: it writes the model
    hf        150 s   tokens/s sampled by transformers; a group's replay on the GPU and on the CPU
    learner   150 s   memory beside `swarm fit`'s prediction; tokens/s of gradients, packed beside padded
    vllm     what is  tokens/s sampled by vLLM with our noise; a group's replay on the GPU
             left

A part that fails, or exceeds its limit, is a Gap with its reason, beside the figures that it had by then; the
next ones go on. Not handled here: several GPUs, and those of other makers.
"""

from __future__ import annotations

import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec

from lab.figures.table import Figure, Gap, Line, Say, Unmeasured
from lab.gpu.parts import Setup
from lab.swarms.partner import GOODBYE, Partner
from peers.fit import hardware
from swarm import extras

TOTAL = 480.0
"""Seconds of the whole row."""

LIMITS = {"model": 90.0, "hf": 150.0, "learner": 150.0, "vllm": TOTAL}
"""Part -> its most seconds. vLLM compiles and captures graphs first: it has what the others leave, 75 s at
least."""

LEAST = 20.0
"""Seconds in which a part can measure anything."""

QWEN3 = {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
"""Of Qwen3-0.6B's config, beside its width of 1024, its 28 layers and what follows from them."""


WHOLE = Setup(
    row="gpu",
    device="cuda",
    dtype="auto",
    hidden=1024,
    layers=28,
    entries=QWEN3,
    tasks=8,
    group=8,
    prompt=200,
    tokens=256,
    turns=3,
)

REHEARSAL = Setup(
    row="gpu-rehearsal",
    device="cpu",
    dtype="bfloat16",  # so that it rounds otherwise than a learner here
    hidden=64,
    layers=2,
    entries={},
    tasks=2,
    group=4,
    prompt=20,
    tokens=16,
    turns=1,
)


def measure(say: Say) -> list[Line]:
    if not hardware.machine().gpus:
        raise Unmeasured(
            "nvidia-smi names no GPU here, and this row measures one: run `make gpu-check` on a machine with"
            " an NVIDIA GPU and its driver; `swarm bench gpu-rehearsal` does the same on a CPU, with a tiny"
            " model"
        )
    return _parts(say, WHOLE)


def rehearse(say: Say) -> list[Line]:
    return _parts(say, REHEARSAL)


def _parts(say: Say, setup: Setup) -> list[Line]:
    lines, end = list[Line](), time.monotonic() + TOTAL
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        for part, limit in LIMITS.items():
            here = msgspec.structs.replace(setup, part=part, model=str(Path(folder, "model")))
            try:
                _part(say, here, min(end - GOODBYE, time.monotonic() + limit), lines)
            except Unmeasured as error:
                if part == "model":
                    raise
                say(f"{part}: {error}")
                lines.append(Gap(row=setup.row, why=f"{part}: {error}"))
    return lines


def _part(say: Say, setup: Setup, end: float, lines: list[Line]) -> None:
    """Add a part's lines as they come. Raises Unmeasured where it does not reach its end by then."""
    if setup.part == "vllm" and find_spec("vllm") is None:
        raise Unmeasured(f"vLLM is not installed in this environment: {extras.install('vllm')}")
    if end - time.monotonic() < LEAST:
        raise Unmeasured(f"the {TOTAL:.0f} s of this row are over")
    with Partner("lab.gpu.parts", msgspec.to_builtins(setup)) as child:
        while "done" not in (answer := child.receive(max(0.0, end - time.monotonic()))):
            if "said" in answer:
                say(answer["said"])
                continue
            line = msgspec.convert(answer["line"], Line)
            lines.append(line)
            if isinstance(line, Figure):
                say(f"{line.what}: {line.value:.4g} {line.unit}")
