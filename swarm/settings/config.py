"""Configuration: TOML in two halves, typed and closed.

`[run]` is what all peers must agree on (it is part of the Spec, whose digest is in the invite and in every
frame); `[peer]` holds for one peer alone. Layers, later ones win: the defaults below, `extends` (another
file, relative to this one), the file, `SWARM__RUN__SEED=3` in the environment, `--set run.seed=3`.
`objective.name` is short for `run.objective.name` wherever the first word is not `run` or `peer` and names a
table of exactly one half.

The text under a field is its entry in `swarm config schema`: unit, meaning, what a larger value does, and for
which run or machine another value is right. A number that no run changes is a constant beside the code that
uses it. Ranges are part of the fields' types. Not handled here: how a Config is read
(swarm.settings.loading), and whether an objective, a task or a model of that name exists (the code that
builds it says so).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from swarm.settings.page import Page, Track
from swarm.settings.peer_limits import Auditing, Limits
from swarm.settings.sections import (
    Count,
    Date,
    Decay,
    Name,
    Number,
    Part,
    Port,
    Positive,
    RunName,
    Seconds,
    Section,
    SetName,
    Share,
    Weight,
)
from swarm.types import COMPLETIONS


class Model(Section):
    """The policy that the run starts from, and which of its weights are trained."""

    name: Name = "embedded"
    """`embedded` (made and warm-started by the project), `smollm2` (SmolLM2-135M-Instruct, from a package of
    pip's registry), a folder, or a Hub id: the model to train."""
    revision: str = ""
    """Branch, tag or commit of a Hub id, for a model that changes there; a run that starts from a Hub id is
    pinned to the commit it finds."""
    training: Literal["full", "lora", "qlora"] = "full"
    """`full`, `lora` (low-rank adapters: a release is an adapter) or `qlora` (adapters on a 4-bit base):
    adapters for smaller GPUs and slower lines."""
    adapter: str = ""
    """A folder or Hub id of a LoRA adapter on this model, as peft writes it, to train on from: it is version
    0, and `lora` is as it has it. `""`: a new one."""
    template: Literal["auto", "on", "off"] = "auto"
    """Whether prompts go through the tokenizer's chat template; `auto`: where it has one. `off` for a base
    model whose tokenizer has one."""
    template_options: dict[str, int | float | str | bool] = {}
    """Variables that the chat template reads, such as `{ enable_thinking = false }` for Qwen3's."""
    date: Date = ""
    """Day, such as `2026-11-29`, for a chat template that asks for the date. `""`: the day on which the run
    begins, in UTC; a run whose template asks is pinned to it, so that all peers have the same prompts."""


class Lora(Section):
    """Adapters, where `model.training` is `lora` or `qlora`."""

    rank: Count = 16
    """Rank r of the update B A (arXiv 2106.09685). Lower it for smaller releases: trained parameters, moments
    and releases grow with it."""
    alpha: Positive = 32.0
    """The update is scaled by alpha / rank: a larger value acts as a larger learning rate. Change it with the
    rank, or to follow a recipe."""
    targets: Name = "all-linear"
    """Layers that get an adapter: `all-linear`, or names such as `q_proj,v_proj`, to train fewer."""


class TaskSettings(Section):
    """Where tasks come from, and how completions are scored."""

    name: Name = "digit-sums"
    """A built-in source, `data:` and a file, folder or Hub data set, `gym:` and a reasoning-gym name,
    `verifiers:` and an environment, or the name of an installed `swarm.tasks` entry point."""
    options: dict[str, int | float | str | bool] = {}
    """Options of the source; `swarm task try NAME` shows them."""
    rewards: tuple[str, ...] = ()
    """Reward functions, added up: `math`, `exact`, `code`, `FILE.py:function`, `package.module:function` or
    `swarm.rewards` entry points; none: the source's own."""
    weights: tuple[float, ...] = ()
    """Factor of each of `rewards`, in their order; none: 1 each."""
    system: str = ""
    """System message before every prompt; only with a chat template."""
    timeout: Seconds = 10.0
    """Seconds to score one group; what takes longer is dropped with an event. Raise it for slow rewards."""


class Sampling(Section):
    """How completions are sampled; learners compute log-probabilities at the same temperature."""

    group_size: Annotated[int, Meta(ge=2, le=COMPLETIONS)] = 8
    """G, completions per task. A larger group has a less noisy baseline and costs more sampling per task;
    smaller ones suit long completions."""
    max_tokens: Count = 6
    """Most tokens of a completion, to be set for each task: memory and time grow with it. 6: digit-sums' five
    and the end token."""
    temperature: Positive = 1.0
    """Divides the logits before the softmax; completions vary more above 1. Raise it where groups are all
    right or all wrong alike."""
    quantized: bool = False
    """Whether samplers may use weights in 4 or 8 bits. More machines fit then; log-probabilities are those of
    the quantized policy, so that ratios to the learner's are noisier."""
    replayable: bool = True
    """Take only groups that learners can replay, those of hf, vllm, and a vLLM server with our processor
    (docs/engines.md). `false` takes others, too: no audit sees them, and all strangers that send such groups
    have one stranger's share together (batch.share)."""
    heads: Annotated[int, Meta(ge=0, le=64)] = 0
    """Most probable tokens that samplers of replayable groups tell with each token: learners check by them,
    without the model, that every group is what its seed draws. 4 are 24 bytes a token more; 0: none."""


class ObjectiveSettings(Section):
    """The method whose gradient learners compute."""

    name: Name = "gepo"
    """A method of `swarm objectives`, or `package.module:NAME` for an Objective of your own."""
    options: dict[str, float | str | bool] = {}
    """Overrides of the method's parts, such as `eps = 0.2` or the weight of its KL term, `kl = 0.005`."""
    overlong: Literal["plain", "mask", "penalty"] = "plain"
    """Completions at `sampling.max_tokens`: `plain`, as all others; `mask`: cut ones have no gradient, and
    count in their groups' statistics; `penalty`: long ones have less reward, by 1 at the limit (DAPO's soft
    overlong punishment). Take `mask` where right answers are cut, `penalty` where answers grow."""
    overlong_share: Part = 0.2
    """penalty: share of `sampling.max_tokens` over which it grows, DAPO's L_cache / L_max. Raise it where
    completions should become shorter long before the limit."""


class Optimizer(Section):
    """AdamW over float32 master weights."""

    name: Literal["adamw", "adamw8bit"] = "adamw"
    """`adamw`, or `adamw8bit` (bitsandbytes: moments in 8 bits take a quarter of the memory), where a
    learner's GPU is too small."""
    lr: Weight = 0.0
    """Learning rate. 0: the known rate for this kind of model and training
    (swarm.learn.learners.learning_rates), which is set and printed where the run begins; a run without a
    known rate needs one here."""
    grad_clip: Positive = 1.0
    """L2 norm of the averaged gradient above which it is scaled down to this. Raise it for methods whose
    gradients are larger (docs/objectives.md)."""
    warmup: Number = 20
    """Steps of linear warm-up, also of a learner that joins: its moments start from zero. Fewer suit small
    rates and short runs. With 5 the demo collapses at lr 2e-3, with 20 it learns at twice the default rate as
    well."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after the warm-up: `constant`, or down to 0 at `stop.versions`, `linear` or as half a
    `cosine`: where accuracy still jumps about at the end. It follows from the version, at all learners."""


class BatchSize(Section):
    """When a batch closes, and who fills it."""

    groups: Count = 32
    """Groups of one step over all learners; each learner closes its batch at its share. A larger batch has a
    less noisy gradient and takes longer to fill."""
    close_after: Seconds = 5.0
    """Seconds after its first group at which a batch that is not full is closed. A larger value waits for
    slow samplers, and groups grow older meanwhile."""
    micro: Count = 32
    """Most groups in one forward pass; fewer where their tokens do not fit in memory. The gradient does not
    depend on it."""
    buffer: Annotated[float, Meta(ge=1.0)] = 2.0
    """Groups that a learner asks for (its credit) and holds ready, as a multiple of its share of a batch.
    With a larger buffer learners wait less, and groups are older when they are trained on: lower it where
    samplers are many."""
    share: Part = 0.25
    """Largest share of a batch for one sampler without an invite, while others fill the rest: in a public run
    strangers are many. A sampler with an invite gives way only where groups of others wait. Raise it where
    few samplers come."""
    newcomers: Share = 0.25
    """Largest share of a batch for all new samplers together, while others fill the rest: many keys of one
    operator count as one newcomer. Raise it where most samplers stay for less than an hour. A sampler without
    an invite is new until 128 of its groups were admitted and an hour has passed since the first."""
    refill: Literal["off", "signal"] = "off"
    """What a batch is filled with: `off`, with all groups as they come; `signal`, with groups whose
    completions differ in reward (docs/objectives.md). The others have no advantage; up to four of them for
    each place of a batch make room, so that a run in which nothing differs goes on. Steps cost more
    completions, and each teaches more."""


class Window(Section):
    """The staleness budget: a group outside of it is never trained on."""

    versions: Number = 64
    """Most versions between a group's policy and the learner's. A larger window takes more of slow samplers,
    and gradients are further off-policy."""
    seconds: Seconds = 1800.0
    """Most seconds since the release of a group's policy, once the learner is at a later one. Raise it for
    samplers that take longer for a group."""
    drift: Positive = 8.0
    """Nats a token. A group whose mean log-probability at the learner is lower than its sampler's by more is
    not trained on, and a token's ratio is clipped to exp(-2 drift) ... exp(drift). Raise it where staleness
    is the experiment."""


class Averaging(Section):
    """A round of averaging between learners. Links with long delays need larger times."""

    mode: Literal["butterfly", "sites"] = "butterfly"
    """What a version is made of: `butterfly`, the mean of one gradient of each learner, in full; `sites`, for
    slow lines, the largest values of what each learner changed in `local_steps` steps of its own
    (docs/network.md). `match`, `request`, `chunk` and `compression` are the butterfly's."""
    local_steps: Count = 8
    """sites: optimizer steps of each learner in a version: more of them for slower lines, since they cost
    fewer bytes a step. Learners drift apart meanwhile, and `window.versions` counts versions of so many
    steps."""
    density: Part = 0.015625
    """sites: largest share of a contribution's values that is sent, the others are sent later. Bytes grow
    with it: lower it for slower lines."""
    outer_momentum: Decay = 0.9
    """sites: decay of the Nesterov momentum of the step along the mean of the contributions. In the long run
    it multiplies steps by 1 / (1 - momentum): lower it where `local_steps` are few."""
    match: Seconds = 2.0
    """Seconds to find the other learners; a round starts at once when all of them are there. Those that still
    compute their gradients are waited for longer where that trains more groups a second. Raise it for links
    with long round trips."""
    request: Seconds = 1.0
    """Seconds beyond `match` that a learner waits for the start of a group that accepted it; below `match`.
    Raise both together."""
    chunk: Seconds = 5.0
    """Seconds without a chunk after which a member counts as lost; more where members' lines ask for it."""
    deadline: Weight = 0.0
    """Most seconds of a round, beyond which it is begun anew; for measurements that need the same limit
    everywhere. 0: twice what the gradient's size and the members' uplinks ask for, at least 20 and at most
    `window.seconds`. sites: seconds in which the others name their contributions after the first one; 0:
    twice what a gradient takes, at least 20."""
    overlap: bool = False
    """Learners compute their next gradient while a round waits for releases and lines: for learners at
    several sites. They idle less, and a gradient is a version older, which `window.versions` counts."""
    compression: Literal["none", "float16", "int8"] = "float16"
    """Of gradients on the wire: `float16` takes half the bytes of `none`, which is float32. `int8` takes half
    of these, for an error of a hundredth of the norm each way: for home lines."""


class Releasing(Section):
    """Publishing and keeping releases."""

    timeout: Seconds = 5.0
    """Seconds that learners wait for the publisher before the next one publishes in its place. Raise it with
    the size of a release, which takes time to pack and hash."""
    keep: Count = 4
    """Newest versions whose bytes a seed holds on its disk; at most as many older ones stay while they are
    fetched. Other peers hold two at most. Lower it for large models on small disks."""
    checkpoint_every: Count = 10
    """Versions between two checkpoints of a learner. A restarted learner catches up from its last one: raise
    it where a checkpoint is large, set 1 where a lone learner must lose nothing."""


class EvaluationSet(Section):
    """Further tasks for evaluators, under a NAME of yours: another task or other options, or all rows of a
    data set whose prompts are not trained. They decide nothing. Left out is what is as in `run.task`."""

    name: str = ""
    """Source, as `task.name`; `""`: the one of `run.task`."""
    options: dict[str, int | float | str | bool] = {}
    """Options of the source. The others are those of `run.task`; for another data set those of columns
    (`prompt`, `answer`, `answer_after`), for another source none."""
    rewards: tuple[str, ...] = ()
    """Reward functions; none: those of `run.task`, and of a source of another kind its own."""
    weights: tuple[float, ...] = ()
    """Factor of each of `rewards`; none: those of `run.task` where its rewards are, else 1 each."""
    system: str = ""
    """System message before every prompt; `""`: that of `run.task`."""
    tasks: Number = 0
    """Different tasks of one evaluation; 0: as many as `evaluation.tasks`."""


class Evaluation(Section):
    """Answers to held-out tasks, by evaluators: greedy ones, which decide when a run is complete, and sampled
    ones."""

    tasks: Count = 256
    """Different held-out tasks of one evaluation, all there are where they are fewer; with 256 the standard
    error of the accuracy is at most 3.2 %. Fewer where answers are long."""
    every: Count = 10
    """Versions between two evaluations. Raise it where an evaluation takes longer than so many versions."""
    right: float = 1.0
    """Least reward of an answer that counts as right, for rewards that are no 0 or 1."""
    samples: Annotated[int, Meta(ge=0, le=COMPLETIONS)] = 0
    """Completions of each task that are sampled beside the greedy one, as the run samples: their mean@k and
    pass@k are shown; 0: none. An evaluation takes so many times longer."""
    sets: dict[SetName, EvaluationSet] = {}
    """Name -> further tasks."""


class Stop(Section):
    """When the run is complete; 0 is never."""

    versions: Number = 0
    """Version at which it is complete."""
    accuracy: Share = 0.0
    """Held-out accuracy, 0 to 1, at which it is complete: the interval of 95 % of an evaluation has to lie
    above it, such as 240 right answers of 256 (`run.evaluation.tasks`) for 0.9, or all answers are right. Of
    more tasks a smaller share has to be right."""


class Pace(Section):
    """How often peers announce themselves, and when silence counts as a loss."""

    beat: Seconds = 2.0
    """Seconds between two heartbeats, plus up to a quarter of random jitter. More often: faster news and more
    gossip; large swarms beat less often."""
    patience: Seconds = 10.0
    """Seconds of silence after which a peer counts as lost; more than two heartbeats. Raise it where links
    stall."""


class Run(Section):
    """What all peers of a run agree on."""

    name: RunName = "demo"
    """Names the run's folders; each run of yours has its own."""
    seed: Number = 1
    """Seed of tasks and of the first weights: change it to repeat an experiment."""
    private: bool = False
    """Whether only peers with an invite may read and answer; in a public run anyone may sample and watch."""
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
    """An injected delay, for experiments: drawn again for each release or group, and slept."""

    law: Literal["none", "constant", "lognormal", "weibull", "exponential"] = "none"
    """`none`, `constant`, `lognormal`, `weibull` or `exponential`."""
    seconds: Weight = 0.0
    """Seconds. constant: the delay; lognormal: the median; weibull: the scale; exponential: the mean."""
    shape: Positive = 0.617
    """lognormal: sigma of the log (0.617 is the paper's); weibull: the shape."""
    longest: Weight = 1800.0
    """Seconds at most: a longer delay is cut to it."""


class Delay(Section):
    """Injected delays, for experiments with staleness."""

    policy: DelayLaw = DelayLaw()
    """Before a sampler fetches a release."""
    upload: DelayLaw = DelayLaw()
    """Before a group is sent to a learner."""


class Listen(Section):
    """Where other peers reach this one."""

    host: Name = "0.0.0.0"
    """Address of the interface to listen on, such as 127.0.0.1 for this machine alone; `::` is all of them,
    with IPv6 and IPv4."""
    port: Port = 0
    """TCP port, for a firewall or router that lets one through; 0 takes a free one, and the same one later
    unless another program has it."""
    parts: Port = 0
    """A learner's TCP port for parts of gradients, 0: a free one; where it is closed `port` carries them."""
    announce: tuple[str, ...] = ()
    """Multiaddresses to announce instead of those that libp2p finds, where a router forwards another port;
    this machine's private one is added."""
    dial_only: bool = False
    """Do not listen: for a machine that can only open connections."""
    relay: bool = True
    """Carry connections between peers of this run of which one cannot be dialled, where this one can. `false`
    spares a line that is paid by the byte."""
    upnp: bool = False
    """Ask the router for a port mapping, at home behind a router that allows it."""


class EngineSettings(Section):
    """The engine of a sampler or an evaluator."""

    name: Literal["auto", "hf", "vllm", "vllm-server", "toy"] = "auto"
    """`auto` (what is installed and fits; it says why), `hf` (transformers), `vllm` (on this machine),
    `vllm-server` (one that runs already) or `toy` (simulations)."""
    device: Name = "auto"
    """`cpu`, `cuda`, `cuda:N`; `auto`: a GPU where there is one. Set it where several peers share a
    machine."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and activations; `auto`: bfloat16 on a GPU, float32 on a CPU. `float16` for GPUs without
    bfloat16."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """Weights in 8 or 4 bits, where `run.sampling.quantized` allows it: for a model that does not fit
    otherwise."""
    tasks: Count = 8
    """Tasks sampled in one call, each its own group, and answers that an evaluator's `hf` makes at a time on
    a CPU; fewer when memory runs out. More fill a GPU better, and each call takes longer."""
    threads: Count = 1
    """CPU threads of the engine: raise it where this peer has a CPU to itself. On one that other peers share,
    more than 1 is slower."""
    length: Number = 0
    """vLLM: most tokens of a prompt and its completion together; 0: the model's own limit. Lower it where
    memory is short."""
    memory: Share = 0.85
    """vLLM: largest share of the GPU's memory that it takes. Raise it where nothing else uses the GPU."""
    url: str = ""
    """vllm-server: its address, such as http://127.0.0.1:8000."""
    timeout: Seconds = 600.0
    """Seconds for one step of the engine, of `vllm-server` for one call; beyond them it counts as hung and is
    restarted. Raise it for slow CPUs and long completions."""


class Training(Section):
    """The device and precision of a learner."""

    device: Name = "auto"
    """`cpu`, `cuda`, `cuda:N`; `auto`: a GPU where there is one. Set it where several peers share a
    machine."""
    gpus: Number = 0
    """GPUs that one model is sharded over (FSDP2); 0: all of this machine's where it does not fit one. Set it
    to leave some to samplers."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forward and backward pass; master weights are float32. `auto`: bfloat16 on a GPU, float32 on a
    CPU. `float32` for GPUs without bfloat16."""
    record: Number = 0
    """Newest versions that stay reproducible: `swarm replay --version` makes them again from what is kept of
    them; 0: none. For checking a learner."""
    checkpointing: Literal["auto", "on", "off"] = "auto"
    """Recompute activations in the backward pass instead of keeping them: a third slower, far less memory.
    `auto`: when memory runs out; `on` where it is known to, which saves the failed attempt."""


class Rewards(Section):
    """How this peer scores completions."""

    code: Literal["sandbox", "trust", "refuse"] = "sandbox"
    """What to do with reward code that came with a run, and everywhere with `gym:`, which runs completions
    as code: bubblewrap without network or home, a program of this user, or refuse the run. `trust` also
    consents to an objective `package.module:NAME` and a task `verifiers:NAME`, which no sandbox holds."""


class Swarm(Section):
    """How many peers of each role `swarm up` starts on this machine, besides one seed."""

    learners: Count = 2
    """Two show how gradients are averaged; with one GPU take 1."""
    samplers: Count = 3
    """More sample faster on a machine with more cores or GPUs."""
    evaluators: Number = 1
    """0 where the model should fill the machine's memory but once less."""


class Peer(Section):
    """Settings of one peer, its own business."""

    serve: Literal["held", "mirror"] = "held"
    """`held`: give others the releases that this peer has fetched for itself; `mirror`: fetch each release
    and its patches as soon as it is announced, and be asked first: for the line of a lab or a cloud."""
    listen: Listen = Listen()
    limits: Limits = Limits()
    audit: Auditing = Auditing()
    engine: EngineSettings = EngineSettings()
    learner: Training = Training()
    rewards: Rewards = Rewards()
    delay: Delay = Delay()
    page: Page = Page()
    track: Track = Track()
    swarm: Swarm = Swarm()


class Config(Section):
    run: Run = Run()
    peer: Peer = Peer()
