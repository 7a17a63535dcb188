"""Samples with vLLM, whose calls need a process of their own (peers.build.model.engine_process).

    load    release -> its folder -> vLLM starts with the first one, and loads later ones in place
    sample  prompts, seeds -> ids -> vLLM -> tokens, log-probabilities of softmax(logits / temperature),
            untruncated, drawn with the noise of swarm.draws.noise by vllm_processor.py

After each load the weights inside are compared with the file, since vLLM can keep stale ones
(vllm_worker.py); where they cannot be seen (quantized ones) a fixed sequence must have become more or less
likely. StaleWeights asks for a new process. Whether this vLLM, on this device, draws as it is asked is tried
at its start. Whatever else vLLM raises is EngineBroken. Invariant: completions come from the version of the
last `load` that returned.

A group's random numbers follow from its seed alone. Its tokens may still differ in another batch: vLLM
computes a row differently in its last bits there, which decides between two tokens of nearly equal rank. That
is rare in float32 and happens now and then in bfloat16; replays bear it (swarm.learn.replay). Not handled
here: deadlines, restarts, several GPUs for one model.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swarm import extras
from swarm.draws.heads import pack
from swarm.sample import vllm_noise, vllm_worker
from swarm.sample.base import (
    Completions,
    EngineBroken,
    EngineError,
    NoRoom,
    SampleCounts,
    StaleWeights,
    Stopped,
    Tokenizer,
)
from swarm.sample.scratch import writing
from swarm.sample.vllm_noise import HEAT, PROOF, PROVING, SHOWN, DrawnToken
from swarm.settings.config import EngineSettings as Settings
from swarm.settings.config import Sampling
from swarm.storage.blocks import Blocks
from swarm.storage.weights import Weights
from swarm.types import Digest, Heads, Noise

AT_ONCE = 1024
"""Completions that vLLM makes at once, at most; others wait in it. It starts with no more than the tokens of
one step, 4096 on a CPU."""

PROBE = 48
"""Tokens of the fixed sequence: every one is a chance to see that something changed."""

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""That vLLM makes room for."""

PROCESSOR = "swarm.sample.vllm_processor:GumbelProcessor"
"""What draws, as vLLM's logits processor."""


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

    @property
    def room(self) -> int:
        """The least rank that vLLM makes room for and that has room for the run's."""
        return next((rank for rank in RANKS if rank >= self.rank), RANKS[-1])


@dataclass(frozen=True)
class LoadedRelease:
    """A release as vLLM loads it."""

    folder: Path
    weights: Weights
    """Held, since a file is there for as long as an object holds it."""

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


