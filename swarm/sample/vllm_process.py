"""vLLM in a process of its own: `python -m swarm.sample.vllm_process`, calls on its standard input, answers
on its standard output.

    Setup -> (vLLM starts with the folder's weights) -> Ready
    Load -> Loaded        Sample -> Sampled        anything -> Failed

Frames (swarm.processes.process) hold msgpack. One call at a time, each gets one answer; SIGUSR1 ends one that
samples, which has failed then. The process ends when its standard input does: nothing of it outlives the
peer, also when that is killed in the middle of a call. Only its parent talks to it; what comes in is
believed.

After each load the weights inside are compared with the file, since vLLM can keep stale ones
(vllm_worker.py); where they cannot be seen (quantized ones) a fixed sequence must have become more or less
likely. Tokens are drawn by vllm_processor.py, with the noise of swarm.draws.noise; whether this vLLM, on this
device, draws them so is tried at its start. Not handled here: deadlines, restarts (vllm.py), several GPUs.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from swarm import extras
from swarm.processes.process import Pipe
from swarm.sample import vllm_noise, vllm_worker
from swarm.sample.base import Stopped
from swarm.sample.vllm_noise import HEAT, PROOF, PROVING, SHOWN, Told

PROBE = 48
"""Tokens of the fixed sequence: every one is a chance to see that something changed."""

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""That vLLM makes room for; a smaller adapter uses the next one."""

PROCESSOR = "swarm.sample.vllm_processor:GumbelProcessor"
"""What draws, as vLLM's logits processor."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """What passes between the peer and this process."""


class Setup(Message, frozen=True, kw_only=True):
    folder: str
    """config.json, and model.safetensors in the checkpoint's names."""
    dtype: str
    """`auto`, `float32`, `bfloat16` or `float16`."""
    device: str
    """`auto`, `cpu` or `cuda`."""
    length: int
    """Tokens of prompt and completion; 0: the model's, or what fits."""
    memory: float
    """Share of the GPU's."""
    sequences: int
    """Completions at once."""
    temperature: float
    max_tokens: int
    ends: tuple[int, ...]
    heads: int = 0
    """Most probable tokens that are told with each token."""
    quantize: bool = False
    """Linear layers in NF4, by bitsandbytes."""
    rank: int = 0
    """Of the adapters that will come; 0: releases are whole weights."""


class Load(Message, frozen=True):
    """In place of what is there: the weights in `folder`, or the adapter in it under this version's
    number."""

    folder: str
    version: int
    fresh: bool
    """The weights differ from those of before."""


class Sample(Message, frozen=True):
    """`group` completions of each prompt, drawn with its seed, or the most likely one where `seeds` is
    empty: none of a prompt that is too long."""

    prompts: list[list[int]]
    group: int
    seeds: list[int]


class Ready(Message, frozen=True):
    version: str
    device: str
    length: int


class Loaded(Message, frozen=True):
    seconds: float


class Sampled(Message, frozen=True):
    lengths: list[list[int]]
    """(prompts, group)"""
    tokens: bytes
    """int32, all completions one after the other."""
    logprobs: bytes
    """float32, likewise."""
    head_tokens: bytes = b""
    """int32, k most probable tokens of each token, the highest first, where a Setup asks for them."""
    head_logprobs: bytes = b""
    """float32, likewise."""


class Failed(Message, frozen=True):
    reason: str
    stale: bool = False
    """vLLM kept other weights than it was given."""
    sound: bool = False
    """This call cannot be done, others can: a restart would change nothing."""
    room: bool = False
    """It has a prompt that is too long."""


Call = Setup | Load | Sample
Answer = Ready | Loaded | Sampled | Failed


class Unsuited(Exception):
    """vLLM cannot do this here, and a restart changes nothing. The message says what to do."""


class TooLong(Unsuited):
    """A prompt that there is no room for with its completion."""


class Stale(Exception):
    """The weights in vLLM are not those of the file."""


