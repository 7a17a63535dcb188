"""Memory and time of a role, predicted: arithmetic over a model's ModelShape, a run's RunShape and a device's
Speed. No I/O, no torch.

    ModelShape + RunShape + kind --> MemoryNeed    least, easy: bytes that compute, bytes kept in RAM
    the same + Speed             --> ExpectedPace  tokens a second, seconds a step

Every formula adds up what the code really holds at its peak; the reasons stand beside the terms. What depends
on kernels and allocators is left to a factor that `peers.fit.fits` learns from measurements. `P` parameters,
`N` trained ones, `w` bytes of a weight as it computes: 4 on a CPU, 2 on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from swarm.config import Config

SAMPLED = ("float32", "bfloat16", "int8", "nf4")
TRAINED = ("full", "full+adamw8bit", "lora", "qlora")

MIB = 1 << 20
PROGRAM = 600 * MIB
"""Bytes of a peer without its model: Python, torch, p2pd and hivemind's children. README's figures: 526 to
598 MiB."""

CONTEXT = 700 * MIB
"""Bytes of CUDA's context and the workspaces of its libraries, on the GPU."""

PROMPT = 256
"""Assumed tokens of a prompt: a grade-school question with its chat template has 100 to 200."""

LOOSE = 1.1
"""Factor: allocators hold about a tenth more than is asked of them."""

QUANTIZED = {"int8": 1.0, "nf4": 0.5 + 1 / 64}
"""Bytes a weight: NF4 has a scale of 8 bits for 64 weights."""

KEPT = {4: 6.0, 2: 4.0}
"""w -> bytes kept for the backward pass, for each feature that goes into or comes out of a linear layer: 1.2
to 1.6 values of 4 bytes counted on Llama, Qwen3 and Gemma 3; in bfloat16 1.7 to 2, since norms and rotations
stay in float32."""

LOGITS = 1 << 24
"""Logits at a time in swarm.learn.chunked_logprobs: in float32, with their softmax and its gradient beside
them."""

DRAWN = 32
"""Bytes a logit while a token is drawn: float32 logits and log-probabilities, float64 probabilities, their
sums and copies."""

MOMENTS = {"adamw": 8.0, "adamw8bit": 2.0 + 8 / 256}
"""Bytes a trained weight: two float32, or two bytes with a float32 scale for each 256."""

VECTORS = 4
"""Float32 vectors of N in RAM during a round: the gradient, the averager's buffer, its sums, and the parts on
the way."""

RELEASES = 3
"""Releases in RAM beside those held for others: the whole one, its chunks while they are joined or cut, the
tensors in it."""

STATE = 12
"""Bytes a trained weight of a learner's whole state: float32 master and two moments."""

OPERATIONS = 150
"""Launches a layer: 40 kernels (products, norms, rotations, attention, activation), each with Python around
it that takes longer."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, counted by peers.fit.model_shape."""

    parameters: int
    """All of them, tied ones once."""
    linear: int
    """Of these, weights of the linear layers before the output: what bitsandbytes makes smaller."""
    spread: int
    """In-features plus out-features, summed over those layers: what passes through them for one token."""
    targeted: int
    """The same over the layers that get an adapter; times the rank, it is the adapter's size."""
    head: int
    """Weights of the output layer, vocabulary times width, whether tied or not."""
    vocabulary: int
    hidden: int
    layers: int
    cache: int
    """Values that one token leaves in the KV cache."""
    longest: int
    """Positions that the model was made for; 0 where its config does not say."""


class RunShape(NamedTuple):
    """Sizes of the work that a run and a peer's settings ask of a machine."""

    group: int
    """G, completions of one task."""
    tasks: int
    """Tasks sampled in one call."""
    prompt: int
    """Tokens of a prompt."""
    tokens: int
    """Tokens of a completion."""
    groups: int
    """Groups of one learner step."""
    keep: int
    """Releases held for others."""
    rank: int
    training: str
    """`full`, `lora` or `qlora`: what a release is."""
    recompute: bool
    """Activations are recomputed in any case."""

    @staticmethod
    def of(config: Config) -> RunShape:
        run = config.run
        return RunShape(
            group=run.sampling.group_size,
            tasks=config.peer.engine.tasks,
            prompt=PROMPT,
            tokens=run.sampling.max_tokens,
            groups=run.batch.groups,
            keep=run.release.keep,
            rank=run.lora.rank,
            training=run.model.training,
            recompute=config.peer.learner.checkpointing == "on",
        )


class Speed(NamedTuple):
    """Measured speed of one device."""

    flops: float
    """Operations a second of a matrix product."""
    bandwidth: float
    """Bytes read or written a second."""
    launch: float
    """Seconds of the smallest operation."""


class MemoryNeed(NamedTuple):
    """Bytes at the peak. What computes is on the GPU, or in RAM where there is none."""

    fixed: float
    """Bytes of computing that do not depend on the model."""
    model: float
    """Bytes of computing with the model."""
    keeping: float
    """Bytes kept in RAM."""

    @property
    def computing(self) -> float:
        return self.fixed + self.model


class Needs(NamedTuple):
    least: MemoryNeed
    """With the smallest batch that the code goes down to."""
    easy: MemoryNeed
    """With the batch that was asked for."""


class ExpectedPace(NamedTuple):
    tokens: float
    """Tokens a second."""
    step: float
    """Seconds: of one call that samples whole groups, or of one learner step."""