class VllmEngine:
    """vLLM's LLM with one policy. After EngineBroken, and after a first load that failed, its process is to
    be ended. `alive` is called before every step, with the call's completions that have ended."""

    name = "vllm"

    def __init__(
        self, recipe: Recipe, folder: Path, alive: Callable[[int], None] = lambda done: None
    ) -> None:
        """`folder`: where releases are written for vLLM."""
        self._recipe, self._folder, self._alive = recipe, folder, alive
        self._llm: Any = None
        self._adapter: Any = None
        self._seen: list[float] = []
        self._held: LoadedRelease | None = None
        self._stopped = False
        """The call that samples now is to end."""
        self._counts = SampleCounts()

    @property
    def version(self) -> int:
        """The version that was loaded last; -1: none."""
        return -1 if self._held is None else self._held.version

    def load(self, weights: Weights) -> None:
        """See Engine. Raises StaleWeights, too."""
        release = LoadedRelease.within(self._folder, weights)
        with release.in_place_of(self._held):
            with writing(self._folder):
                self._recipe.write(weights.blocks, release.folder)
            with _vllms_errors():
                self._take(release)
            self._held = release

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        began, recipe = time.perf_counter(), self._recipe
        ids, sampling = recipe.tokenizer.encode(prompts), recipe.sampling
        if not all(map(self._fits, ids)):
            raise NoRoom(self._too_long(max(map(len, ids))))
        with _vllms_errors():
            drawn = self._draw(ids, group_size, seeds, sampling.temperature, sampling.heads)
        told = [drawn[k : k + group_size] for k in range(0, len(drawn), group_size)]
        groups = completions(told, recipe.tokenizer, Noise.GUMBEL, sampling.heads)
        self._counts.add(groups, began)
        return groups

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        ids = self._recipe.tokenizer.encode(prompts)
        asked = [row for row in ids if self._fits(row)]
        with _vllms_errors():
            answers = iter(self._complete(asked, [self._parameters(temperature=0.0)] * len(asked)))
        rows = [[next(answers) if self._fits(row) else []] for row in ids]
        return [group.texts[0] for group in completions(rows, self._recipe.tokenizer)]

    def stop(self) -> None:
        self._stopped = True

    def statistics(self) -> dict[str, float]:
        return {"version": self.version, **self._counts.statistics()}

    def close(self) -> None:
        """Nothing outlives its process."""

    def _take(self, release: LoadedRelease) -> None:
        """Raises StaleWeights."""
        recipe = self._recipe
        if self._llm is None:
            self._start(recipe.base or release.folder)
            if recipe.rank:
                self._adopt(release)
        elif recipe.rank:
            self._adopt(release)
        elif recipe.quantize:
            raise StaleWeights("what bitsandbytes has packed cannot be replaced in place")
        else:
            self._replace(release)

    def _start(self, folder: Path) -> None:
        """Start vLLM with config.json, and model.safetensors in the checkpoint's names. Raises EngineError
        where it cannot do what it should here."""
        try:
            from vllm import LLM, __version__
            from vllm.platforms import current_platform
        except ImportError as error:
            raise EngineError(
                f"vLLM cannot be imported ({error}): {extras.install('vllm')} in this environment"
            ) from error
        recipe, settings, heads = self._recipe, self._recipe.settings, self._recipe.sampling.heads
        self._device = current_platform.device_type
        self._check()
        # On a CPU compiling takes a minute, and prompts that are split over two steps are not tried.
        own: dict[str, Any] = (
            {"enforce_eager": True, "enable_chunked_prefill": False} if self._device == "cpu" else {}
        )
        automatic = "float32" if self._device == "cpu" else "bfloat16"
        if recipe.quantize:
            own["quantization"] = "bitsandbytes"
        if recipe.rank:
            own |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": recipe.room}
        self._llm = LLM(
            model=str(folder),
            dtype=settings.dtype if settings.dtype != "auto" else automatic,
            max_model_len=settings.length or -1,
            max_num_seqs=min(settings.tasks * recipe.sampling.group_size, AT_ONCE),
            gpu_memory_utilization=settings.memory,
            logits_processors=[PROCESSOR],
            logprobs_mode="processed_logits",
            max_logprobs=max(heads, SHOWN) + 1,
            enable_prefix_caching=True,
            disable_log_stats=True,
            skip_tokenizer_init=True,
            generation_config="vllm",
            trust_remote_code=False,
            **own,
        )
        config = self._llm.llm_engine.vllm_config.model_config
        self._length = int(config.max_model_len)
        self._vocabulary = int(config.get_vocab_size())
        self._probe = vllm_noise.probe(min(PROBE, self._length - 1), self._vocabulary)
        self._prove(__version__)
        if not recipe.rank:
            self._compare(folder)
            self._seen = self._score()

    def _check(self) -> None:
        asked = self._recipe.settings.device.split(":")[0]
        if asked not in ("auto", self._device):
            raise EngineError(
                f"this vLLM runs on {self._device} only: set peer.engine.device to auto, or install another"
            )
        if self._recipe.quantize and self._device == "cpu":
            raise EngineError(
                "vLLM quantizes on GPUs only: set peer.engine.name to hf, which does it on a CPU too"
            )

    def _prove(self, version: str) -> None:
        """Raises EngineError when tokens are not drawn as they are asked for."""
        told = self._draw([self._probe[:8]], PROVING, [PROOF], HEAT, SHOWN, PROVING)
        if not vllm_noise.proven(told, PROOF, self._vocabulary):
            raise EngineError(
                f"vLLM {version} does not draw tokens as it is asked on {self._device}, so that its groups"
                " could not be replayed: set peer.engine.name to hf"
            )

    def _replace(self, release: LoadedRelease) -> None:
        """Load whole weights in place. Raises StaleWeights."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(release.folder)})
        if self._device == "cpu":
            self._llm.collective_rpc(vllm_worker.pack)
        self._forget()
        hidden, seen = self._compare(release.folder), self._score()
        fresh = self._held is None or self._held.digest != release.digest
        if fresh and hidden and seen == self._seen:
            raise StaleWeights(
                "a fixed sequence is as likely as before, to the last bit (not visible:"
                f" {', '.join(hidden[:3])})"
            )
        self._seen = seen

    def _adopt(self, release: LoadedRelease) -> None:
        """Load an adapter, under a number of its own for each version: vLLM takes a known number for a known
        adapter, and keeps what it has. Raises StaleWeights."""
        from vllm.lora.request import LoRARequest

        engine, version = self._llm.llm_engine, release.version
        adapter = LoRARequest(f"v{version}", version + 1, str(release.folder))
        if self._adapter is not None:
            engine.remove_lora(self._adapter.lora_int_id)
        engine.add_lora(adapter)
        self._adapter = adapter
        self._forget()
        if adapter.lora_int_id not in engine.list_loras():
            raise StaleWeights(f"the adapter of version {version} is not among those loaded")

    def _forget(self) -> None:
        """Keys and values of the old policy."""
        if not self._llm.reset_prefix_cache():
            raise StaleWeights("the cache of prompts could not be emptied")

    def _compare(self, folder: Path) -> list[str]:
        """Raises StaleWeights when a tensor inside differs from the file's. Returns the names of those that
        cannot be seen."""
        what = (str(folder / "model.safetensors"), self._device == "cpu")
        hidden, different = self._llm.collective_rpc(vllm_worker.look, args=what)[0]
        if different:
            raise StaleWeights(
                f"{len(different)} tensors differ from the release's, among them {', '.join(different[:3])}"
            )
        return hidden

    def _score(self) -> list[float]:
        """Logits of the fixed sequence's tokens."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        told = self._generate([self._probe], [parameters])[0]
        return [
            row[token].logprob for row, token in zip(told.prompt_logprobs[1:], self._probe[1:], strict=True)
        ]

    def _fits(self, prompt: Sequence[int]) -> bool:
        if self._llm is None:
            raise RuntimeError("no policy has been loaded")
        return len(prompt) + self._recipe.sampling.max_tokens <= self._length

    def _too_long(self, prompt: int) -> str:
        most = self._recipe.sampling.max_tokens
        own = int(self._llm.llm_engine.vllm_config.model_config.get_and_verify_max_len(None))
        said = f"a prompt of {prompt} tokens and {most} of completion do not fit into"
        if self._length == own:
            return f"{said} {own}, the model's own limit: the run needs shorter prompts or completions"
        most_here = f", to {own} at most" if own > self._length else ""
        return (
            f"{said} {self._length}: raise peer.engine.length{most_here} (and peer.engine.memory if it is"
            " full)"
        )

    def _draw(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        seeds: Sequence[int],
        temperature: float,
        heads: int,
        tokens: int = 0,
    ) -> list[list[DrawnToken]]:
        """`group` completions of each prompt; all of them of so many tokens, or as the run says."""
        asked, parameters = [], []
        for prompt, seed in zip(prompts, seeds, strict=True):
            argument = vllm_noise.argument(seed, group, temperature)
            for g in range(group):
                asked.append(prompt)
                parameters.append(
                    self._parameters(heads, tokens, temperature=0.0, seed=g, extra_args=argument)
                )
        return self._complete(asked, parameters)

    def _parameters(self, heads: int = 0, tokens: int = 0, **drawn: Any) -> Any:
        from vllm import SamplingParams

        # `ignore_eos`: the run's end tokens are those of its config, and no other ends a completion.
        return SamplingParams(
            max_tokens=tokens or self._recipe.sampling.max_tokens,
            stop_token_ids=[] if tokens else list(self._recipe.tokenizer.ends),
            ignore_eos=True,
            detokenize=False,
            logprobs=min(heads + 1, self._vocabulary) if heads else 0,
            **drawn,
        )

    def _complete(
        self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]
    ) -> list[list[DrawnToken]]:
        return [
            [
                DrawnToken(token, {other: one.logprob for other, one in step.items()})
                for token, step in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True)
            ]
            for output in self._generate(prompts, parameters)
        ]

    def _generate(self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]) -> list[Any]:
        """What vLLM tells of each prompt, in their order. Raises Stopped, with nothing left in vLLM."""
        engine, ended = self._llm.llm_engine, list[Any]()
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        self._stopped = False
        ids = self._llm.enqueue(asked, list(parameters), use_tqdm=False, lora_request=self._adapter)
        # `LLM.generate` is this loop, but for the signs of life and the end that is asked for.
        while engine.has_unfinished_requests():
            self._alive(len(ended))
            if self._stopped:
                engine.abort_request(ids, internal=True)
                raise Stopped
            ended += (told for told in engine.step() if told.finished)
        return sorted(ended, key=lambda told: int(told.request_id))


