"""Configuration: TOML in two halves, typed and closed.

`[run]` is what all peers must agree on (it is part of the Spec, whose digest is in the invite and in every
frame); `[peer]` is mine alone. Layers, later ones win: the defaults below, `extends` (another file, relative
to this one), the file, `SWARM__RUN__SEED=3` in the environment, `--set run.seed=3`. `objective.name` is short
for `run.objective.name` wherever the first word is not `run` or `peer` and names a table of exactly one half.

Ranges are part of the fields' types. Not handled here: how a Config is read (swarm.config_loading), and
whether an objective, a task or a model of that name exists (whoever builds it says so).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarm.types import COMPLETIONS

Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0.0)]
Positive = Annotated[float, Meta(gt=0.0)]
Weight = Annotated[float, Meta(ge=0.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Part = Annotated[float, Meta(gt=0.0, le=1.0)]
Decay = Annotated[float, Meta(ge=0.0, lt=1.0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Name = Annotated[str, Meta(min_length=1)]
RunName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9._-]{0,39}$")]
"""A run's name is part of folder names and of what the owner signs."""


class Section(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A TOML table: unknown keys are refused."""


class Model(Section):
    name: Name = "embedded"
    """`embedded` (made and warm-started by the project), a folder, or a Hub id."""
    revision: str = ""
    """Hub revision; a run started from a Hub id pins the one it resolved."""
    training: Literal["full", "lora", "qlora"] = "full"
    """`full`, `lora` (low-rank adapters: a release is an adapter) or `qlora` (adapters on a base in 4
    bits)."""
    template: Literal["auto", "on", "off"] = "auto"
    """Prompts through the tokenizer's chat template: `auto` when it has one."""


class Lora(Section):
    """Adapters, where `model.training` is `lora` or `qlora`."""

    rank: Count = 16
    alpha: Positive = 32.0
    """The update is scaled by alpha / rank."""
    targets: Name = "all-linear"
    """Layers that get an adapter: `all-linear`, or names such as `q_proj,v_proj`."""


class TaskSettings(Section):
    name: Name = "digit-sums"
    """A built-in one, `data:` and a file, folder or Hub data set, `gym:` and a reasoning-gym name,
    `verifiers:` and an environment, or the name of an installed `swarm.tasks` entry point."""
    options: dict[str, int | float | str | bool] = {}
    """Of the source; `swarm task try NAME` shows them."""
    rewards: tuple[str, ...] = ()
    """Added up: `math`, `exact`, `code`, `FILE.py:function`, `package.module:function` or `swarm.rewards`
    entry points; none: the source's own."""
    weights: tuple[float, ...] = ()
    """One for each of `rewards`; none: 1 each."""
    system: str = ""
    """System message before every prompt, where the chat template is used."""
    timeout: Seconds = 10.0
    """Seconds to score one group; beyond, it is dropped with an event."""


class Sampling(Section):
    group_size: Annotated[int, Meta(ge=2, le=COMPLETIONS)] = 8
    """G, completions per task."""
    max_tokens: Count = 6
    """Longest completion, the end token included."""
    temperature: Positive = 1.0
    quantized: bool = False
    """Samplers may sample with weights in 4 or 8 bits: their log-probabilities are those of the quantized
    policy."""


class ObjectiveSettings(Section):
    name: Name = "gepo"
    """`swarm objectives` lists them; `package.module:NAME` is one of your own."""
    options: dict[str, float | str | bool] = {}
    """Overrides of the method's parts, such as `eps = 0.2` or the weight of its KL term, `kl = 0.005`."""


class Optimizer(Section):
    name: Literal["adamw", "adamw8bit"] = "adamw"
    """`adamw`, or `adamw8bit` (bitsandbytes: moments in 8 bits, a quarter of their memory)."""
    lr: Weight = 0.0
    """0: what is known for this kind of model and training (swarm.learn.rates), settled and said where the
    run begins; a run of a kind of which nothing is known begins with a rate of its own alone."""
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    weight_decay: Weight = 0.0
    grad_clip: Positive = 1.0
    warmup: Number = 20
    """Steps of linear warm-up, also after a join: a newcomer's moments start from zero. With five the demo
    collapses at lr 2e-3, with twenty it learns at twice the default rate as well."""


class BatchSize(Section):
    groups: Count = 32
    """Groups of one version over all learners: each learner closes at its share."""
    close_after: Seconds = 5.0
    """Seconds after the first group when a smaller batch is closed as it is."""
    micro: Count = 32
    """Groups in one forward pass."""
    buffer: Annotated[float, Meta(ge=1.0)] = 2.0
    """Groups that a learner holds ready, as a multiple of its share: its credit."""
    share: Part = 0.25
    """Of a batch, at most for one sampler that was not invited, while others fill the rest: strangers are
    many in a public run. An invited one gives way where others' groups wait, and has all that they leave."""
    newcomers: Share = 0.25
    """Of a batch, at most for all new samplers together, while others fill the rest: whoever makes many keys
    is one newcomer. New is who was not invited, until 128 of its groups were admitted and an hour has passed
    since the first."""


class Window(Section):
    """Nothing older is ever trained on."""

    versions: Number = 64
    seconds: Seconds = 1800.0
    drift: Positive = 8.0
    """Nats a token: a group that the learner finds less likely than its sampler by more, in its mean, teaches
    nothing, and no token's ratio counts above exp(drift) or below exp(-2 drift). Raise it where staleness is
    the experiment."""


class Averaging(Section):
    match: Seconds = 2.0
    """Seconds to find the others; a full group starts at once."""
    request: Seconds = 1.0
    """Seconds beyond `match` that a learner still waits for a group which took it to begin; below `match`."""
    chunk: Seconds = 5.0
    """Seconds without a chunk before a member counts as lost."""
    deadline: Seconds = 20.0
    """Seconds for a whole round; then the averager is replaced."""
    alone: Literal["step", "keep"] = "step"
    """When nobody came: `step` alone, or `keep` the gradient and gather on."""
    compression: Literal["none", "float16"] = "float16"
    """`none` or `float16`, on the wire."""


class Releasing(Section):
    timeout: Seconds = 5.0
    """Seconds before the next learner publishes in the publisher's place."""
    keep: Count = 4
    """Newest releases whose bytes a peer holds for others; older ones, as many at most, stay while somebody
    fetches them."""
    checkpoint_every: Count = 10
    """Versions between two checkpoints of a learner."""


class Evaluation(Section):
    tasks: Count = 256
    every: Count = 10
    """Versions."""
    right: float = 1.0
    """Reward from which an answer counts as right."""


class Stop(Section):
    """When the run is complete; 0 is never."""

    versions: Number = 0
    accuracy: Share = 0.0
    """Held out, 0 to 1."""


class Pace(Section):
    beat: Seconds = 2.0
    """Seconds between heartbeats, plus up to a quarter of jitter."""
    patience: Seconds = 10.0
    """Seconds of silence before a peer counts as lost; more than two heartbeats."""


class Run(Section):
    name: RunName = "demo"
    seed: Number = 1
    private: bool = False
    """Only invited peers may do anything; in a public run strangers may sample."""
    model: Model = Model()
    lora: Lora = Lora()
    task: TaskSettings = TaskSettings()
    sampling: Sampling = Sampling()
    objective: ObjectiveSettings = ObjectiveSettings()
    optimizer: Optimizer = Optimizer()
    batch: BatchSize = BatchSize()
    window: Window = Window()
    averaging: Averaging = Averaging()
    release: Releasing = Releasing()
    evaluation: Evaluation = Evaluation()
    pace: Pace = Pace()
    stop: Stop = Stop()


class DelayLaw(Section):
    """An injected delay, for experiments: drawn anew each time, really slept."""

    law: Literal["none", "constant", "lognormal", "weibull", "exponential"] = "none"
    """`none`, `constant`, `lognormal`, `weibull` or `exponential`."""
    seconds: Weight = 0.0
    """constant: the delay; lognormal: the median; weibull: the scale; exponential: the mean."""
    shape: Positive = 0.617
    """lognormal: sigma of the log (0.617 is the paper's); weibull: the shape."""
    longest: Weight = 1800.0


class Delay(Section):
    policy: DelayLaw = DelayLaw()
    """On a release's way to the sampler."""
    upload: DelayLaw = DelayLaw()
    """On a group's way to the learner."""


class Listen(Section):
    host: Name = "0.0.0.0"
    port: Port = 0
    """TCP; 0 takes a free one and keeps it in the run folder."""
    announce: tuple[str, ...] = ()
    """Addresses to tell others instead of those found."""
    dial_only: bool = False
    """Do not listen: for a machine that can only connect outwards."""
    relay: bool = False
    """Serve as a relay, and look for one."""
    upnp: bool = False


class EngineSettings(Section):
    """What a sampler or an evaluator samples with."""

    name: Literal["auto", "hf", "vllm", "vllm-server", "toy"] = "auto"
    """`auto` (what is installed and fits; it says why), `hf` (transformers), `vllm` (on this machine),
    `vllm-server` (one that runs already) or `toy` (simulations)."""
    device: Name = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: bfloat16 on a GPU, float32 on a CPU."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """Weights in 8 or 4 bits, where `run.sampling.quantized` allows it."""
    tasks: Count = 8
    """Tasks sampled in one call, each its own group; fewer when memory runs out."""
    threads: Count = 1
    length: Number = 0
    """vLLM: longest prompt and completion together, tokens; 0: the model's."""
    memory: Share = 0.85
    """vLLM: share of the GPU's memory that it may take."""
    url: str = ""
    """vllm-server: such as http://127.0.0.1:8000."""
    timeout: Seconds = 600.0
    """Seconds for one call of the engine; beyond, it counts as hung and is started again."""


class Training(Section):
    """What a learner computes with."""

    device: Name = "auto"
    gpus: Number = 0
    """GPUs of this machine that share one model (FSDP2); 0: all of them, when the model does not fit one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forward and backward pass; master weights are float32. `auto`: bfloat16 on a GPU, float32 on a
    CPU."""
    checkpointing: Literal["auto", "on", "off"] = "auto"
    """Recompute activations instead of keeping them: a third slower, far less memory. `auto`: when memory
    runs out."""


class Rewards(Section):
    """How this peer scores completions."""

    code: Literal["sandbox", "trust", "refuse"] = "sandbox"
    """Reward code that came with a run: in bubblewrap without network or home, as if it were mine, or not at
    all."""


class Page(Section):
    host: Name = "127.0.0.1"
    port: Port = 8080
    """0 takes a free one; a taken port moves on to the next free one only when `free` is set."""
    free: bool = True
    hosts: tuple[str, ...] = ()
    """Names under which a browser may ask for the page, besides those of `host`: the one that a proxy in
    front of it has."""
    invite: bool = True
    """Show how to join: in a public run to everybody who sees the page, in a private one never without an
    invite for samplers."""


class History(Section):
    """What a window remembers; bounded, and kept in the run folder over restarts."""

    points: Count = 2000
    """Points of a curve; a full one is thinned by half, so that a long run keeps its shape."""
    events: Count = 1000
    """Sentences."""
    peers: Count = 1000
    """Rows; the one that was silent for longest makes room."""
    samples: Count = 24
    """Groups to read."""
    releases: Count = 512
    columns: Annotated[int, Meta(ge=2)] = 180
    """Of the map of lags; a full one halves its resolution."""
    save: Seconds = 30.0
    """Seconds between two saves."""


class Swarm(Section):
    """What `swarm up` starts on this machine, besides one seed."""

    learners: Count = 2
    samplers: Count = 3
    evaluators: Number = 1


class Peer(Section):
    listen: Listen = Listen()
    engine: EngineSettings = EngineSettings()
    learner: Training = Training()
    rewards: Rewards = Rewards()
    delay: Delay = Delay()
    page: Page = Page()
    history: History = History()
    swarm: Swarm = Swarm()


class Config(Section):
    run: Run = Run()
    peer: Peer = Peer()
