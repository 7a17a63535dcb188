"""Samplers that choose what they draw, in simulated swarms of the roles that ship."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from role_swarms import Told, scenario

from peers.sampler.sampler import Sampler
from swarm.core.intake.admission import group_id
from swarm.core.intake.curriculum import Draw
from swarm.events import Judged, Rejected
from swarm.sample.base import EngineError
from swarm.sample.toy import ToyEngine
from swarm.settings.config import BatchSize, Pace, Window
from swarm.tasks.base import RewardError
from swarm.tasks.toy import Toy
from swarm.types import Group, PeerId, Task, Verdict

HONEST = {"sampler-0", "sampler-1"}


def named(group: Group) -> Group:
    text, logprobs = group.tokens.data, group.logprobs.data
    identity = group_id(group.sampler, group.version, group.task, group.seed, text, logprobs)
    return msgspec.structs.replace(group, id=identity)


def drawing(sampler: Sampler, choose: Callable[[int, Draw], Draw]) -> None:
    """Let a sampler draw what it chooses, and sample that as it should."""
    due, count = sampler.curriculum.next, iter(range(1 << 20))
    sampler.curriculum.next = lambda weights: choose(next(count), due(weights))  # type: ignore[method-assign]


class Cheat(Sampler):
    """Cheats by its name; the others are honest."""

    sent: tuple[Group, ...] = ()
    """Of all."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        match self.host.who.name:
            case "sampler-2":  # one task for ever
                drawing(self, lambda _, due: due._replace(task=7))
            case "sampler-3":  # a seed of its own
                drawing(self, lambda n, due: due._replace(seed=n))
            case "sampler-4":  # of many numbers the one that it likes
                of, me = self.curriculum._draws.of, self.host.ports.me
                drawing(self, lambda n, due: of(self._policy[0].weights, me, 5000 + n))  # type: ignore[index]
            case "sampler-5":  # what another identity would draw
                of = self.curriculum._draws.of
                drawing(self, lambda n, due: of(self._policy[0].weights, PeerId("mine, too"), n))  # type: ignore[index]

    async def _send(self, group: Group, learner: PeerId) -> Any:
        me = self.host.ports.me
        if me == "sampler-6" and Cheat.sent:  # another one's group as its own
            group = named(msgspec.structs.replace(Cheat.sent[-1], sampler=me, times=group.times))
        elif me == "sampler-7":  # its first group again, as another draw
            self._first = getattr(self, "_first", group)
            again = self._first if self._first.weights == group.weights else group
            group = named(msgspec.structs.replace(again, draw=group.draw + 1))
        elif me in HONEST:
            Cheat.sent = (group,)
        return await super()._send(group, learner)


def test_who_chooses_what_it_draws_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cheat, "sent", ())
    monkeypatch.setattr("peers.sampler.sampler.Sampler", Cheat)
    told = Told(scenario(0.4, (1, 8)))
    verdicts: dict[str, set[tuple[str, str]]] = {}
    for event in told.of(Judged):
        why = event.detail.split(" that of draw")[0] if event.verdict is not Verdict.ADMIT else ""
        verdicts.setdefault(event.sampler, set()).add((event.verdict.value, why))
    for name in HONEST:
        assert ("admit", "") in verdicts[name] and "untrusted" not in {what for what, _ in verdicts[name]}
    for name, why in {
        "sampler-2": "its task is not",
        "sampler-3": "its seed is not",
        "sampler-4": "no sampler draws so many",
        "sampler-5": "its task is not",
        "sampler-6": "there is a group of this task and seed",
        "sampler-7": "its task is not",
    }.items():
        assert {what for what, _ in verdicts[name]} <= {"untrusted", "over-quota", "duplicate"}, name
        assert any(why in each for _, each in verdicts[name]), name


SHORT: dict[str, Any] = {
    "window": Window(versions=4, seconds=20.0),
    "pace": Pace(beat=0.5, patience=1.5),
    "batch": BatchSize(groups=16, close_after=3.0),
}
"""Releases leave the window soon."""


def test_a_run_that_cannot_score_a_fifth_of_its_exercises_trains_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = Toy.rewards

    def rewards(self: Toy, task: Task, completions: Sequence[str]) -> list[float]:
        if task.index >= 0 and task.index % 5 == 0:
            raise RewardError("the verifier cannot score this exercise")
        return true(self, task, completions)

    monkeypatch.setattr(Toy, "rewards", rewards)
    told = Told(scenario(0.8, (2, 3), sample=0.3, **SHORT))
    late = [event.verdict for event in told.of(Judged, since=30)]
    assert not told.of(Rejected) and Verdict.UNSCORED in late and Verdict.UNTRUSTED not in late
    assert late.count(Verdict.ADMIT) > 0.6 * len(late)


def test_an_engine_that_fails_in_every_fifth_call_draws_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true, calls = ToyEngine.sample, Counter[int]()

    def sample(self: ToyEngine, *args: Any) -> Any:
        calls[id(self)] += 1
        if calls[id(self)] % 5 == 0:
            raise EngineError("CUDA out of memory")
        return true(self, *args)

    monkeypatch.setattr(ToyEngine, "sample", sample)
    drawn: dict[tuple[str, str], set[int]] = {}

    async def deliver(self: Sampler, group: Group, bound: PeerId | None = None) -> None:
        drawn.setdefault((group.sampler, group.weights), set()).add(group.draw)

    monkeypatch.setattr(Sampler, "_deliver", deliver)
    Told(scenario(0.5, (1, 2), sample=0.3, **SHORT))
    assert drawn and all(numbers == set(range(len(numbers))) for numbers in drawn.values())
