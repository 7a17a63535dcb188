"""Predicts a role's memory and time from a model's shape, a run's settings and a device's speed. No I/O, no
torch.

    ModelShape + RunShape + kind --> MemoryNeed    least, easy: bytes that compute, bytes kept in RAM
    the same + Speed             --> ExpectedPace  tokens a second, seconds a step

Every formula adds up the allocations of the code at its peak; the reasons stand beside the terms.
`peers.fit.fits` multiplies the result by a factor from measurements, for effects of kernels and allocators.
`P`: parameters; `N`: trained parameters; `w`: bytes of a weight in computation, 4 on a CPU, 2 on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from swarm.learn.reference import has_reference
from swarm.settings.config import Config

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

ALLOCATOR_OVERHEAD = 1.1
"""Factor: allocators hold about a tenth more than is requested."""

QUANTIZED = {"int8": 1.0, "nf4": 0.5 + 1 / 64}
"""Bytes a weight: NF4 has a scale of 8 bits for 64 weights."""

ACTIVATION_BYTES = {4: 6.0, 2: 4.0}
"""w -> bytes kept for the backward pass, for each feature that goes into or comes out of a linear layer.
Llama, Qwen3 and Gemma 3 keep 1.2 to 1.6 values of 4 bytes; in bfloat16 1.7 to 2 values, since norms and
rotary embeddings stay in float32."""

LOGITS = 1 << 24
"""Logits that swarm.learn.learners.chunked_logprobs computes at a time: in float32, beside their softmax and
its gradient."""

DRAW_BYTES = 32
"""Bytes a logit while a token is drawn: float32 logits and log-probabilities, float64 probabilities, their
sums and copies."""

MOMENTS = {"adamw": 8.0, "adamw8bit": 2.0 + 8 / 256}
"""Bytes of the optimizer's moments for each trained weight: two float32, or two bytes and a float32 scale for
each 256."""

VECTORS = 4
"""Float32 vectors of length N in RAM during a round: the gradient, the averager's buffer, its sums, and the
parts in transfer."""

RELEASES = 0.2
"""Of a release in RAM: patches that are made and pieces that are read. Whole ones are files
(swarm.storage.image)."""

STATE_BYTES = 12
"""Bytes of a learner's full state for each trained weight: float32 master and two moments."""

