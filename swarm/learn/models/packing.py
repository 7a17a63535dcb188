"""Groups as rows in which each token stands once: a prompt, and behind it all its completions.

    P P P P a a b b b | Q Q c c d      tokens
    0 1 2 3 4 5 4 5 6 | 0 1 2 3 2      positions: those of each completion alone behind its prompt

A token attends to the tokens before it of its prompt and of its own completion. Whole groups share a row of
at most ROW tokens; a longer group has rows of its own, each with the prompt and some completions. `objection`
finds by a trial whether a model's states are then those of each completion alone: states of convolutions and
state spaces pass from a completion to the next, and a model may ignore a mask or positions. Not handled here:
padded rows (swarm.learn.models.policy), and masks that are not dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from swarm.learn.learners.microbatch import ran_out

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

ROW = 512
"""Tokens of a row of several groups. Of 256, 512, 1024 and 2048, its pass on a CPU is the fastest or within
7 % of it, for a model of 0.1M parameters as for one of 135M. Shorter rows are more calls, longer ones attend
to more tokens of other groups, which the mask takes away again."""

ROW_PROMPTS = 4
"""A row of some completions of a long group has at least so many times its prompt's tokens: so the copies of
the prompt are a third of the row at most. Forward and backward of 8 completions on a CPU (64M parameters),
and in rows of 512, 1024, 2048 and 4096 tokens: 75 CPU seconds as one row, 47, 49, 48 and 60, with 40 tokens
of prompt and 500 to 1,000 of completion; 47 as one row, 45, 47 and 35, with 400 and 300 to 700."""

SLIDING, CHUNKED = "sliding_attention", "chunked_attention"
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""A kind of layer -> its limit in a config, in tokens."""

PADDING = 0.1
"""Largest share of padding in a pass of padded rows, where it has more than ROW tokens; rows of one length
are one pass, which a GPU does faster than several."""

LONGEST = 8192
"""Tokens of the longest row: its mask has 64 MiB, and 256 where it is added to scores."""

TRIED = 4
"""Tokens of each window during the trial, so that its short rows pass it."""

APART, APART_ROUNDED = 1e-4, 0.05
"""Mean difference of the states in the trial that rounding makes at most, as a share of their mean size: in
float32, and in less."""


class TokenGroup(NamedTuple):
    """Completions of one prompt, as token ids."""

    prompt: Sequence[int]
    completions: Sequence[Sequence[int]]

    @property
    def size(self) -> int:
        """Tokens in a row: the last of a completion predicts nothing."""
        return len(self.prompt) + sum(len(row[:-1]) for row in self.completions)

    def parts(self, longest: int) -> Iterator[TokenGroup]:
        """Itself, or some completions at a time, whose rows have at most `longest` tokens where one
        completion does."""
        most = min(longest, max(ROW, ROW_PROMPTS * len(self.prompt)))
        part = TokenGroup(self.prompt, [])
        for row in self.completions:
            if part.completions and part.size + len(row[:-1]) > most:
                yield part
                part = TokenGroup(self.prompt, [])
            part = TokenGroup(self.prompt, [*part.completions, row])
        yield part


class PackedRow(NamedTuple):
    """A row of L tokens, of which N predictions are asked for."""

    ids: Tensor
    """(L,) token ids."""
    positions: Tensor
    """(L,)"""
    prompt: Tensor
    """(L,) the number of the token's group."""
    completion: Tensor
    """(L,) the number of its completion; 0 in a prompt."""
    predicts: Tensor
    """(N,) the places whose states predict the completions' tokens, completion by completion."""

    def inputs(self, config: PretrainedConfig) -> dict[str, Any]:
        """Of the model's forward pass, as a batch of one row."""
        kinds = {*(getattr(config, "layer_types", None) or ())} & WINDOWS.keys()
        every = {kind: self._mask(config, kind) for kind in (*sorted(kinds), "full_attention")}
        # Without kinds of layers a config's window is every layer's.
        window = SLIDING if not hasattr(config, "layer_types") else "full_attention"
        mask = every if kinds else self._mask(config, window)
        return {
            "input_ids": self.ids[None],
            "position_ids": self.positions[None],
            "attention_mask": mask,
            "use_cache": False,
        }

    def _mask(self, config: PretrainedConfig, kind: str) -> Tensor:
        """(1, 1, L, L): the places that a token attends to; for eager attention what is added to scores."""
        place = torch.arange(len(self.ids), device=self.ids.device)
        seen = (place[:, None] >= place) & (self.prompt[:, None] == self.prompt)
        seen &= (self.completion == 0) | (self.completion[:, None] == self.completion)
        size = getattr(config, WINDOWS[kind], None) if kind in WINDOWS else None
        if size is not None and kind == SLIDING:
            seen &= self.positions[:, None] - self.positions < size
        elif size is not None:
            seen &= self.positions[:, None] // size == self.positions // size
        if config._attn_implementation == "eager":
            seen = torch.zeros(seen.shape, device=seen.device).masked_fill(
                ~seen, torch.finfo(torch.bfloat16).min
            )
        return seen[None, None]


