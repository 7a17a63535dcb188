"""Row `scoring`: peak memory and seconds of log-probs and their gradient at a real vocabulary, in chunks and
all at once.

    python -m lab.rows.scoring chunked|naive N V H     -> {"mib", "seconds"}

Each way has a process of its own, since a peak never falls; both begin from the same tensors, which are not
counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from lab.figures.resident import PEAK, resident
from lab.figures.table import Figure, Unmeasured

if TYPE_CHECKING:
    from lab.figures.table import Say

TOKENS, VOCABULARY, HIDDEN = 1024, 151_936, 256
"""Vocabulary of Qwen; a quarter of the tokens of a real micro-batch, so that the naive way fits in a few
GB."""

PATIENCE = 300.0


def measure(
    say: Say, tokens: int = TOKENS, vocabulary: int = VOCABULARY, hidden: int = HIDDEN
) -> list[Figure]:
    seen = {}
    for way in ("chunked", "naive"):
        seen[way] = _alone(way, tokens, vocabulary, hidden)
        say(f"{way}: {seen[way]['mib']:.0f} MiB, {seen[way]['seconds']:.2f} s")
    note = (
        f"forward + backward, {tokens} tokens x {vocabulary} vocabulary x {hidden} hidden, float32; one run"
    )
    return [
        Figure(
            row="scoring",
            what=what,
            value=seen["chunked"][key],
            unit=unit,
            against="all logits at once",
            other=seen["naive"][key],
            note=note,
        )
        for what, key, unit in (("peak memory", "mib", "MiB"), ("time", "seconds", "s"))
    ]


def _alone(way: str, *shape: int) -> dict[str, float]:
    command = [sys.executable, "-m", "lab.rows.scoring", way, *map(str, shape)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise Unmeasured(f"the {way} way took more than {PATIENCE:.0f} s: is the machine busy?") from None
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or ["no message: out of memory?"]
        raise Unmeasured(f"the {way} way ended with {done.returncode}: {why[0]}")
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _once(way: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, float]:
    import torch

    from swarm.learn.learners import chunked_logprobs

    torch.manual_seed(0)
    states = torch.randn(tokens, hidden, requires_grad=True)
    # in place: a copy would hide in the peak
    weight = torch.randn(vocabulary, hidden).div_(hidden**0.5).requires_grad_()
    chosen = torch.randint(vocabulary, (tokens,))
    before, began = resident(PEAK), time.monotonic()
    if way == "chunked":
        logp, _ = chunked_logprobs.token_logprobs(states, weight, None, chosen, 1.0)
    else:
        whole = torch.log_softmax(torch.nn.functional.linear(states, weight).float(), -1)
        with torch.no_grad():
            (whole.exp() * whole).nan_to_num(nan=0.0).sum(-1)
        logp = whole.gather(-1, chosen[:, None]).squeeze(-1)
    logp.mean().backward()  # type: ignore[no-untyped-call]
    return {"seconds": time.monotonic() - began, "mib": (resident(PEAK) - before) / (1 << 20)}


if __name__ == "__main__":
    print(json.dumps(_once(sys.argv[1], *map(int, sys.argv[2:]))))
