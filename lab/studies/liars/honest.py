"""The honest half of `swarm bench adversaries`: samplers that audits name although none cheats.

    Mixed (precisions of sampler and learner, completions in a call) --groups, each replayed--> row
    rows --> honest.csv and a table: margins, tokens that are off, samplers that were suspended

The policy is a table whose logits are rounded as a language model's are: in each call anew, by errors of the
precision that grow with the logit and depend on how many completions are in the call. Their size is that of
real models (docs/trust.md, Measured). Replays, tolerances and consequences are those that ship
(swarm.learn.replay, swarm.core.audits.auditing), and no group is left out. One sampler is hotter, and some
steer: they draw a token of their liking where that costs no more than a few tenths of a nat, and all others
as their seed has it. Not handled here: real engines.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from lab.studies.experiments import Row, measured
from swarm.core.audits.auditing import Audits, Finding
from swarm.draws import noise
from swarm.draws.replays import weigh
from swarm.learn.replay import ModelReplay
from swarm.types import PeerId, Struct

VOCABULARY, CONTEXTS, END, LONGEST = 64, 1 << 12, 0, 16

SIZE = 8
"""Completions of a group."""

LOGIT, SPREAD = 10.0, 2.1
"""Mean and deviation of logits: a token of about two nats."""

ERRORS = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Relative, of one rounding."""

LAYERS = 1.6
"""Roundings that add up in a logit, by their deviation: margins between float32 and bfloat16 are those of a
model of 0.6B and 151,936 tokens."""

SAMPLED, REPLAYED = ("float32", "bfloat16"), ("float32", "bfloat16")
CALLS = (1, 4, 16, 64)
"""Completions in a call."""

HOT = 1.1
"""Temperature of one sampler that is not honest."""

STEERED, LONG = (0.3, 0.6, 0.9, 1.2), 128
"""Nats that samplers which steer pay at most, once a completion, and tokens of these: the fewer, the sooner
they are found."""

TRUSTED = 30
"""Groups that some of them draw honestly at first."""

ME = PeerId("sampler-0")


class Mixed(Struct):
    """Groups of one sampler, replayed by one learner."""

    sampled: str
    replayed: str
    completions: int
    most: int
    """Groups to replay where their sampler is not suspended."""
    seed: int
    temperature: float = 1.0
    steered: float = 0.0
    """Nats that it pays at most for a first token of its liking, the prompt's second most probable one."""
    honest: int = 0
    """Groups in which it does not, at first."""
    longest: int = LONGEST
    setup: str = ""
    """Digest of the table and its errors: a changed one is another cell."""


def plan(quick: bool) -> list[Mixed]:
    groups, seeds = (1000, 1) if quick else (1600, 4)
    made = itertools.product(range(1, seeds + 1), SAMPLED, REPLAYED, CALLS)
    found = [
        Mixed(sampled=sampled, replayed=replayed, completions=calls, most=groups, seed=seed, setup=setup())
        for seed, sampled, replayed, calls in made
    ]
    hot = Mixed(
        sampled="bfloat16",
        replayed="float32",
        completions=64,
        most=groups,
        seed=1,
        temperature=HOT,
        setup=setup(),
    )
    return [*found, hot, *_steerers(quick)]


def _steerers(quick: bool) -> Iterator[Mixed]:
    seeds = (1,) if quick else (1, 2, 3, 4)
    for seed, sampled, steered, honest in itertools.product(seeds, SAMPLED, STEERED, (0, TRUSTED)):
        yield Mixed(
            sampled=sampled,
            replayed="float32",
            completions=16,
            most=60 + honest,
            seed=seed,
            steered=steered,
            honest=honest,
            longest=LONG,
            setup=setup(),
        )


def setup() -> str:
    """Hex digest of everything that all cells share and none contains."""
    shared = (VOCABULARY, CONTEXTS, END, LONGEST, SIZE, LOGIT, SPREAD, ERRORS, LAYERS)
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:8]


def main(quick: bool, out: Path, minutes: float) -> int:
    """Run or resume the study of honest samplers in the folder `out`. Returns an exit code."""
    done = measured(plan(quick), audited, out / "honest.csv", minutes)
    print(honest_table([(cell, row) for cell, row in done if not cell.steered]))
    print("", steered_table([(cell, row) for cell, row in done if cell.steered]), sep="\n")
    return 0