class Served:
    """vLLM's LLM with one policy: started by a Setup, from then on whatever was loaded last."""

    def __init__(self, setup: Setup) -> None:
        from vllm import LLM, __version__
        from vllm.platforms import current_platform

        self.setup, self.version, self.device = setup, __version__, current_platform.device_type
        self._check()
        # On a CPU compiling takes a minute, and prompts that are split over two steps are not tried.
        own: dict[str, Any] = (
            {"enforce_eager": True, "enable_chunked_prefill": False} if self.device == "cpu" else {}
        )
        dtype = setup.dtype if setup.dtype != "auto" else "float32" if self.device == "cpu" else "bfloat16"
        if setup.quantize:
            own["quantization"] = "bitsandbytes"
        if setup.rank:
            rank = next((rank for rank in RANKS if rank >= setup.rank), RANKS[-1])
            own |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
        self.llm = LLM(
            model=setup.folder,
            dtype=dtype,
            max_model_len=setup.length or -1,
            max_num_seqs=setup.sequences,
            gpu_memory_utilization=setup.memory,
            logits_processors=[PROCESSOR],
            logprobs_mode="processed_logits",
            max_logprobs=max(setup.heads, SHOWN) + 1,
            enable_prefix_caching=True,
            disable_log_stats=True,
            skip_tokenizer_init=True,
            generation_config="vllm",
            trust_remote_code=False,
            **own,
        )
        config = self.llm.llm_engine.vllm_config.model_config
        self.length = int(config.max_model_len)
        self._vocabulary = int(config.get_vocab_size())
        self._probe = vllm_noise.probe(min(PROBE, self.length - 1), self._vocabulary)
        self._adapter: Any = None
        self._seen: list[float] = []
        self.stopped = False
        """What is generated now ends at its next token; a signal sets it."""
        self._prove()
        if not setup.rank:
            self._compare(Path(setup.folder))
            self._seen = self._score()

    def load(self, call: Load) -> float:
        """Seconds it took. Raises Stale."""
        began = time.perf_counter()
        if self.setup.rank:
            self._adopt(call)
        else:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": call.folder})
            if self.device == "cpu":
                self.llm.collective_rpc(vllm_worker.pack)
            self._forget()
            hidden = self._compare(Path(call.folder))
            seen = self._score()
            if call.fresh and hidden and seen == self._seen:
                raise Stale(
                    "a fixed sequence is as likely as before, to the last bit (not visible:"
                    f" {', '.join(hidden[:3])})"
                )
            self._seen = seen
        return time.perf_counter() - began

    def sample(self, call: Sample) -> Sampled:
        fits = [len(prompt) + self.setup.max_tokens <= self.length for prompt in call.prompts]
        if not call.seeds:
            asked = [prompt for prompt, fit in zip(call.prompts, fits, strict=True) if fit]
            rows = iter(self._told(asked, [self._parameters(temperature=0.0)] * len(asked)))
            return sampled([[next(rows) if fit else []] for fit in fits])
        if not all(fits):
            raise TooLong(self._too_long(max(map(len, call.prompts))))
        setup, size = self.setup, call.group
        drawn = self._draw(call.prompts, size, call.seeds, setup.temperature, setup.heads)
        return sampled([drawn[k : k + size] for k in range(0, len(drawn), size)], setup.heads)

    def _too_long(self, prompt: int) -> str:
        own = int(self.llm.llm_engine.vllm_config.model_config.get_and_verify_max_len(None))
        said = f"a prompt of {prompt} tokens and {self.setup.max_tokens} of completion do not fit into"
        if self.length == own:
            return f"{said} {own}, the model's own limit: the run needs shorter prompts or completions"
        most = f", to {own} at most" if own > self.length else ""
        return f"{said} {self.length}: raise peer.engine.length{most} (and peer.engine.memory if it is full)"

    def _check(self) -> None:
        setup = self.setup
        if setup.device not in ("auto", self.device):
            raise Unsuited(
                f"this vLLM runs on {self.device} only: set peer.engine.device to auto, or install another"
            )
        if setup.quantize and self.device == "cpu":
            raise Unsuited(
                "vLLM quantizes on GPUs only: set peer.engine.name to hf, which does it on a CPU too"
            )

    def _prove(self) -> None:
        """Raises Unsuited when tokens are not drawn as they are asked for."""
        told = self._draw([self._probe[:8]], PROVING, [PROOF], HEAT, SHOWN, PROVING)
        if not vllm_noise.proven(told, PROOF, self._vocabulary):
            raise Unsuited(
                f"vLLM {self.version} does not draw tokens as it is asked on {self.device}, so that no"
                " learner could replay its groups: set peer.engine.name to hf"
            )

    def _adopt(self, call: Load) -> None:
        """A number of its own for each version: vLLM takes a known number for a known adapter, and keeps what
        it has."""
        from vllm.lora.request import LoRARequest

        adapter = LoRARequest(f"v{call.version}", call.version + 1, call.folder)
        if self._adapter is not None:
            self.llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        self.llm.llm_engine.add_lora(adapter)
        self._adapter = adapter
        self._forget()
        if adapter.lora_int_id not in self.llm.llm_engine.list_loras():
            raise Stale(f"the adapter of version {call.version} is not among those loaded")

    def _forget(self) -> None:
        """Keys and values of the old policy."""
        if not self.llm.reset_prefix_cache():
            raise Stale("the cache of prompts could not be emptied")

    def _compare(self, folder: Path) -> list[str]:
        """Raises Stale when a tensor inside differs from the file's. Returns the names of those that cannot
        be seen."""
        what = (str(folder / "model.safetensors"), self.device == "cpu")
        hidden, different = self.llm.collective_rpc(vllm_worker.look, args=what)[0]
        if different:
            raise Stale(
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

    def _draw(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        seeds: Sequence[int],
        temperature: float,
        heads: int,
        tokens: int = 0,
    ) -> list[list[Told]]:
        """`group` completions of each prompt; all of them of so many tokens, or as the Setup says."""
        asked, parameters = [], []
        for prompt, seed in zip(prompts, seeds, strict=True):
            argument = vllm_noise.argument(seed, group, temperature)
            for g in range(group):
                asked.append(prompt)
                parameters.append(
                    self._parameters(heads, tokens, temperature=0.0, seed=g, extra_args=argument)
                )
        return self._told(asked, parameters)

    def _parameters(self, heads: int = 0, tokens: int = 0, **drawn: Any) -> Any:
        from vllm import SamplingParams

        # `ignore_eos`: the run's end tokens are those of its config, and no other ends a completion.
        return SamplingParams(
            max_tokens=tokens or self.setup.max_tokens,
            stop_token_ids=[] if tokens else list(self.setup.ends),
            ignore_eos=True,
            detokenize=False,
            logprobs=min(heads + 1, self._vocabulary) if heads else 0,
            **drawn,
        )

    def _told(self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]) -> list[list[Told]]:
        return [
            [
                Told(token, {other: one.logprob for other, one in step.items()})
                for token, step in zip(told.outputs[0].token_ids, told.outputs[0].logprobs, strict=True)
            ]
            for told in self._generate(prompts, parameters)
        ]

    def _generate(self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]) -> list[Any]:
        """What vLLM tells of each prompt, in their order. Raises Stopped, with nothing left in vLLM."""
        engine, ended = self.llm.llm_engine, list[Any]()
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        self.stopped = False
        ids = self.llm.enqueue(asked, list(parameters), use_tqdm=False, lora_request=self._adapter)
        # `LLM.generate` is this loop, but for the end that somebody asks for.
        while engine.has_unfinished_requests():
            if self.stopped:
                engine.abort_request(ids, internal=True)
                raise Stopped
            ended += (told for told in engine.step() if told.finished)
        return sorted(ended, key=lambda told: int(told.request_id))


