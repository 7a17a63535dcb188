"""Measures replayable sampling: what it costs, how far honest replays are apart, and what gives cheats away.

    python -m lab.processes.replays                  where a GPU is: minutes
    python -m lab.processes.replays --quick          a small model on this processor: seconds

    pace      tokens/s of the `hf` engine with our noise, with torch's generator in its place, and of the
              choice alone: ours, torch's, torch.multinomial
    honest    margins of completions that one device and precision sampled and another one replays: largest,
              share of tokens that differ, tokens beyond the rule's margin
    cheats    share of completions, and of groups, that the rule names; of groups that contradict true heads

Models are random: hidden states are those of a Qwen3 of 0.6B, the head is scaled until a token has about two
nats of entropy, as in a trained model. It needs torch, transformers, numpy, msgspec and blake3, nothing else
of this project's.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from lab.processes.told_heads import share_named
from swarm.draws.noise import GroupNoise
from swarm.learn import replay
from swarm.learn.models.policy import LanguageModel
from swarm.sample import hf
from swarm.sample.base import Completions
from swarm.sample.hf import HfEngine

GROUP = 8
NATS = 2.0
"""Entropy of a token, about."""

RULE = 0.5
"""Nats: the margin beyond which a token is not what was drawn."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Size(NamedTuple):
    """Of a model and of what is sampled from it."""

    vocabulary: int
    hidden: int
    layers: int
    tokens: int
    completions: int
    """In each cell of the tables of margins."""


SMALL = Size(19, 64, 2, 12, 512)
LARGE = Size(151_936, 1024, 28, 64, 256)
PACES = (19, 32_000, 151_936)
BATCHES = (1, 2, 8)
"""Groups in one call: 8 to 64 completions. Of one completion at a time is the greedy way alone."""


class Numbers:
    """Tokens for texts: prompts are numbers, ids follow from them."""

    ends: tuple[int, ...] = (0,)

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        rngs = [np.random.default_rng(int(prompt)) for prompt in prompts]
        return [rng.integers(1, self._vocabulary, rng.integers(4, 24)).tolist() for rng in rngs]

    def decode(self, tokens: Sequence[int]) -> str:
        return ""


def model_of(size: Size, device: str, dtype: str, seed: int = 0) -> Qwen3ForCausalLM:
    """The same weights, rounded to bfloat16 as released, on every device and in every precision."""
    made: Qwen3ForCausalLM = copy.deepcopy(_released(size.vocabulary, size.hidden, size.layers, seed))
    return made.to(device, DTYPES[dtype]).eval()


@functools.cache
def _released(vocabulary: int, hidden: int, layers: int, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    heads = max(1, hidden // 64)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=max(1, heads // 2),
            head_dim=64,
            tie_word_embeddings=False,
        )
    )
    deviation = math.sqrt(2 * max(0.5, math.log(vocabulary) - NATS))
    with torch.no_grad():
        nn.init.normal_(model.lm_head.weight, std=deviation / math.sqrt(hidden))
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model


def policy_of(size: Size, device: str, dtype: str, seed: int) -> LanguageModel:
    tokenization: Any = Numbers(size.vocabulary)
    return LanguageModel(model_of(size, device, dtype, seed), tokenization)


def no_weights(_: nn.Module, __: Any) -> None:
    raise AssertionError("nothing is loaded here")


@dataclass
class Sampled:
    prompts: list[str]
    seeds: list[int]
    groups: list[Completions]

    def rows(self) -> Iterator[tuple[str, int, list[list[int]]]]:
        for prompt, seed, group in zip(self.prompts, self.seeds, self.groups, strict=True):
            yield (
                prompt,
                seed,
                [row.tolist() for row in cut(group)],
            )


def cut(group: Completions) -> list[np.ndarray]:
    """The tokens of each completion."""
    return np.split(group.tokens, np.cumsum(group.lengths)[:-1])


