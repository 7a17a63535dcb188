"""Samples with vLLM in a child process (vllm_process.py), which is restarted when it dies or hangs.

    load    release's file, linked into a folder -> vLLM loads it in place (starts with the first one)
    sample  prompts, seeds -> ids -> vLLM -> tokens, log-probabilities of softmax(logits / temperature),
            untruncated, drawn with the noise of swarm.draws.noise

A call that fails or takes too long ends the process if it may be at fault, and raises EngineError; the next
call starts it again with the last release that was loaded. If vLLM keeps old weights after a reload, it is
restarted with the new ones. Invariant: completions come from the version of the last `load` that returned.

A group's random numbers follow from its seed alone. Its tokens may still differ in another batch: vLLM
computes a row differently in its last bits there, which decides between two tokens of nearly equal rank. That
is rare in float32 and happens now and then in bfloat16; replays bear it (swarm.learn.replay). Not handled
here: several GPUs for one model.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from swarm.draws import heads
from swarm.processes.process import Child, ChildLost, Ended, Hung, environment
from swarm.sample import vllm_process
from swarm.sample.base import Completions, EngineError, NoRoom, SampleCounts, Tokenizer
from swarm.sample.scratch import Scratch
from swarm.settings.config import EngineSettings as Settings
from swarm.settings.config import Sampling
from swarm.storage.blocks import Blocks
from swarm.storage.weights import Weights
from swarm.types import Digest, Noise

COMMAND = (sys.executable, "-m", "swarm.sample.vllm_process")
START = 1200.0
"""Seconds for vLLM to start: a large model from a slow disk, and graphs that are captured the first time."""

AT_ONCE = 1024
"""Completions that vLLM makes at once, at most; others wait in it. It starts with no more than the tokens of
one step, 4096 on a CPU."""

_answers = msgspec.msgpack.Decoder(vllm_process.Answer)


@dataclass(frozen=True)
class Recipe:
    """Everything that an engine over vLLM is built from."""

    settings: Settings
    sampling: Sampling
    tokenizer: Tokenizer
    vocabulary: int
    """Rows of the model's embedding."""
    write: Callable[[Blocks, Path], None]
    """(a release, a new folder): makes what vLLM loads. Raises ValueError for weights of another model."""
    base: Path | None = None
    """Folder of the base model with its weights, where releases are adapters; else None."""
    rank: int = 0
    """LoRA rank; 0 when releases are whole weights."""
    quantize: bool = False
    """Whether linear layers are quantized to NF4."""


class VllmEngine:
    """Calls come from one thread at a time; `close` and `stop` from any."""

    name = "vllm"

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._place = Scratch("vllm")
        self._scratch = self._place.path
        self._child: Child | None = None
        self._sampling: Child | None = None
        """Its process, while that samples: only then it knows what to do with a nudge."""
        self._held: LoadedRelease | None = None
        self._closed = False
        self._counts = SampleCounts()
        self._starts = 0

    @property
    def version(self) -> int:
        """The version that was loaded last; -1: none."""
        return -1 if self._held is None else self._held.version

    def load(self, weights: Weights) -> None:
        """See Engine. When it fails, the release before stays loaded."""
        release = LoadedRelease.within(self._scratch, weights)
        with release.in_place_of(self._held):
            self._write(release)
            self._take(release)
            self._held = release

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        began = time.perf_counter()
        answer = self._sampled(prompts, group_size, [seed % (1 << 64) for seed in seeds])
        groups = completions(answer, self._recipe.tokenizer, Noise.GUMBEL)
        self._counts.add(groups, began)
        return groups

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        return [
            group.texts[0] for group in completions(self._sampled(prompts, 1, []), self._recipe.tokenizer)
        ]

    def stop(self) -> None:
        if (sampling := self._sampling) is not None:
            sampling.nudge()

    def statistics(self) -> dict[str, float]:
        """`starts`: how often vLLM was started."""
        return {"version": self.version, "starts": self._starts, **self._counts.statistics()}

    def close(self) -> None:
        self._closed = True
        if self._child is not None:
            self._child.kill()
        self._place.remove()

    def _write(self, release: LoadedRelease) -> None:
        with self._place.writing():
            self._recipe.write(release.weights.blocks, release.folder)

    def _sampled(self, prompts: Sequence[str], group: int, seeds: list[int]) -> vllm_process.Sampled:
        if self._held is None:
            raise RuntimeError("no policy has been loaded")
        if self._child is None:
            if not self._held.folder.exists():  # a cleaner of old files was there
                self._write(self._held)
            self._take(self._held)
        call = vllm_process.Sample(self._recipe.tokenizer.encode(prompts), group, seeds)
        self._sampling = self._child
        try:
            answer = self._ask(call)
        finally:
            self._sampling = None
        assert isinstance(answer, vllm_process.Sampled)
        return answer

    def _take(self, release: LoadedRelease) -> None:
        """Make vLLM load these weights. When that fails, vLLM does not run afterwards."""
        load = vllm_process.Load(
            str(release.folder), release.version, self._held is None or self._held.digest != release.digest
        )
        if self._recipe.quantize and self._recipe.base is None:
            self._end()  # what bitsandbytes has packed cannot be replaced in place
        if self._child is None:
            self._start(load)
            return
        with contextlib.suppress(StaleWeights):
            self._ask(load)
            return
        self._start(load)

    def _start(self, load: vllm_process.Load) -> None:
        """Start a new process with these weights."""
        if self._closed:
            raise EngineError("the engine is closed")
        recipe = self._recipe
        self._child = start_process(recipe.settings, self._scratch)
        self._starts += 1
        setup = vllm_process.Setup(
            folder=str(recipe.base or load.folder),
            dtype=recipe.settings.dtype,
            device=recipe.settings.device.split(":")[0],
            length=recipe.settings.length,
            memory=recipe.settings.memory,
            sequences=min(recipe.settings.tasks * recipe.sampling.group_size, AT_ONCE),
            temperature=recipe.sampling.temperature,
            max_tokens=recipe.sampling.max_tokens,
            heads=recipe.sampling.heads,
            ends=tuple(recipe.tokenizer.ends),
            quantize=recipe.quantize,
            rank=recipe.rank,
        )
        self._ask(setup, START)
        if recipe.base is not None:
            self._ask(load)

    def _ask(self, call: vllm_process.Call, seconds: float = 0.0) -> vllm_process.Answer:
        """The answer to one call. Raises EngineError; the process is ended then, unless the failure is not
        its own."""
        assert self._child is not None
        seconds = seconds or self._recipe.settings.timeout
        try:
            answer = _answers.decode(self._child.ask(msgspec.msgpack.encode(call), seconds))
        except ChildLost as lost:
            self._end()
            raise EngineError(f"vLLM {_why(lost)}") from None
        if not isinstance(answer, vllm_process.Failed):
            return answer
        if answer.sound:
            raise (NoRoom if answer.room else EngineError)(answer.reason)
        self._end()
        raise (StaleWeights if answer.stale else EngineError)(f"vLLM: {answer.reason}")

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class StaleWeights(EngineError):
    """vLLM reported a release as loaded and kept other weights."""


