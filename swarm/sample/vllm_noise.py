"""Draws tokens inside vLLM with noise that any peer can make again (swarm.draws.noise).

    a request says {ARGUMENT: [seed of its group, G, temperature]}, and its number in the group as its seed
    a step's logits (N, V) --scores--> (N, V): highest is the token that was drawn, with its log-probability;
                                       every other one has its own, less HIDDEN
    what vLLM reports of a token --Told--> its log-probability, and those of the most probable tokens

So vLLM needs no noise of its own: at temperature 0 it takes the highest, and at 1 all others are impossible.
Its mode `processed_logits` reports the scores as they are. Log-probabilities are of logits / temperature,
whatever vLLM does with temperatures.

Where it runs: in vLLM's worker, by swarm.sample.vllm_processor, which knows vLLM; and beside the engines,
which read what vLLM reports. It imports torch, numpy and swarm.draws.noise alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from swarm.draws import noise
from swarm.draws.noise import GroupNoise

ARGUMENT = "swarm_noise"
"""Of a request: SamplingParams.extra_args in Python, `vllm_xargs` over HTTP."""

HIDDEN = 256.0
"""Nats: far above what noise can add to a score, and what float32 rounds off log-probabilities there
(.00003) is far below a step of swarm.draws.heads."""

SAME = 1e-3
"""Nats that scores made again may differ by."""

HEAT, SHOWN = 2.0, 19
"""Temperature and number of most probable tokens, less one, of a proof: many tokens are likely then, and no
vLLM reports more unasked."""

PROOF, PROVING = 1 << 63 | 7919, 4
"""Seed, and completions and their tokens, of the group by which it is tried whether vLLM draws as it is
asked."""


class NoiseDraw(NamedTuple):
    """What a request asks for."""

    seed: int
    """Of the group, from 0 to 2^64 - 1."""
    size: int
    """G"""
    temperature: float
    completion: int
    """From 0 to G - 1."""


def argument(seed: int, size: int, temperature: float) -> dict[str, list[float]]:
    return {ARGUMENT: [seed % (1 << 64), size, temperature]}


def draw_of(arguments: Mapping[str, Any] | None, number: int | None) -> NoiseDraw | None:
    """What the arguments of a request with this seed ask for; None: nothing. Raises ValueError."""
    if not arguments or ARGUMENT not in arguments:
        return None
    try:
        seed, size, temperature = arguments[ARGUMENT]
        draw = NoiseDraw(int(seed), int(size), float(temperature), -1 if number is None else number)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{ARGUMENT} is the seed of a group, its size, and a temperature") from error
    if not (0 <= draw.seed < 1 << 64 and 0 <= draw.completion < draw.size and draw.temperature > 0):
        raise ValueError(f"{ARGUMENT}: {draw} is nothing that can be drawn; a request's seed is its number")
    return draw


def scores(logits: Tensor, drawn: Tensor, temperatures: Tensor) -> Tensor:
    """(N, V) float32 of logits (N, V), their noise (N, V) float32, and temperatures (N,) float32."""
    logp = torch.log_softmax(logits.float() / temperatures[:, None], -1)
    chosen = (logp + drawn).argmax(-1, keepdim=True)
    own = logp.gather(1, chosen)
    return logp.sub_(HIDDEN).scatter_(1, chosen, own)


def on(device: torch.device, values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Numbers on a device, without waiting for what it is at."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


# --- vLLM's first runner: requests are rows, which come, go and move ----------------------------------------


class Update(Protocol):
    """vLLM's BatchUpdate."""

    removed: Sequence[int]
    added: Sequence[tuple[int, Any, Any, list[int]]]
    """(row, SamplingParams, the prompt, a list to which the completion's tokens are added)"""
    moved: Sequence[tuple[int, int, Any]]
    """(row, to which one, one way or a swap)"""


class NoiseRows:
    """Which rows of the batch draw what, and how far they are."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[NoiseDraw, list[int]]] = {}
        self._ahead: dict[tuple[int, int], GroupNoise] = {}
        """On a CPU, by seed and size: several positions of a group are made at once."""

    def update(self, update: Update) -> None:
        for row in update.removed:
            self._rows.pop(row, None)
        for row, parameters, _, tokens in update.added:
            self._rows.pop(row, None)
            if (draw := draw_of(parameters.extra_args, parameters.seed)) is not None:
                self._rows[row] = draw, tokens
        for row, to, way in update.moved:
            mine, other = self._rows.pop(row, None), self._rows.pop(to, None)
            if mine is not None:
                self._rows[to] = mine
            if other is not None and way.name == "SWAP":
                self._rows[row] = other
        used = {(draw.seed, draw.size) for draw, _ in self._rows.values()}
        self._ahead = {group: its for group, its in self._ahead.items() if group in used}

    def apply(self, logits: Tensor) -> Tensor:
        """(rows, V) -> scores in the rows that draw."""
        rows = sorted(self._rows)
        if not rows:
            return logits
        if len(rows) == len(logits):
            return self._scores(logits, rows)
        logits[rows] = self._scores(logits[rows], rows).to(logits.dtype)
        return logits

    def _scores(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        made = self._here if logits.device.type == "cpu" else self._there
        heat = [self._rows[row][0].temperature for row in rows]
        return scores(logits, made(logits, rows), on(logits.device, heat, torch.float32))

    def _there(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """The noise of rows, on a GPU."""
        blocks, drawn = noise.blocks_of(logits.shape[1]), [self._rows[row] for row in rows]
        first = [(len(tokens) * draw.size + draw.completion) * blocks for draw, tokens in drawn]
        keys = on(logits.device, [noise.signed(draw.seed) for draw, _ in drawn], torch.int64)
        return noise.at_blocks(keys, on(logits.device, first, torch.int64), logits.shape[1])

    def _here(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """The same on a CPU, where a call costs as much as a group's noise of several positions."""
        out, places = (
            torch.empty(logits.shape),
            defaultdict[tuple[int, int, int], list[tuple[int, int]]](list),
        )
        for k, row in enumerate(rows):
            draw, tokens = self._rows[row]
            places[draw.seed, draw.size, len(tokens)].append((k, draw.completion))
        for (seed, size, t), members in places.items():
            if (seed, size) not in self._ahead:
                one = GroupNoise([seed], size, noise.AT_ONCE, logits.shape[1], logits.device)
                self._ahead[seed, size] = one
            at, completions = torch.tensor(members).T
            out[at] = self._ahead[seed, size].at(t, completions)
        return out


