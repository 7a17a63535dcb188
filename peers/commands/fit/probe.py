"""Runs one measurement of `swarm fit` in its own process, which may run out of memory, crash or hang.

    Job --> python -m peers.commands.fit.probe --> ProbeResult
            (rlimit; first to be killed when memory runs out)

`speed` times the device's basic operations; `weights` writes random weights for a model whose own are not on
the disk; `sampler`, `evaluator` and `learner` build the same objects as such a peer and run them twice: the
first call warms up, the second is timed. `trial` does that with adapters and with all weights of a model that
`tiny` wrote; they are separate jobs because writing a model imports more. Not handled: averaging and
releases, whose memory is predicted and not measured.
"""

from __future__ import annotations

import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from swarm.processes.allocation import resident
from swarm.processes.process import Child, Ended, Hung, Pipe, environment
from swarm.processes.start import die_with_parent
from swarm.settings.config import Config
from swarm.types import Array, Digest, Group, PeerId, Struct, Times

if TYPE_CHECKING:
    import torch

OOM_SCORE = "1000"
"""Highest score: the kernel's out-of-memory killer ends this process before any other."""

SIZE = 1 << 25
"""Values that are copied to time the memory: 128 MiB, larger than any cache."""

ROWS = 256
"""Rows of the left matrix of a timed product: a sampler's batch, or a small chunk of a learner."""

TIMED_FOR = 0.25
"""Seconds of repetitions for one figure; the three figures take about a second."""

SPARE = 8
"""Tokens that a prompt may have more when it is read again."""

WEIGHT_STD = 0.02
"""Standard deviation of random weights, as models are initialised."""


class Job(Struct):
    what: Literal["speed", "weights", "sampler", "evaluator", "learner", "tiny", "trial"]
    folder: str
    """The model's folder; `weights` and `tiny` write there."""
    config: Config = Config()
    dtype: str = "float32"
    """Number format of a timed product."""
    shape: tuple[int, int] = (64, 64)
    """Shape of its right matrix."""
    prompt: int = 0
    """Tokens."""
    ram: int = 0
    """Bytes that the process may use; 0: no limit."""
    gpu: float = 1.0
    """Share of the GPU's memory that it may use; 0: it sees no GPU."""


class ProbeResult(Struct):
    failed: Literal["", "memory", "time", "other"] = ""
    detail: str = ""
    seconds: float = 0.0
    """Seconds of the timed call."""
    tokens: int = 0
    """Tokens sampled, or trained on with their prompts."""
    peak: int = 0
    """Peak bytes of the work: on a GPU what torch reserved, else the growth of resident memory."""
    padded: str | None = None
    """Of a learner: `Policy.padded`."""
    flops: float = 0.0
    bandwidth: float = 0.0
    launch: float = 0.0


def run(job: Job, timeout: float) -> ProbeResult:
    """Run `job` in a child process. Returns an outcome also when it dies or takes more than `timeout`
    seconds."""
    own = {"CUDA_VISIBLE_DEVICES": ""} if job.gpu == 0 else {}
    child = Child([sys.executable, "-m", "peers.commands.fit.probe"], environment(own))
    try:
        return msgspec.msgpack.decode(child.ask(msgspec.msgpack.encode(job), timeout), type=ProbeResult)
    except Hung:
        return ProbeResult(failed="time", detail=f"stopped after {timeout:.0f} s")
    except Ended as ended:
        if ended.code == -signal.SIGKILL:
            return ProbeResult(failed="memory", detail="killed by the system")
        return ProbeResult(failed="other", detail=(ended.lines or [ended.how])[-1][:200])
    finally:
        child.end()


def main() -> int:
    pipe = Pipe()
    job = msgspec.msgpack.decode(pipe.listen()(), type=Job)
    _limit_process(job)
    try:
        outcome = WORK.get(job.what, _sampler)(job)
    except Exception as error:
        outcome = _failure(error)
    pipe.send(msgspec.msgpack.encode(outcome))
    return 0


def _limit_process(job: Job) -> None:
    """End with the parent, set the memory limits, and be the first process to be killed for memory."""
    die_with_parent()
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    import torch

    torch.set_num_threads(1)  # as in every peer
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(min(1.0, job.gpu))
    elif job.ram:
        # Limit data, not address space: shared libraries and mapped files do not use this memory.
        resource.setrlimit(resource.RLIMIT_DATA, (job.ram, job.ram))


def _failure(error: Exception) -> ProbeResult:
    import torch

    said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    names = {kind.__name__ for kind in type(error).__mro__} | {type(error.__cause__).__name__}
    short = (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "OutOfMemory" in names
        or "OutOfMemoryError" in names
    )
    return ProbeResult(
        failed="memory" if short or re.search("allocate|out of memory", said, re.IGNORECASE) else "other",
        detail=said,
    )