@contextlib.contextmanager
def _vllms_errors() -> Iterator[None]:
    """vLLM raises whatever its parts raise, and is of no use afterwards: EngineBroken."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineBroken.by(error) from error


def completions(
    groups: Sequence[Sequence[Sequence[DrawnToken]]],
    tokenizer: Tokenizer,
    noise: Noise = Noise.UNKNOWN,
    heads: int = 0,
) -> list[Completions]:
    """The drawn tokens of each group's completions, with the `heads` most probable tokens of each token."""
    out = []
    for rows in groups:
        tokens = [each for row in rows for each in row]
        out.append(
            Completions(
                lengths=tuple(map(len, rows)),
                tokens=np.asarray([each.token for each in tokens], np.int32),
                logprobs=np.asarray([each.logprob for each in tokens], np.float32),
                texts=tuple(tokenizer.decode([each.token for each in row]) for row in rows),
                noise=noise,
                heads=_packed([each.head(heads) for each in tokens]) if heads else None,
            )
        )
    return out


def _packed(head: Sequence[Sequence[tuple[int, float]]]) -> Heads:
    """Of the most probable tokens of each token and their log-probabilities."""
    tokens = np.asarray([[token for token, _ in each] for each in head], np.int32)
    return pack(tokens, np.asarray([[logprob for _, logprob in each] for each in head], np.float32))