def sampled(groups: Sequence[Sequence[Sequence[Told]]], heads: int = 0) -> Sampled:
    """What was told of all groups, with the `heads` most probable tokens of each token, as flat arrays."""
    import numpy as np

    told = [each for group in groups for row in group for each in row]
    head = [one for each in told for one in each.head(heads)] if heads else []
    return Sampled(
        [[len(row) for row in group] for group in groups],
        np.asarray([each.token for each in told], np.int32).tobytes(),
        np.asarray([each.logprob for each in told], np.float32).tobytes(),
        np.asarray([token for token, _ in head], np.int32).tobytes(),
        np.asarray([logprob for _, logprob in head], np.float32).tobytes(),
    )


def answer(served: Served | None, call: Call) -> tuple[Served | None, Answer]:
    """One call's answer. What vLLM raises is told: the parent restarts this process."""
    try:
        if isinstance(call, Setup):
            served = Served(call)
            return served, Ready(served.version, served.device, served.length)
        assert served is not None, "a Setup comes first"
        return served, (Loaded(served.load(call)) if isinstance(call, Load) else served.sample(call))
    except Stale as error:
        return served, Failed(str(error), stale=True)
    except (Unsuited, Stopped) as error:
        return served, Failed(str(error), sound=served is not None, room=isinstance(error, TooLong))
    except ImportError as error:
        return served, Failed(
            f"vLLM cannot be imported ({error}): {extras.install('vllm')} in this environment"
        )
    except Exception as error:  # vLLM raises whatever its parts raise
        import traceback

        traceback.print_exc()
        return served, Failed(f"{type(error).__name__}: {str(error).strip() or 'no reason given'}"[:1000])


def main(scratch: str) -> int:
    """`scratch`, the folder with the weights, is removed when the peer ends without a word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the peer, which leaves in order
    pipe = Pipe()
    call = pipe.listen(lambda: shutil.rmtree(scratch, ignore_errors=True))
    decoder = msgspec.msgpack.Decoder(Call)
    served: Served | None = None

    def stop(*_: object) -> None:
        if served is not None:
            served.stopped = True

    signal.signal(signal.SIGUSR1, stop)
    while True:
        served, told = answer(served, decoder.decode(call()))
        pipe.send(msgspec.msgpack.encode(told))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