def _speed(job: Job) -> ProbeResult:
    """Time matrix products of the model's size, copies of a large buffer, and the smallest operation."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, job.dtype)
    left, right = (
        torch.ones(ROWS, job.shape[0], device=device, dtype=dtype),
        torch.ones(job.shape, device=device, dtype=dtype),
    )
    source, small = torch.ones(SIZE, device=device), torch.ones(8, device=device)
    target = torch.empty_like(source)
    product = _seconds_of(lambda: left @ right, device)
    copy = _seconds_of(lambda: target.copy_(source), device)
    return ProbeResult(
        flops=2 * ROWS * job.shape[0] * job.shape[1] / product,
        bandwidth=2 * source.nbytes / copy,
        launch=_seconds_of(lambda: small.add_(1.0), device),
    )


def _seconds_of(work: Callable[[], object], device: str) -> float:
    """Mean seconds of one call of `work`, after one warm-up call."""
    work()
    _wait(device)
    began, times = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < TIMED_FOR:
        for _ in range(1 << min(times.bit_length(), 8)):
            work()
            times += 1
        _wait(device)
    return spent / times


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _weights(job: Job) -> ProbeResult:
    """Write random bfloat16 weights for the config in the folder. A million values are repeated: generating
    all of them would take longer and measure nothing else."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(job.folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    some = (torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * WEIGHT_STD).to(torch.bfloat16)
    made = {name: _filled(tensor.shape, some) for name, tensor in model.named_parameters()}  # tied ones once
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    return ProbeResult()


def _filled(shape: torch.Size, some: torch.Tensor) -> torch.Tensor:
    count = shape.numel()
    return some.repeat(-(-count // some.numel()))[:count].reshape(shape).clone()


def _sampler(job: Job) -> ProbeResult:
    """Time one call that samples `peer.engine.tasks` groups, or as many greedy answers."""
    from peers.build.model import factory

    base = _peak()
    engine = factory.hf(Path(job.folder), job.config)
    tasks, group = job.config.peer.engine.tasks, job.config.run.sampling.group_size
    prompts = [_prompt(job)] * tasks
    tokens = 0
    for seed in (1, 2):
        before, began = engine.statistics()["tokens"], time.perf_counter()
        if job.what == "sampler":
            engine.sample(prompts, group, range(seed, seed + tasks))
            tokens = int(engine.statistics()["tokens"] - before)
        else:
            engine.greedy(prompts)
            tokens = tasks * job.config.run.sampling.max_tokens
    seconds = time.perf_counter() - began
    engine.close()
    return ProbeResult(seconds=seconds, tokens=tokens, peak=_peak() - base)


def _learner(job: Job) -> ProbeResult:
    """Time the second of two steps on one random group."""
    import numpy as np

    from peers.build.model import factory

    base = _peak()
    learner, tokenization = factory.learner(Path(job.folder), job.config)
    size, length = job.config.run.sampling.group_size, job.config.run.sampling.max_tokens
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, tokenization.vocabulary, size * length).astype("<i4")
    logprobs = np.full(size * length, -np.log(tokenization.vocabulary), "<f4")
    group = Group(
        id="0" * 32,
        sampler=PeerId("me"),
        task=0,
        version=0,
        weights=Digest("0" * 64),
        draw=0,
        seed=0,
        lengths=(length,) * size,
        tokens=Array(dtype="int32", shape=tokens.shape, data=tokens.tobytes()),
        logprobs=Array(dtype="float32", shape=logprobs.shape, data=logprobs.tobytes()),
        rewards=tuple(float(i % 2) for i in range(size)),
        times=Times(released=0.0, fetched=0.0, used=0.0, finished=0.0, sent=0.0),
    )
    for _ in range(2):
        began = time.perf_counter()
        gradient = learner.gradient([group], [_prompt(job)], [group.rewards], time.time())
        learner.step(gradient.vector)
    return ProbeResult(
        seconds=time.perf_counter() - began,
        tokens=size * (length + job.prompt),
        peak=_peak() - base,
        padded=learner.padded,
    )


def _tiny(job: Job) -> ProbeResult:
    """Write a tiny model to the folder."""
    from swarm.learn.models import tiny

    tiny.make(Path(job.folder), "llama")
    return ProbeResult()


def _trial(job: Job) -> ProbeResult:
    """Sample and learn with an adapter on the model in the folder, then with all of its weights."""
    replace, run = msgspec.structs.replace, job.config.run
    adapted = replace(job.config, run=replace(run, model=replace(run.model, training="lora")))
    for config in (adapted, job.config):
        _sampler(replace(job, what="sampler", config=config))
        outcome = _learner(replace(job, what="learner", config=config))
    return outcome


def _prompt(job: Job) -> str:
    """A text of about `job.prompt` tokens, or as many as the model has room for beside a completion."""
    from transformers import AutoConfig, AutoTokenizer

    from swarm.sample.hf import positions

    room = positions(AutoConfig.from_pretrained(job.folder)) - job.config.run.sampling.max_tokens - SPARE
    tokenizer: Any = AutoTokenizer.from_pretrained(job.folder)
    ids = tokenizer(" and".join("7" * job.prompt)).input_ids
    return str(tokenizer.decode(ids[: max(1, min(job.prompt, room))], skip_special_tokens=True))


def _peak() -> int:
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_reserved())
    return resident()[1]


WORK = {"speed": _speed, "weights": _weights, "learner": _learner, "tiny": _tiny, "trial": _trial}

if __name__ == "__main__":
    sys.exit(main())