FIGURES = ("groups", "tokens", "differ", "largest", "mean", "hard", "off", "undecided", "named", "liked")
"""Groups and tokens replayed; share of tokens that the learner would have drawn otherwise; largest and mean
margin in nats; the learner's tolerance for a token; tokens that are off; groups that decide nothing; whether
the sampler was suspended, after so many groups; share of first tokens that one which steers likes."""


def honest_table(done: Sequence[tuple[Mixed, Row]]) -> str:
    """Markdown: a row a pair of precisions, over seeds and calls of so many completions."""
    lines = [
        "| sampled, replayed | groups | tokens | differ | largest | tolerance | mean | off | suspended |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for how in dict.fromkeys((cell.sampled, cell.replayed, cell.temperature) for cell, _ in done):
        its = [row for one, row in done if (one.sampled, one.replayed, one.temperature) == how]
        groups, tokens = (sum(int(row[name]) for row in its) for name in ("groups", "tokens"))
        differ, mean = (
            sum(float(row[name]) * int(row["tokens"]) for row in its) / tokens for name in ("differ", "mean")
        )
        off, named = (sum(int(row[name]) for row in its) for name in ("off", "named"))
        hot = f", at temperature {how[2]:g}" if how[2] != 1 else ""
        lines.append(
            f"| {how[0]}, {how[1]}{hot} | {groups:,} | {tokens:,} | {differ:.1%} |"
            f" {max(float(row['largest']) for row in its):.3g} |"
            f" {min(float(row['hard']) for row in its):.2f} | {mean:.2g} | {off} | {named} of {len(its)} |"
        )
    return "\n".join(lines)


def steered_table(done: Sequence[tuple[Mixed, Row]]) -> str:
    """Markdown: a row a sampler that steers, over seeds."""
    lines = [
        "| sampled, replayed | pays | honest at first | of its liking | suspended | after groups |",
        "|---|---|---|---|---|---|",
    ]
    for how in dict.fromkeys((one.sampled, one.replayed, one.steered, one.honest) for one, _ in done):
        its = [row for one, row in done if (one.sampled, one.replayed, one.steered, one.honest) == how]
        named = [int(row["groups"]) - how[3] for row in its if row["named"]]
        liked = fmean(float(row["liked"]) for row in its)
        lines.append(
            f"| {how[0]}, {how[1]} | {how[2]:g} | {how[3]} | {liked:.2f} | {len(named)} of {len(its)} |"
            f" {f'{min(named)} to {max(named)}' if named else ''} |"
        )
    return "\n".join(lines)


def audited(one: Mixed) -> Row:
    """Sample and replay so many groups, or until their sampler is suspended."""
    torch.set_num_threads(1)
    replayer = ModelReplay(
        cast(Any, RoundedPolicy(one.replayed, one.seed)), _no_weights, (END,), one.longest, temperature=1.0
    )
    audits, off, findings, margins = Audits(), 0, Counter[Finding](), list[np.ndarray]()
    liked, table = list[bool](), TableOfContexts(one.seed)
    for group in itertools.islice(_groups(one), one.most):
        replayed = replayer.replay(group.prompt, group.rows, group.seed)
        weighed = weigh(replayed, group.logprobs, replayer.allowed)
        finding, suspension = audits.take(ME, weighed, now=0.0)
        findings[finding] += 1
        off += weighed.off
        margins.append(replayed.margins)
        if int(group.prompt) >= one.honest:
            liking = int(table.liked(torch.tensor([int(group.prompt)])))
            liked += [row[0] == liking for row in group.rows]
        if suspension is not None:
            break
    every = np.concatenate(margins)
    return {
        "groups": findings.total(),
        "tokens": len(every),
        "differ": float((every > 0).mean()),
        "largest": float(every.max()),
        "mean": float(every.mean()),
        "hard": replayer.allowed.hard,
        "off": off,
        "undecided": findings[Finding.UNDECIDED],
        "named": int(audits.suspensions.of(ME, 0.0) is not None),
        "liked": float(np.mean(liked)),
    }


# --- the policy ---------------------------------------------------------------------------------------------


def rounded(logits: Tensor, dtype: torch.dtype, completions: int, rng: torch.Generator) -> Tensor:
    """Logits (N, V) as a call of that precision with so many completions has them: `rng` draws the errors of
    its rows, and its size those of all of them."""
    size = torch.Generator().manual_seed(completions)
    errors = torch.randn(logits.shape, generator=rng) + torch.randn(logits.shape[-1], generator=size)
    return (logits * (1 + ERRORS[dtype] * LAYERS * errors / 2**0.5)).to(dtype).float()


class TableOfContexts:
    """Log-probabilities of a token by its prompt, place, and the token before."""

    def __init__(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self._logits = LOGIT + SPREAD * torch.randn(CONTEXTS, VOCABULARY, generator=rng)
        self.rng = torch.Generator().manual_seed(seed + 1)

    def logits(self, prompts: Tensor, places: Tensor, before: Tensor) -> Tensor:
        """(N, V), all of (N,)."""
        return self._logits[(prompts * 7919 + places * 131 + before * 31) % CONTEXTS]

    def liked(self, prompts: Tensor) -> Tensor:
        """(N,) the second most probable first token of each prompt (N,)."""
        nothing = torch.zeros_like(prompts)
        return self.logits(prompts, nothing, nothing).topk(2).indices[:, 1]


class RoundedPolicy(TableOfContexts):
    """What swarm.learn.replay needs of a LanguageModel."""

    def __init__(self, dtype: str, seed: int) -> None:
        super().__init__(seed)
        self.rng.manual_seed(seed + 2)
        self.module = nn.Linear(1, 1, dtype=getattr(torch, dtype))

    def distributions(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> Iterator[Tensor]:
        dtype = self.module.weight.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        places = torch.cat([torch.arange(len(row)) for row in rows])
        before = torch.tensor([token for row in rows for token in (0, *row[:-1])])
        logits = self.logits(torch.full_like(places, int(prompts[0])), places, before)
        yield torch.log_softmax(rounded(logits, dtype, len(rows), self.rng) / temperature, -1)


def _no_weights(_: nn.Module, __: Any) -> None:
    raise AssertionError("the table is there from the start")


# --- the sampler --------------------------------------------------------------------------------------------


class HonestGroup(NamedTuple):
    prompt: str
    seed: int
    rows: list[list[int]]
    logprobs: np.ndarray
    """(sum T_i,)"""


def _groups(one: Mixed) -> Iterator[HonestGroup]:
    """Without end, some at a time."""
    table, dtype = TableOfContexts(one.seed), getattr(torch, one.sampled)
    for first in itertools.count(step=SIZE):
        seeds = [1_000_003 * (first + k) + one.seed for k in range(SIZE)]
        prompts = [first + k for k in range(SIZE)]
        yield from _sampled(table, prompts, seeds, dtype, one)


def _sampled(
    table: TableOfContexts, prompts: Sequence[int], seeds: Sequence[int], dtype: torch.dtype, one: Mixed
) -> Iterator[HonestGroup]:
    """A group for each prompt; a row of theirs is in a call with `completions - 1` others."""
    asked = torch.tensor(prompts).repeat_interleave(SIZE)
    drawn = [noise.of_group(seed, SIZE, VOCABULARY, one.longest) for seed in seeds]
    gumbel = noise.gumbel(torch.from_numpy(np.concatenate(drawn)))
    steers = asked >= one.honest
    gumbel[steers, 0, table.liked(asked)[steers]] += one.steered
    before, tokens, claims = torch.zeros_like(asked), list[Tensor](), list[Tensor]()
    for place in range(one.longest):
        logits = table.logits(asked, torch.full_like(asked, place), before)
        logits = rounded(logits, dtype, one.completions, table.rng) / one.temperature
        logp = torch.log_softmax(logits, -1)
        before = (logp + gumbel[:, place]).argmax(-1)
        tokens.append(before)
        claims.append(logp.gather(1, before[:, None])[:, 0])
    all_tokens, all_claims = torch.stack(tokens, 1).numpy(), torch.stack(claims, 1).numpy()
    for k, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        rows = [_until_end(row) for row in all_tokens[k * SIZE : (k + 1) * SIZE].tolist()]
        said = all_claims[k * SIZE : (k + 1) * SIZE]
        logprobs = np.concatenate([each[: len(row)] for each, row in zip(said, rows, strict=True)])
        yield HonestGroup(str(prompt), seed, rows, logprobs)


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(END) + 1] if END in row else row