@dataclass(frozen=True)
class LoadedRelease:
    """A release as vLLM loads it."""

    folder: Path
    weights: Weights
    """Held, since a file is there for as long as somebody holds it."""

    @classmethod
    def within(cls, scratch: Path, weights: Weights) -> LoadedRelease:
        """In a folder of its own: two releases may share a version."""
        return cls(scratch / f"v{weights.version}-{weights.digest[:12]}", weights)

    @contextlib.contextmanager
    def in_place_of(self, old: LoadedRelease | None) -> Iterator[None]:
        """The body writes and loads it. Then the folder of the other one is removed; its own where the body
        raises."""
        shutil.rmtree(self.folder, ignore_errors=True)
        lost: LoadedRelease | None = self
        try:
            yield
            lost = old
        finally:
            if lost is not None and (old is None or old.folder != self.folder):
                shutil.rmtree(lost.folder, ignore_errors=True)

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def digest(self) -> Digest:
        return self.weights.digest


def start_process(settings: Settings, scratch: Path) -> Child:
    """Start vLLM's process, which then waits for its Setup. Raises EngineError."""
    try:
        return Child([*COMMAND, str(scratch)], environment(_environment(settings)))
    except OSError as error:  # too many open files or processes
        raise EngineError(f"vLLM's process cannot start: {error.strerror}") from error


def _why(lost: ChildLost) -> str:
    """Why the process was lost: with advice, or with the last line of its output that names an error. vLLM's
    warnings name errors that it has overcome, and who sends a signal writes no line."""
    match lost:
        case Hung():
            return f"{lost} and counts as hung: if it was only slow, raise peer.engine.timeout"
        case Ended():
            if lost.code is not None and lost.code < 0:
                return f"{lost.how}{lost.hint}"
            overcome = " WARNING ", " INFO "
            named = [
                line for line in lost.lines if "Error" in line and not any(word in line for word in overcome)
            ]
            return lost.how + (f": {named[-1]}" if named else "")
        case _:
            return str(lost)


def completions(
    answer: vllm_process.Sampled, tokenizer: Tokenizer, noise: Noise = Noise.UNKNOWN
) -> list[Completions]:
    """Cut the flat arrays of an answer into groups."""
    tokens, logprobs = np.frombuffer(answer.tokens, np.int32), np.frombuffer(answer.logprobs, np.float32)
    head_tokens = np.frombuffer(answer.head_tokens, np.int32).reshape(max(len(tokens), 1), -1)
    head_logprobs = np.frombuffer(answer.head_logprobs, np.float32).reshape(head_tokens.shape)
    groups, start = [], 0
    for lengths in answer.lengths:
        ends = start + np.cumsum(lengths)
        here = slice(start, int(ends[-1]))
        rows = np.split(tokens[here], ends[:-1] - start)
        groups.append(
            Completions(
                lengths=tuple(lengths),
                tokens=tokens[here],
                logprobs=logprobs[here],
                texts=tuple(tokenizer.decode(row.tolist()) for row in rows),
                noise=noise,
                heads=heads.pack(head_tokens[here], head_logprobs[here]) if answer.head_tokens else None,
            )
        )
        start = here.stop
    return groups


def _environment(settings: Settings) -> dict[str, str]:
    """Environment variables of the process. `nobind`: by default vLLM binds threads to CPU cores, which other
    peers share here."""
    own = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        own["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB; left alone, vLLM takes half of a CPU's memory
    kind, _, number = settings.device.partition(":")
    if kind == "cuda" and number.isdigit():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        own["CUDA_VISIBLE_DEVICES"] = (
            visible[int(number)] if int(number) < len(visible) and visible[0] else number
        )
    return own
