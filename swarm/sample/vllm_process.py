"""vLLM in a process of its own: `python -m swarm.sample.vllm_process`, calls on its standard input, answers
on its standard output.

    Setup -> (vLLM starts with the folder's weights) -> Ready
    Load -> Loaded        Sample -> Sampled        anything -> Failed

Frames (swarm.process) hold msgpack. One call at a time, each gets one answer. The process ends when its
standard input does: nothing of it outlives the peer, also when that is killed in the middle of a call. Only
its parent talks to it; what comes in is believed.

After each load the weights inside are compared with the file, since vLLM can keep stale ones
(vllm_worker.py); where they cannot be seen (quantized ones) a fixed sequence must have become more or less
likely. Not handled here: deadlines, restarts (vllm.py), several GPUs.
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
from swarm.process import Pipe
from swarm.sample import vllm_worker

PROBE = 48
"""Tokens of the fixed sequence: every one is a chance to see that something changed."""

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""That vLLM makes room for; a smaller adapter uses the next one."""

COLDEST = 0.01
"""vLLM raises lower temperatures to this one."""


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
    """`group` completions of each prompt, or the most likely one where `seeds` is empty."""

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


class Failed(Message, frozen=True):
    reason: str
    stale: bool = False
    """vLLM kept other weights than it was given."""
    sound: bool = False
    """This call cannot be done, others can: a restart would change nothing."""


Call = Setup | Load | Sample
Answer = Ready | Loaded | Sampled | Failed


class Unsuited(Exception):
    """vLLM cannot do this here, and a restart changes nothing. The message says what to do."""


class Stale(Exception):
    """The weights in vLLM are not those of the file."""


class Served:
    """vLLM's LLM with one policy: started by a Setup, from then on whatever was loaded last."""

    def __init__(self, setup: Setup) -> None:
        from vllm import LLM, __version__
        from vllm.platforms import current_platform

        self.setup, self.version, self.device = setup, __version__, current_platform.device_type
        self._check()
        # On a CPU compiling takes a minute, and a prompt that is split over two steps ends vLLM: it turns the
        # seeded generator of such a row back, which a CPU's cannot.
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
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            disable_log_stats=True,
            skip_tokenizer_init=True,
            generation_config="vllm",
            trust_remote_code=False,
            **own,
        )
        config = self.llm.llm_engine.vllm_config.model_config
        self.length = int(config.max_model_len)
        self._probe = probe(min(PROBE, self.length - 1), config.get_vocab_size())
        self._adapter: Any = None
        self._seen: list[float] = []
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
        import numpy as np

        longest = max(map(len, call.prompts))
        if longest + self.setup.max_tokens > self.length:
            raise Unsuited(
                f"a prompt of {longest} tokens and {self.setup.max_tokens} of completion do not fit into"
                f" {self.length}: raise peer.engine.length (and peer.engine.memory where it does not fit)"
            )
        told = self._generate(call.prompts, [self._parameters(call, i) for i in range(len(call.prompts))])
        groups = [sorted(group.outputs, key=lambda one: one.index) for group in told]
        rows = [one for group in groups for one in group]
        logprobs = [
            step[token].logprob
            for one in rows
            for token, step in zip(one.token_ids, one.logprobs, strict=True)
        ]
        return Sampled(
            [[len(one.token_ids) for one in group] for group in groups],
            np.asarray([token for one in rows for token in one.token_ids], np.int32).tobytes(),
            np.asarray(logprobs, np.float32).tobytes(),
        )

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
        if setup.temperature < COLDEST:
            raise Unsuited(f"vLLM does not sample below temperature {COLDEST}: set peer.engine.name to hf")

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
        """Log-probabilities of the fixed sequence, at temperature 1."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        told = self._generate([self._probe], [parameters])[0]
        return [
            row[token].logprob for row, token in zip(told.prompt_logprobs[1:], self._probe[1:], strict=True)
        ]

    def _parameters(self, call: Sample, i: int) -> Any:
        from vllm import SamplingParams

        # `ignore_eos`: the run's end tokens are those of its config, and no other ends a completion.
        common: dict[str, Any] = {
            "max_tokens": self.setup.max_tokens,
            "stop_token_ids": list(self.setup.ends),
            "ignore_eos": True,
            "detokenize": False,
            "logprobs": 0,
        }
        if not call.seeds:
            return SamplingParams(temperature=0.0, **common)
        # Completion j of the group is drawn with the seed of the group plus j.
        drawn = {"n": call.group, "seed": call.seeds[i], "temperature": self.setup.temperature}
        return SamplingParams(top_p=1.0, top_k=-1, min_p=0.0, **drawn, **common)

    def _generate(self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]) -> list[Any]:
        return self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            list(parameters),
            use_tqdm=False,
            lora_request=self._adapter,
        )


def probe(length: int, vocabulary: int) -> list[int]:
    """A fixed sequence of many different tokens."""
    return [(7919 * i + 11) % vocabulary for i in range(length)]


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
    except Unsuited as error:
        return served, Failed(str(error), sound=served is not None)
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
    while True:
        served, told = answer(served, decoder.decode(call()))
        pipe.send(msgspec.msgpack.encode(told))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