# --- its second runner: requests have slots, and positions are on the device --------------------------------


class NoiseSlots:
    """What requests draw, by slot; all that a step needs is on the device."""

    def __init__(self, count: int, vocabulary: int, device: torch.device) -> None:
        self._device, self._blocks = device, noise.blocks_of(vocabulary)
        self._draws: dict[int, tuple[NoiseDraw, int]] = {}
        self._count, self._changed = count, True

    def add(self, slot: int, draw: NoiseDraw | None, prompt: int) -> None:
        """`prompt`: its tokens. None where the request in this slot draws nothing."""
        self._changed = True
        self._draws.pop(slot, None)
        if draw is not None:
            self._draws[slot] = draw, prompt

    def settle(self) -> None:
        """Bring what was added to the device."""
        if not self._changed:
            return
        table, heat = [[0] * 4 for _ in range(self._count)], [1.0] * self._count
        for slot, (draw, prompt) in self._draws.items():
            step = draw.size * self._blocks
            start = draw.completion * self._blocks + (1 - prompt) * step
            table[slot], heat[slot] = [noise.signed(draw.seed), start, step, 1], draw.temperature
        flat = [number for row in zip(*table, strict=True) for number in row]
        self._table = on(self._device, flat, torch.int64).view(4, -1)
        self._heat = on(self._device, heat, torch.float32)
        self._changed = False

    def apply(self, logits: Tensor, slots: Sequence[int], slot_of: Tensor, positions: Tensor) -> Tensor:
        """`slots`: of this step's requests. `slot_of` (N,): of each row of the logits, whose last token is at
        `positions` (N,) of prompt and completion."""
        drawing = sum(slot in self._draws for slot in slots)
        if not drawing:
            return logits
        keys, start, step, draws = self._table[:, slot_of.long()]
        first = (positions * step + start).clamp(min=0)
        made = scores(logits, noise.at_blocks(keys, first, logits.shape[1]), self._heat[slot_of.long()])
        return made if drawing == len(slots) else torch.where(draws[:, None].bool(), made, logits)


# --- what vLLM reports --------------------------------------------------------------------------------------


class DrawnToken(NamedTuple):
    """What vLLM reports of a token that was drawn."""

    token: int
    scores: Mapping[int, float]
    """Of the token, and of some others."""

    @property
    def logprob(self) -> float:
        return self.scores[self.token]

    def head(self, k: int) -> list[tuple[int, float]]:
        """The k most probable tokens and their log-probabilities, the highest first, where k others were
        reported."""
        known = {token: score + HIDDEN for token, score in self.scores.items()} | {self.token: self.logprob}
        return sorted(known.items(), key=lambda one: -one[1])[:k]


def probe(length: int, vocabulary: int) -> list[int]:
    """A fixed sequence of many different tokens."""
    return [(7919 * i + 11) % vocabulary for i in range(length)]


def proven(rows: Sequence[Sequence[DrawnToken]], seed: int, vocabulary: int) -> bool:
    """Whether completions were drawn as a group of this seed, as far as the reported tokens tell."""
    return all(
        _is_drawn(each, seed, len(rows), g, t, vocabulary)
        for g, row in enumerate(rows)
        for t, each in enumerate(row)
    )


def _is_drawn(
    drawn: DrawnToken, seed: int, size: int, completion: int, position: int, vocabulary: int
) -> bool:
    others = [token for token in drawn.scores if token != drawn.token]
    if drawn.logprob < -HIDDEN / 2 or any(drawn.scores[token] > -HIDDEN / 2 for token in others):
        return False
    tokens = np.array([[drawn.token, *others]], np.int32)
    words = noise.of_tokens(seed, size, vocabulary, np.array([completion]), np.array([position]), tokens)
    logprobs = [drawn.logprob, *(drawn.scores[token] + HIDDEN for token in others)]
    reached = noise.gumbel_of(words)[0] + np.array(logprobs, np.float32)
    return bool(reached[0] >= reached.max() - SAME)