def sample(engine: HfEngine, completions: int, batch: int, first: int = 0) -> Sampled:
    """That many completions, `batch` groups in one call."""
    prompts = [str(first + i) for i in range(max(batch, completions // GROUP))]
    out = Sampled(prompts, [], [])
    for start in range(0, len(prompts), batch):
        seed = 1_000_003 * (first + start + 1)
        part = prompts[start : start + batch]
        seeds = [seed + i for i in range(len(part))]
        out.seeds += seeds
        out.groups += engine.sample(part, GROUP, seeds)
    return out


def margins(policy: LanguageModel, drawn: Sampled, temperature: float = 1.0) -> list[list[np.ndarray]]:
    found = []
    for prompt, seed, rows in drawn.rows():
        flat = replay.replay(policy, prompt, rows, temperature, seed).margins
        found.append(np.split(flat, np.cumsum([len(row) for row in rows])[:-1]))
    return found


# --- pace ---------------------------------------------------------------------------------------------------


class TorchNoise(GroupNoise):
    """Gumbel noise of torch's own generator: what an engine takes that nobody replays."""

    def at(self, position: int, rows: Tensor) -> Tensor:
        shape = (len(rows), self._vocabulary)
        return torch.empty(shape, device=self._device).exponential_().log_().neg_()


@contextmanager
def torch_noise() -> Iterator[None]:
    hf.GroupNoise = TorchNoise  # type: ignore[misc]
    try:
        yield
    finally:
        hf.GroupNoise = GroupNoise  # type: ignore[misc]


def seconds(what: Callable[[], object], device: str, turns: int) -> float:
    """The fastest of some turns."""
    best = math.inf
    for _ in range(turns + 1):
        wait(device)
        began = time.perf_counter()
        what()
        wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def pace(size: Size, device: str, dtype: str, batch: int, turns: int) -> dict[str, Any]:
    engine = HfEngine(model_of(size, device, dtype), Numbers(size.vocabulary), no_weights, size.tokens)
    prompts = [str(i) for i in range(batch)]

    def tokens(seed: int = 1) -> int:
        return sum(len(group.tokens) for group in engine.sample(prompts, GROUP, range(seed, seed + batch)))

    ours = tokens() / seconds(tokens, device, turns)
    with torch_noise():
        torch.manual_seed(1)
        drawn = [0]

        def count() -> None:
            drawn[0] = tokens()

        took = seconds(count, device, turns)
        theirs = drawn[0] / took
    rows = batch * GROUP
    logp = torch.log_softmax(torch.randn(rows, size.vocabulary, device=device) * 4, -1)
    noise = GroupNoise(range(batch), GROUP, 1 << 20, size.vocabulary, torch.device(device))
    every, places = torch.arange(rows, device=device), itertools.count()
    alone = {
        "ours": seconds(lambda: (logp + noise.at(next(places), every)).argmax(-1), device, 20),
        "multinomial": seconds(lambda: torch.multinomial(logp.exp(), 1), device, 20),
    }
    return {
        "vocabulary": size.vocabulary, "hidden": size.hidden, "layers": size.layers, "device": device,
        "dtype": dtype, "completions": rows, "ours": ours, "torch": theirs, "ratio": ours / theirs,
        "choice_ms": 1e3 * alone["ours"], "multinomial_ms": 1e3 * alone["multinomial"],
    }  # fmt: skip


# --- margins ------------------------------------------------------------------------------------------------


def told(cell: dict[str, Any], found: list[list[np.ndarray]]) -> dict[str, Any]:
    """A row of figures: margins by group and completion."""
    tokens = np.concatenate([one for group in found for one in group])
    completions = np.array([one.max() for group in found for one in group])
    groups = np.array([max(one.max() for one in group) for group in found])
    beyond = tokens > RULE
    return {
        **cell, "completions": len(completions), "tokens": len(tokens), "largest": float(tokens.max()),
        "mean": float(tokens.clip(0, 5).mean()), "differ": float((tokens > 0).mean()),
        "p9999": float(np.quantile(tokens, 0.9999)), "beyond": int(beyond.sum()),
        "beyond_01": int((tokens > 0.1).sum()), "beyond_1": int((tokens > 1).sum()),
        "completions_named": float((completions > RULE).mean()),
        "groups_named": float((groups > RULE).mean()),
    }  # fmt: skip


def honest(size: Size, devices: Sequence[str], batches: Sequence[int], seed: int) -> Iterator[dict[str, Any]]:
    """Each device and precision samples, each replays."""
    for at, dtype, batch in itertools.product(devices, DTYPES, batches):
        if at == "cpu" and dtype == "float16" and size.vocabulary > 1000:
            continue  # a processor multiplies halves in software
        model = model_of(size, at, dtype, seed)
        engine = HfEngine(model, Numbers(size.vocabulary), no_weights, size.tokens)
        drawn = sample(engine, size.completions, batch, first=1000 * seed)
        del model, engine
        for there, by in itertools.product(devices, ("float32", "bfloat16")):
            policy = policy_of(size, there, by, seed)
            cell = {"sampled": f"{at} {dtype}", "replayed": f"{there} {by}", "batch": batch * GROUP}
            yield told({"vocabulary": size.vocabulary, **cell}, margins(policy, drawn))


class Truncated(HfEngine):
    """Samples from the smallest set of tokens with `most` of the probability."""

    most = 0.95

    def _forward(self, ids: Tensor, attend: Tensor | None, cache: Any) -> Tensor:
        logits = super()._forward(ids, attend, cache).float()
        ordered, order = logits.softmax(-1).sort(-1, descending=True)
        late = ordered.cumsum(-1) - ordered > self.most
        return logits.masked_fill(torch.zeros_like(late).scatter(-1, order, late), -1e9)


def rounded(model: nn.Module, bits: int) -> None:
    """Weights as in so many bits with a scale for each row."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                wide = parameter.float()
                step = wide.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
                parameter.copy_((wide / step).round() * step)


def moved(model: nn.Module, share: float) -> None:
    """Weights as some versions earlier: each moved by that share of its size."""
    torch.manual_seed(77)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(share * parameter.float().std().nan_to_num(0.0) * torch.randn_like(parameter))


def cheats(size: Size, device: str, dtype: str, by: str, seed: int) -> Iterator[dict[str, Any]]:
    vocabulary, said = size.vocabulary, Numbers(size.vocabulary)
    policy = policy_of(size, device, by, seed)

    def engine(kind: type[HfEngine] = HfEngine, temperature: float = 1.0, change: Any = None) -> HfEngine:
        model = model_of(size, device, dtype, seed)
        if change is not None:
            change(model)
        return kind(model, said, no_weights, size.tokens, temperature)

    def row(name: str, drawn: Sampled, temperature: float = 1.0) -> dict[str, Any]:
        cell = {"vocabulary": vocabulary, "cheat": name, "sampled": f"{device} {dtype}", "replayed": by}
        heads = {"groups_named_by_heads": share_named(policy, drawn.rows())}
        return told(cell, margins(policy, drawn, temperature)) | heads

    count, first = size.completions, 1000 * seed + 500
    yield row("none", sample(engine(), count, 4, first))
    for temperature in (0.9, 0.7, 1.1):
        yield row(f"temperature {temperature}", sample(engine(temperature=temperature), count, 4, first))
    yield row("top-p .95", sample(engine(Truncated), count, 4, first))
    for bits in (8, 4):
        coarse = engine(change=lambda model, bits=bits: rounded(model, bits))
        yield row(f"weights in {bits} bits", sample(coarse, count, 4, first))
    for share in (0.001, 0.01, 0.03):
        name = f"weights moved by {share:.1%}"
        yield row(
            name, sample(engine(change=lambda model, share=share: moved(model, share)), count, 4, first)
        )
    drawn = sample(engine(), count, 4, first)
    yield row("another seed", Sampled(drawn.prompts, [one + 7 for one in drawn.seeds], drawn.groups))
    yield row("other text", changed(drawn, lambda row, rng: rng.integers(0, vocabulary, len(row))))
    yield row("one token changed", changed(drawn, one_token(vocabulary)))


def one_token(vocabulary: int) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    def change(row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        other = row.copy()
        at = rng.integers(len(row))
        other[at] = (row[at] + rng.integers(1, vocabulary)) % vocabulary
        return other

    return change


def changed(drawn: Sampled, change: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Sampled:
    """With each completion changed."""
    rng, groups = np.random.default_rng(5), []
    for group in drawn.groups:
        tokens = np.concatenate([change(row, rng) for row in cut(group)]).astype(np.int32)
        groups.append(Completions(group.lengths, tokens, group.logprobs, group.texts))
    return Sampled(drawn.prompts, drawn.seeds, groups)


def paces(devices: Sequence[str], quick: bool) -> Iterator[dict[str, Any]]:
    for device, vocabulary in itertools.product(devices, PACES[:1] if quick else PACES):
        large, dtype = (LARGE, "bfloat16") if device == "cuda" else (SMALL, "float32")
        for batch in (1, 8, 64) if device == "cuda" else (1, 8):
            yield pace(large._replace(vocabulary=vocabulary), device, dtype, batch, 3)


def all_honest(devices: Sequence[str], quick: bool) -> Iterator[dict[str, Any]]:
    yield from honest(SMALL, devices, BATCHES[:1] if quick else BATCHES, 1)
    if "cuda" in devices:
        yield from honest(LARGE, ["cuda"], BATCHES, 2)
        yield from honest(LARGE._replace(tokens=16, completions=32), devices, (2,), 3)


def all_cheats(devices: Sequence[str], quick: bool) -> Iterator[dict[str, Any]]:
    yield from cheats(SMALL, "cpu", "float32", "float32", 1)
    if "cuda" in devices:
        yield from cheats(LARGE, "cuda", "bfloat16", "float32", 2)


PARTS = {"pace": paces, "honest": all_honest, "cheats": all_cheats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model on the processor alone")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", default=os.devnull, help="a file of JSON lines, too")
    said = parser.parse_args()
    devices = ["cuda", "cpu"] if torch.cuda.is_available() and not said.quick else ["cpu"]
    with open(said.out, "w") as out:
        for part in said.parts.split(","):
            for row in PARTS[part](devices, said.quick):
                line = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
                print(text := json.dumps({"part": part, **line}), flush=True)
                print(text, file=out, flush=True)


if __name__ == "__main__":
    main()
