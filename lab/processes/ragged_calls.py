"""The engine `hf` on completions of ragged lengths, in a process of its own, for the row `ragged`.

    python -m lab.processes.ragged_calls '{"model": ..., "group": 8, "longest": 512, "counted": 64}'
    {"tasks": 8, "turn": 0}    -> {"lengths": (counted, group), "forwards", "in_turn", "all_full"}

All tokens of the model are equally likely, and ENDS of 400 end a completion: lengths are geometric, with a
median of 55, and one of 600 is cut at 512. The last two answers are tokens a CPU second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from lab.swarms.partner import Answer, answer_all, opened, say
from swarm.sample.base import Completions

ENDS = 5
PROMPT = "What is 12+30?"


class Sides:
    def __init__(self, model: Path, group: int, longest: int, counted: int) -> None:
        from swarm.learn.models import model as models
        from swarm.learn.models import tokenization

        policy: Any = models.load_policy(model)
        policy.lm_head.weight.data.zero_()
        self._policy, self._tokens = policy, tokenization.load(model)
        self._group, self._longest, self._counted = group, longest, counted
        self._forwards = 0
        policy.register_forward_pre_hook(self._count)

    def turn(self, tasks: int, turn: int) -> Answer:
        """Calls of so many tasks; then as many tokens in calls whose completions are all as long as the
        mean."""
        self._forwards = 0
        groups, ragged = self._calls(tasks, turn, tuple(range(ENDS)), self._longest)
        forwards, lengths = self._forwards, [group.lengths for group in groups]
        mean = round(sum(map(sum, lengths)) / (self._counted * self._group))
        _, full = self._calls(tasks, turn, (), mean)
        return {"lengths": lengths, "forwards": forwards, "in_turn": ragged, "all_full": full}

    def _calls(
        self, tasks: int, turn: int, ends: tuple[int, ...], longest: int
    ) -> tuple[list[Completions], float]:
        from swarm.learn.files import weights
        from swarm.sample.hf import HfEngine

        self._tokens.ends = ends
        engine, first = HfEngine(self._policy, self._tokens, weights.load_into, longest), turn * self._counted
        groups, began = [], time.process_time()
        for at in range(first, first + self._counted, tasks):
            groups += engine.sample([PROMPT] * tasks, self._group, range(at, at + tasks))
        return groups, sum(len(group.tokens) for group in groups) / (time.process_time() - began)

    def _count(self, *_: object) -> None:
        self._forwards += 1


def main() -> int:
    setup = opened()
    import torch

    torch.set_num_threads(1)
    sides = Sides(Path(setup["model"]), setup["group"], setup["longest"], setup["counted"])
    say()

    async def answer(asked: Answer) -> Answer:
        return sides.turn(asked["tasks"], asked["turn"])

    asyncio.run(answer_all(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