def groups_of(prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> list[TokenGroup]:
    """Completion `rows[i]` of `prompts[i]`, in their order: neighbours with the same prompt are a group."""
    pairs = groupby(zip(prompts, rows, strict=True), key=lambda pair: pair[0])
    return [TokenGroup(prompt, [row for _, row in those]) for prompt, those in pairs]


def longest(config: PretrainedConfig) -> int:
    """Tokens of the longest row for this model: within a window that goes by places in a row, which no mask
    can say, as GPT-Neo's."""
    others = (
        size
        for name, size in config.to_dict().items()
        if name.endswith(("window", "window_size")) and name not in WINDOWS.values() and type(size) is int
    )
    return min([LONGEST, *others])


def pack(groups: Sequence[TokenGroup], device: torch.device, most: int = ROW) -> Iterator[PackedRow]:
    """Rows of whole groups in their order, of at most `most` tokens or one group."""
    row: list[TokenGroup] = []
    for group in groups:
        if row and sum(each.size for each in row) + group.size > most:
            yield _row(row, device)
            row = []
        row.append(group)
    yield _row(row, device)


def alike(shapes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The places of padded rows that go through a model together, by their tokens of prompt and completion:
    of like lengths, so that of more than ROW tokens at most a share of PADDING is padding."""
    passes: list[list[int]] = []
    real = longest_prompt = longest_row = 0
    for place in sorted(range(len(shapes)), key=shapes.__getitem__):
        before, after = shapes[place]
        longest_prompt, longest_row = max(longest_prompt, before), max(longest_row, after)
        padded = (len(passes[-1]) + 1) * (longest_prompt + longest_row) if passes else 0
        if not passes or padded > max(ROW, (real + before + after) / (1 - PADDING)):
            passes.append([])
            real, longest_prompt, longest_row = 0, before, after
        passes[-1].append(place)
        real += before + after
    return passes


def _row(groups: Sequence[TokenGroup], device: torch.device) -> PackedRow:
    ids, positions, owners, completions, predicts = (list[int]() for _ in range(5))
    number = 0
    for owner, group in enumerate(groups):
        start, length = len(ids), len(group.prompt)
        ids += group.prompt
        positions += range(length)
        completions += [0] * length
        for tokens in group.completions:
            number += 1
            first = len(ids)
            predicts += [start + length - 1, *range(first, first + len(tokens) - 1)][: len(tokens)]
            ids += tokens[:-1]
            positions += range(length, length + len(tokens) - 1)
            completions += [number] * len(tokens[:-1])
        owners += [owner] * (len(ids) - start)
    return PackedRow(
        *(torch.tensor(each, device=device) for each in (ids, positions, owners, completions, predicts))
    )


@torch.no_grad()
def objection(
    model: PreTrainedModel, alone: Callable[[TokenGroup], Tensor], packed: Callable[[PackedRow], Tensor]
) -> str:
    """Why a model's groups are not packed; empty where they are. The model has its weights. `alone` has the
    states (N, H) of a group's predictions by padded rows, `packed` those of a row."""
    config, first = model.config.get_text_config(), next(model.parameters())
    most = min(int(config.vocab_size), 1000)
    random = torch.Generator().manual_seed(0)
    tokens = [torch.randint(most, (count,), generator=random).tolist() for count in (6, 5, 2, 7, 3, 4, 6)]
    groups = [TokenGroup(tokens[0], tokens[1:4]), TokenGroup(tokens[4], tokens[5:])]
    try:
        with _short_windows(config):
            wanted = torch.cat([alone(group) for group in groups]).float()
            found = torch.cat([packed(row) for row in pack(groups, first.device)]).float()
    except Exception as error:  # of the model's code, which may be anything
        if ran_out(error):
            raise
        return f"it takes no mask of groups ({type(error).__name__}: {error})"
    off = float((found - wanted).abs().mean() / wanted.abs().mean().clamp(min=1e-9))
    if off <= (APART if first.dtype is torch.float32 else APART_ROUNDED):
        return ""
    return f"its states of a completion depend on the ones before it in the row (by {off:.2g} of their size)"


@contextmanager
def _short_windows(config: PretrainedConfig) -> Iterator[None]:
    before = {name: size for name in WINDOWS.values() if isinstance(size := getattr(config, name, None), int)}
    for name in before:
        setattr(config, name, TRIED)
    try:
        yield
    finally:
        for name, size in before.items():
            setattr(config, name, size)
