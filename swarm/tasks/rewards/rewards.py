"""Reward functions: their names, where they may run, and their weighted sum.

    math, exact, code         built in                                         a worker
    NAME                      an installed `swarm.rewards` entry point         a worker
    FILE.py:function          travels with the run as rewards-0.py, ...        in a sandbox, or as `code` says
    package.module:function   installed here, but the run says what is called  the same

A function has TRL's signature: `prompts, completions, **columns -> list[float | None]`, strings or
conversations (lists of messages), one value per completion in all of them. In comes a group, out comes one
number per completion: the sum over functions of weight times reward, where None is left out. A completion
without any reward gets the mean of the others of its group, so that it has no advantage and moves no
baseline, as in TRL; a group without any is an error. Not handled: two machines of which one is too slow for
`math` or `code` (an answer that cannot be checked in time is a wrong one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from swarm.frames.grammar import nearest
from swarm.tasks.base import LARGEST, Abstained, CodePolicy, RewardError
from swarm.tasks.workers import sandbox
from swarm.tasks.workers.worker import MEMORY, Worker

BUILT_IN = {
    "exact": "swarm.tasks.rewards.rewards:exact",
    "math": "swarm.tasks.rewards.math_reward:equal",
    "code": "swarm.tasks.rewards.code_reward:passes",
}
GROUP = "swarm.rewards"


def exact(
    completions: Sequence[Any],
    answer: Sequence[Any],
    answer_as_written: Sequence[Any] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """1 where the completion is the answer, but for white space around it; None where there is no answer.
    `answer_as_written`: the text of a number that Python writes otherwise."""
    return [
        float(text(completion).strip() == str(gold).strip()) if str(gold).strip() else None
        for completion, gold in zip(completions, answer_as_written or answer, strict=True)
    ]


def text(completion: Any) -> str:
    """The completion's text: itself, or the content of a conversation's last message."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def files(names: Sequence[str]) -> dict[str, Path]:
    """Files that travel with a run, by their names in its task folder. Raises ValueError for a missing
    one."""
    found = {name: Path(place) for place, name in packed(names).items()}
    for path in found.values():
        if not path.is_file():
            raise ValueError(f"the reward file {path} is not there")
    return found


def packed(names: Sequence[str]) -> dict[str, str]:
    """FILE.py -> its name in the task folder, one for each file in the order of their first use."""
    places = dict.fromkeys(
        place for place in (name.rpartition(":")[0] for name in names) if place.endswith(".py")
    )
    return {place: f"rewards-{i}.py" for i, place in enumerate(places)}


class RunRewards:
    """The rewards of a run on this peer. One call at a time."""

    def __init__(
        self,
        names: Sequence[str],
        weights: Sequence[float],
        folder: Path | None,
        code: CodePolicy,
        timeout: float,
    ) -> None:
        """`folder`: the run's task folder, None to read files where they lie. `timeout`: seconds for each of
        two workers at most.

        Starts nothing. Raises ValueError for a name that is none, for code that must not or cannot run here
        (NoSandbox).
        """
        if len(set(names)) < len(names):
            raise ValueError(
                f"a reward is named twice ({', '.join(names)}): name it once and give it a weight"
            )
        if weights and len(weights) != len(names):
            raise ValueError(
                f"there are {len(names)} rewards and {len(weights)} weights: give one weight for each, or"
                " none"
            )
        self._names, self._weights = tuple(names), tuple(weights) or (1.0,) * len(names)
        known = {**BUILT_IN, **{point.name: point.value for point in entry_points(group=GROUP)}}
        foreign = [name for name in names if ":" in name]
        if code == "refuse" and foreign:
            raise ValueError(
                f"{foreign[0]} is code that came with the run, and peer.rewards.code = refuse says not to"
                " run it"
            )
        if "code" in names and (why := sandbox.missing()):
            raise sandbox.NoSandbox(why)
        functions = {name: name if ":" in name else _installed(name, known) for name in names}
        where = {place: folder / name for place, name in packed(names).items()} if folder is not None else {}
        memory = 0 if foreign and code == "trust" else MEMORY  # a reward model of one's own may need more
        self._workers: list[tuple[list[int], Worker]] = []
        for box in (False, True):
            if mine := [i for i, name in enumerate(names) if (":" in name and code == "sandbox") == box]:
                chosen = {names[i]: functions[names[i]] for i in mine}
                self._workers.append((mine, Worker(chosen, where, box, timeout, memory)))

    def check(self) -> None:
        """Start the workers: every function is imported. Raises ValueError."""
        for _, worker in self._workers:
            worker.check()

    def rewards(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[float]:
        """One number per completion. Raises RewardError."""
        rows: dict[int, list[float | None]] = {}
        for mine, worker in self._workers:
            rows.update(zip(mine, worker.call(prompts, completions, columns), strict=True))
        totals = [
            self._total([rows[i][place] for i in range(len(rows))]) for place in range(len(completions))
        ]
        scored = [total for total in totals if total is not None]
        if not scored:
            count = len(completions)
            said = f"each returned None for {count} of {count} completions"
            raise Abstained(f"none of {', '.join(self._names)} applies to this task: {said}")
        if not all(abs(total) <= LARGEST for total in scored):
            raise RewardError(
                f"the weighted sum of the rewards is not finite, or above {LARGEST:g} in absolute value"
            )
        mean = math.fsum(scored) / len(scored)
        return [mean if total is None else total for total in totals]

    def _total(self, values: Sequence[float | None]) -> float | None:
        """The weighted sum of what functions return for one completion; None where none of them applies."""
        if all(value is None for value in values):
            return None
        return sum(weight * (value or 0.0) for weight, value in zip(self._weights, values, strict=True))

    def printed(self) -> str:
        """The end of what functions printed."""
        return "".join(worker.printed() for _, worker in self._workers)

    def close(self) -> None:
        for _, worker in self._workers:
            worker.close()


def _installed(name: str, known: Mapping[str, str]) -> str:
    if name in known:
        return known[name]
    raise ValueError(
        f"there is no reward {name!r}{nearest(name, known)}: take one of {', '.join(sorted(known))},"
        " FILE.py:function or package.module:function"
    )
