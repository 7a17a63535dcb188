"""Row `patches`: bytes of a release as a patch on the one before, at three learning rates, and the cost of
encoding and applying it, each beside XOR + zstd.

A random Llama takes real steps in a process of its own (lab.processes.stepping). Not handled here: trained
models, whose rows differ more in scale; links (they carry the patch).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.figures.table import Figure, Say, number
from lab.swarms.partner import Answer, Partner

HIDDEN, LAYERS = 256, 8
"""Of a model of 7M parameters: its steps take a quarter of a minute of CPU. The shares are the same from 1M
to 100M."""

STEPS, VERSIONS = 16, 8
"""Steps at the first rate; AdamW's moments are settled after about ten. The last versions are
composed."""

RATES = (1e-6, 5e-6, 1e-5)
"""The first is that of full training from 0.3B on, the last that of adapters
(swarm.learn.learners.learning_rates)."""


def measure(
    say: Say,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    steps: int = STEPS,
    versions: int = VERSIONS,
    rates: Sequence[float] = RATES,
) -> list[Figure]:
    from swarm.learn.models import tiny

    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        model = tiny.make(Path(folder), "llama", hidden=hidden, layers=layers)
        setup = {"model": str(model), "steps": steps, "versions": versions, "rates": list(rates)}
        with Partner("lab.processes.stepping", setup) as child:
            for step in range(steps):
                child.receive()
                say(f"step {step + 1} of {steps}, at lr {rates[0]:g}")
            seen = [child.receive() for _ in rates]
            told = child.receive()
    sizes = [_size(told, *one) for one in zip(rates, seen, strict=True)]
    return [*sizes, *_speeds(told, rates[0], seen[0]), _composed(told, rates[0], versions)]


def _size(told: Answer, rate: float, seen: Answer) -> Figure:
    share = {name: seen[name]["bytes"] / told["bytes"] for name in ("patch", "xor", "values")}
    changed = seen["changed"]
    return Figure(
        row="patches",
        what=f"a patch at lr {rate:g}",
        value=100 * share["patch"],
        unit="% of bf16",
        against="XOR + zstd, or gaps + values + zstd",
        other=100 * min(share["xor"], share["values"]),
        note=(
            f"{2 * changed / told['bytes']:.2%} of {told['parameters'] / 1e6:.0f}M values changed, "
            f"{seen['patch']['bytes'] / changed:.2f} bytes each; XOR {share['xor']:.2%}, gaps + values"
            f" {share['values']:.2%}; aim <= 0.55"
        ),
    )


def _speeds(told: Answer, rate: float, seen: Answer) -> list[Figure]:
    def speed(of: str, what: str) -> float:
        return float(told["bytes"] / seen[of][what] / 1e9)

    return [
        Figure(
            row="patches",
            what=f"{what} a patch at lr {rate:g}",
            value=speed("patch", what),
            unit="GB of bf16 a CPU second",
            against="XOR + zstd",
            other=speed("xor", what),
            note=f"blocks of 1 MiB, one thread; aim >= {aim}",
        )
        for what, aim in (("encode", 0.6), ("apply", 4))
    ]


def _composed(told: Answer, rate: float, versions: int) -> Figure:
    one, parts = (100 * told["composed"][key] / told["bytes"] for key in ("one", "parts"))
    return Figure(
        row="patches",
        what=f"{versions} versions at lr {rate:g} in one patch",
        value=one,
        unit="% of bf16",
        against="a patch of each",
        other=parts,
        note=f"composed of the {versions} patches, of {number(parts / versions)} % each",
    )