def sampler(of: ModelShape, ask: RunShape, kind: str, gpu: bool) -> Needs:
    """Weights, the KV cache of all rows at full length, and the logits of the token being drawn.

    The engine halves its tasks when memory runs out, down to one: that is the least. In RAM are the releases
    held for others and the newest one as it is read; on a GPU the program itself lies in RAM too.
    """
    width = 4 if kind == "float32" or (kind in QUANTIZED and not gpu) else 2
    weights = stored(of, kind, width) + (width * trained(of, ask) if ask.training != "full" else 0)
    row = (ask.prompt + ask.tokens) * of.cache * width + of.vocabulary * DRAWN
    keeping = (ask.keep + RELEASES) * released(of, ask) + (PROGRAM if gpu else 0)
    return Needs(
        *(
            MemoryNeed(CONTEXT if gpu else PROGRAM, LOOSE * (weights + tasks * ask.group * row), keeping)
            for tasks in (1, ask.tasks)
        )
    )


def learner(of: ModelShape, ask: RunShape, kind: str, gpu: bool, shards: int = 1) -> Needs:
    """Weights and what trains them, plus a group's forward and backward pass.

    full: weights (w P), float32 masters where w is not 4 already, moments, the sum of gradients (4 N) and one
    chunk's (w N). lora, qlora: the base, as it is or in NF4, is only read; all the rest is for the N values
    of the adapter. Memory is for one group at a time: a learner makes its chunks as small as it must. The
    least recomputes activations: of each layer only its input is kept, and one layer's are there at a time.
    The easy one keeps them, and gives its state to a learner that joins, which is there as bytes and as
    chunks. In RAM are the vectors of a round, and releases as for a sampler. `shards` GPUs have a part each
    of what does not depend on the batch, and groups of their own.
    """
    training, _, optimizer = kind.partition("+")
    ask = ask._replace(training=training)
    width, n = (2 if gpu else 4), trained(of, ask)
    base = stored(of, "nf4" if training == "qlora" else "", width) + (width * n if training != "full" else 0)
    static = base + n * (4 + width + MOMENTS[optimizer or "adamw"] + (4 if width != 4 else 0))
    tokens = ask.group * (ask.prompt + ask.tokens)
    scored = 12 * min(LOGITS, ask.group * ask.tokens * of.vocabulary)
    # a float32 copy of the output layer, and its gradient
    scored += 4 * of.head * ((width != 4) + (training == "full"))
    layer = tokens * of.spread * KEPT[width] / of.layers
    less = layer + tokens * of.layers * of.hidden * width
    more = less if ask.recompute else layer * of.layers
    keeping = VECTORS * 4 * n + (ask.keep + RELEASES) * released(of, ask) + (PROGRAM if gpu else 0)
    fixed = CONTEXT if gpu else PROGRAM
    return Needs(
        MemoryNeed(fixed, LOOSE * (static / shards + less + scored), keeping),
        MemoryNeed(fixed, LOOSE * (static / shards + more + scored), keeping + 2 * STATE * n),
    )


def sampling(of: ModelShape, ask: RunShape, kind: str, speed: Speed, gpu: bool) -> ExpectedPace:
    """One forward pass a token for all rows: the weights are read once, the cache of every row is read,
    logits are drawn from.

    Products take 2 operations a weight and row. Quantized weights are made wide again before they are
    multiplied: read small, written and read wide. A kernel costs its launch at least; small models consist of
    launches.
    """
    width = 4 if kind == "float32" or (kind in QUANTIZED and not gpu) else 2
    rows = ask.tasks * ask.group
    read = stored(of, kind, width) + (2 * width * of.linear if kind in QUANTIZED else 0)
    context = ask.prompt + ask.tokens / 2
    moved = (read + rows * (context * of.cache * width + of.vocabulary * DRAWN)) / speed.bandwidth
    one = max(moved, 2 * rows * (of.linear + of.head) / speed.flops) + of.layers * OPERATIONS * speed.launch
    prompt = 2 * ask.tasks * ask.prompt * of.linear / speed.flops + of.layers * OPERATIONS * speed.launch
    step = prompt + ask.tokens * one
    return ExpectedPace(rows * ask.tokens / step, step)


def learning(of: ModelShape, ask: RunShape, kind: str, speed: Speed, recompute: bool) -> ExpectedPace:
    """A forward pass has 2 operations a weight and token; backward has 2 for what goes on to the layer below
    and, where the layer is trained, 2 for its own gradient; recomputing adds a forward pass. The output layer
    works on completions alone, and makes its logits twice. Then every trained weight, gradient and moment
    passes through memory, some of it several times.
    """
    training, _, _ = kind.partition("+")
    n = trained(of, ask._replace(training=training))
    passes = 4 + (2 if training == "full" else 0) + (2 if recompute or ask.recompute else 0)
    rows = ask.groups * ask.group
    tokens = rows * (ask.prompt + ask.tokens)
    products = tokens * passes * of.linear + rows * ask.tokens * (8 if training == "full" else 6) * of.head
    wide = 4 * of.linear * ask.groups / speed.bandwidth if training == "qlora" else 0.0
    launches = ask.groups * of.layers * OPERATIONS * passes / 2 * speed.launch
    step = products / speed.flops + wide + launches + n * (7 * 4 + VECTORS * 8) / speed.bandwidth
    return ExpectedPace(tokens / step, step)


def stored(of: ModelShape, kind: str, width: int) -> float:
    """Bytes of the weights; bitsandbytes makes the linear layers smaller, and neither embeddings, norms nor
    the output layer."""
    small = QUANTIZED.get(kind)
    return of.parameters * width if small is None else of.linear * small + (of.parameters - of.linear) * width


def trained(of: ModelShape, ask: RunShape) -> int:
    """N: all parameters, or those of an adapter: rank times what goes into and comes out of each layer that
    has one."""
    return of.parameters if ask.training == "full" else ask.rank * of.targeted


def released(of: ModelShape, ask: RunShape) -> int:
    """Bytes of a release: bfloat16."""
    return 2 * trained(of, ask)