OPERATIONS = 150
"""Launch times of a layer: 40 kernels (products, norms, rotary embeddings, attention, activation), each with
Python code that takes longer than its launch."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, counted by peers.fit.model_shape."""

    parameters: int
    """All of them, tied ones once."""
    linear: int
    """Of these, weights of the linear layers before the output layer, which bitsandbytes quantizes."""
    spread: int
    """In-features plus out-features, summed over those layers: their values for one token."""
    targeted: int
    """The same over the layers that get an adapter; times the rank, it is the adapter's size."""
    head: int
    """Weights of the output layer, vocabulary times width, whether tied or not."""
    vocabulary: int
    hidden: int
    layers: int
    cache: int
    """Values of one token in the KV cache."""
    longest: int
    """Positions that the model supports; 0 when its config gives none."""
    refusal: str = ""
    """Why the engine `hf` cannot sample from it; empty where it can."""


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
    rank: int
    training: str
    """`full`, `lora` or `qlora`: the content of a release."""
    recompute: bool
    """Activations are always recomputed."""
    audits: bool
    """A learner may hold the policy once more, to replay what strangers sampled."""
    reference: bool = False
    """A KL term is against version 0: the base of an adapter, or a second copy of all weights."""

    @staticmethod
    def of(config: Config) -> RunShape:
        run, audit = config.run, config.peer.audit
        audited = (not run.private or audit.invited) and not run.sampling.quantized
        return RunShape(
            group=run.sampling.group_size,
            tasks=config.peer.engine.tasks,
            prompt=PROMPT,
            tokens=run.sampling.max_tokens,
            groups=run.batch.groups,
            rank=run.lora.rank,
            training=run.model.training,
            recompute=config.peer.learner.checkpointing == "on",
            audits=audit.share > 0 and audited,
            # an objective of the owner's own is for learners alone, who have consented to it by then
            reference=":" not in run.objective.name and has_reference(run),
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
    """Bytes at the peak. `computing` memory is on the GPU, or in RAM without one."""

    fixed: float
    """Bytes for computing that do not depend on the model."""
    model: float
    """Bytes for computing that depend on the model."""
    keeping: float
    """Bytes kept in RAM."""

    @property
    def computing(self) -> float:
        return self.fixed + self.model


class Needs(NamedTuple):
    least: MemoryNeed
    """With the smallest batch that the code uses."""
    easy: MemoryNeed
    """With the batch in the settings."""


class ExpectedPace(NamedTuple):
    tokens: float
    """Tokens a second."""
    step: float
    """Seconds of one call that samples whole groups, or of one learner step."""


def sampler(model: ModelShape, run: RunShape, kind: str, gpu: bool) -> Needs:
    """Weights, the KV cache of all rows at full length, and the logits of the token being drawn.

    The engine halves its tasks when memory runs out, down to one: that is `least`. RAM holds the part of a
    release that is being read; with a GPU, also the program itself.
    """
    width = 4 if kind == "float32" or (kind in QUANTIZED and not gpu) else 2
    weights = stored(model, kind, width) + (width * trained(model, run) if run.training != "full" else 0)
    row = (run.prompt + run.tokens) * model.cache * width + model.vocabulary * DRAW_BYTES
    keeping = RELEASES * released(model, run) + (PROGRAM if gpu else 0)
    return Needs(
        *(
            MemoryNeed(
                CONTEXT if gpu else PROGRAM, ALLOCATOR_OVERHEAD * (weights + tasks * run.group * row), keeping
            )
            for tasks in (1, run.tasks)
        )
    )


def learner(model: ModelShape, run: RunShape, kind: str, gpu: bool, shards: int = 1) -> Needs:
    """Weights and optimizer state, plus the forward and backward pass of one group.

    full: weights (w P), float32 masters, moments, the sum of gradients (4 N) and one
    chunk's gradient (w N). lora, qlora: the base, as it is or in NF4, is only read; everything else is for
    the N values of the adapter. A KL term against version 0 takes all weights once more, or that base. One
    group at a time is counted: a learner makes its chunks as small as it must. `least` recomputes
    activations: it keeps each layer's input, and one layer's activations at a time. `easy` keeps all
    activations, and has room for the policy of audits, which is given back when memory runs out, and for a
    state transfer, which holds the state as bytes and as chunks. RAM holds the vectors of a round, and the
    part that is being packed. Each of `shards` GPUs has a part of everything that does not depend on the
    batch, and groups of its own.
    """
    training, _, optimizer = kind.partition("+")
    run = run._replace(training=training)
    width, n = (2 if gpu else 4), trained(model, run)
    base = stored(model, "nf4" if training == "qlora" else "", width) + (
        width * n if training != "full" else 0
    )
    start = base if run.reference and training == "full" else 0
    static = base + start + n * (4 + width + MOMENTS[optimizer or "adamw"] + 4)
    tokens = run.group * (run.prompt + run.tokens)
    scored = 12 * min(LOGITS, run.group * run.tokens * model.vocabulary)
    # a float32 copy of the output layer, and its gradient
    scored += 4 * model.head * ((width != 4) + (training == "full"))
    layer = tokens * model.spread * ACTIVATION_BYTES[width] / model.layers
    less = layer + tokens * model.layers * model.hidden * width
    more = less if run.recompute else layer * model.layers
    packing = RELEASES + (shards > 1)  # what several GPUs have goes through one place in RAM
    keeping = VECTORS * 4 * n + packing * released(model, run) + (PROGRAM if gpu else 0)
    fixed, audit = CONTEXT if gpu else PROGRAM, base if run.audits else 0.0
    return Needs(
        MemoryNeed(fixed, ALLOCATOR_OVERHEAD * (static / shards + less + scored), keeping),
        MemoryNeed(
            fixed,
            ALLOCATOR_OVERHEAD * (static / shards + more + scored + audit),
            keeping + 2 * STATE_BYTES * n,
        ),
    )


def sampling(model: ModelShape, run: RunShape, kind: str, speed: Speed, gpu: bool) -> ExpectedPace:
    """One forward pass for each token of all rows: it reads the weights once and the cache of every row, and
    draws from the logits.

    Products take 2 operations for each weight and row. Quantized weights are expanded before they are
    multiplied: read small, written and read wide. A kernel takes at least its launch time, which dominates in
    small models.
    """
    width = 4 if kind == "float32" or (kind in QUANTIZED and not gpu) else 2
    rows = run.tasks * run.group
    read = stored(model, kind, width) + (2 * width * model.linear if kind in QUANTIZED else 0)
    context = run.prompt + run.tokens / 2
    moved = (read + rows * (context * model.cache * width + model.vocabulary * DRAW_BYTES)) / speed.bandwidth
    one = (
        max(moved, 2 * rows * (model.linear + model.head) / speed.flops)
        + model.layers * OPERATIONS * speed.launch
    )
    prompt = (
        2 * run.tasks * run.prompt * model.linear / speed.flops + model.layers * OPERATIONS * speed.launch
    )
    step = prompt + run.tokens * one
    return ExpectedPace(rows * run.tokens / step, step)


def learning(model: ModelShape, run: RunShape, kind: str, speed: Speed, recompute: bool) -> ExpectedPace:
    """One learner step.

    A forward pass takes 2 operations for each weight and token; the backward pass takes 2 for the input's
    gradient and, in a trained layer, 2 for the weight's gradient; recomputing adds a forward pass. The output
    layer runs on completions only, and computes its logits twice. Then every trained weight, gradient and
    moment is read or written, some of them several times.
    """
    training, _, _ = kind.partition("+")
    n = trained(model, run._replace(training=training))
    passes = 4 + 2 * ((training == "full") + (recompute or run.recompute) + run.reference)
    rows = run.groups * run.group
    tokens = rows * (run.prompt + run.tokens)
    products = (
        tokens * passes * model.linear + rows * run.tokens * (8 if training == "full" else 6) * model.head
    )
    wide = 4 * model.linear * run.groups / speed.bandwidth if training == "qlora" else 0.0
    launches = run.groups * model.layers * OPERATIONS * passes / 2 * speed.launch
    step = products / speed.flops + wide + launches + n * (7 * 4 + VECTORS * 8) / speed.bandwidth
    return ExpectedPace(tokens / step, step)


def stored(model: ModelShape, kind: str, width: int) -> float:
    """Bytes of the weights; bitsandbytes quantizes the linear layers, but not embeddings, norms and the
    output layer."""
    small = QUANTIZED.get(kind)
    return (
        model.parameters * width
        if small is None
        else model.linear * small + (model.parameters - model.linear) * width
    )


def trained(model: ModelShape, run: RunShape) -> int:
    """N: all parameters, or those of an adapter: rank times in-features plus out-features of each layer that
    has one."""
    return model.parameters if run.training == "full" else run.rank * model.targeted


def released(model: ModelShape, run: RunShape) -> int:
    """Bytes of a release: bfloat16."""
    return 2 * trained(model, run)
