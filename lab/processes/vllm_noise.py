"""Measures what our noise costs in vLLM: tokens/s of the process behind the engine `vllm`, against vLLM that
draws with its own noise, seeded for each completion and not.

    python -m lab.processes.vllm_noise                      a tiny model: two minutes on a CPU
    python -m lab.processes.vllm_noise --vocabulary 32000 --hidden 512 --layers 8 --tokens 16

Each way is a process of its own; they take turns, call by call, in groups of eight, all of whose completions
are of one length. Told are medians of all turns, by the clock and by the CPU seconds of the process, which a
busy machine disturbs less. Where there is a GPU, vLLM takes it. It needs vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.processes.baseline_engine import VLLM
from lab.swarms.partner import environment
from swarm.processes.process import Child, Pipe

GROUP = 8
WAYS = ("ours", "seeded", "plain")
COMPLETIONS = (16, 64)
START = 300.0
"""Seconds for one to start, or to answer."""

Way = Callable[[int, int], int]
"""(prompts, number of the turn) -> how many tokens"""


def make(folder: Path, vocabulary: int, hidden: int, layers: int) -> None:
    """A random Llama whose tokens have some entropy."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        initializer_range=0.08,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)


def ours(folder: str, tokens: int) -> Way:
    from swarm.sample.vllm_process import Sample, Served, Setup

    served = Served(
        Setup(
            folder=folder,
            dtype="auto",
            device="auto",
            length=256,
            memory=0.3,
            sequences=max(COMPLETIONS),
            temperature=1.0,
            max_tokens=tokens,
            ends=(),
        )
    )

    def sample(prompts: int, turn: int) -> int:
        told = served.sample(Sample(_prompts(prompts), GROUP, [1000 * turn + i for i in range(prompts)]))
        return len(told.tokens) // 4

    return sample


def own(folder: str, tokens: int, seeded: bool) -> Way:
    """vLLM's noise; log-probabilities are taken from its answers as the engine takes them."""
    import numpy as np
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    cpu = current_platform.device_type == "cpu"
    llm = LLM(
        model=folder,
        dtype="float32" if cpu else "bfloat16",
        enforce_eager=cpu,
        enable_chunked_prefill=not cpu,
        max_model_len=256,
        max_num_seqs=max(COMPLETIONS),
        gpu_memory_utilization=0.3,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
    )

    def sample(prompts: int, turn: int) -> int:
        common = {"n": GROUP, "max_tokens": tokens, "ignore_eos": True, "detokenize": False, "logprobs": 0}
        asked = [
            SamplingParams(temperature=1.0, seed=1 << 20 | turn << 10 | i if seeded else None, **common)
            for i in range(prompts)
        ]
        told = llm.generate([{"prompt_token_ids": ids} for ids in _prompts(prompts)], asked, use_tqdm=False)
        rows = [row for group in told for row in group.outputs]
        drawn = np.asarray([token for row in rows for token in row.token_ids], np.int32)
        np.asarray(
            [
                step[token].logprob
                for row in rows
                for token, step in zip(row.token_ids, row.logprobs, strict=True)
            ],
            np.float32,
        )
        return len(drawn)

    return sample


def _prompts(count: int) -> list[list[int]]:
    return [[3 + (7 * i + k) % 90 for k in range(20)] for i in range(count)]


def work(way: str, folder: str, tokens: int) -> None:
    """Answers (prompts, turn) with tokens a second and a CPU second, until its standard input ends."""
    pipe = Pipe()
    call = pipe.listen(lambda: None)
    sample = ours(folder, tokens) if way == "ours" else own(folder, tokens, way == "seeded")
    while True:
        prompts, turn = json.loads(call())
        began = time.perf_counter(), time.process_time()
        drawn = sample(prompts, turn)
        spent = time.perf_counter() - began[0], time.process_time() - began[1]
        pipe.send(json.dumps([drawn / seconds for seconds in spent]).encode())


def measure(folder: Path, tokens: int, turns: int) -> None:
    words = [sys.executable, "-m", "lab.processes.vllm_noise", "--folder", str(folder)]
    ways = {way: Child([*words, "--tokens", str(tokens), "--way", way], environment() | VLLM) for way in WAYS}

    def ask(way: str, completions: int, turn: int) -> list[float]:
        asked = json.dumps([completions // GROUP, turn]).encode()
        told: list[float] = json.loads(ways[way].ask(asked, START))
        return told

    for completions in COMPLETIONS:
        paces: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for turn in range(turns + 1):
            for way in WAYS:
                pace = ask(way, completions, turn)
                if turn:  # the first warms up
                    paces[way].append(pace)
        for k, second in enumerate(("second", "CPU second")):
            _tell(completions, second, {way: [pace[k] for pace in each] for way, each in paces.items()})
    for child in ways.values():
        child.end()


def _tell(completions: int, second: str, paces: dict[str, list[float]]) -> None:
    middle = {way: statistics.median(each) for way, each in paces.items()}
    said: list[Any] = [f"{completions} completions, tokens a {second}:"]
    said += [f"{way} {pace:.0f}" for way, pace in middle.items()]
    for way in WAYS[1:]:
        ratios = [a / b for a, b in zip(paces["ours"], paces[way], strict=True)]
        said.append(f"ours/{way} {statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(*said, f"load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("vocabulary", 400), ("hidden", 64), ("layers", 2), ("tokens", 64), ("turns", 9)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--folder")
    parser.add_argument("--way", choices=WAYS)
    told = parser.parse_args()
    if told.way:
        work(told.way, told.folder, told.tokens)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), told.vocabulary, told.hidden, told.layers)
        measure(Path(folder), told.tokens, told.turns)


if __name__ == "__main__":
    main()
