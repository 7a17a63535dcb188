"""Samplers that choose what they draw, or what they return, in simulated swarms of the roles that ship."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from test_roles_swarm import Told, scenario

from peers.commands.sim import Letters
from peers.roles.draw_returns import ASKED, LEFT, DrawReturns
from peers.roles.sampler import Sampler
from swarm import wire
from swarm.config import BatchSize, Optimizer, Pace, Window
from swarm.core.admission import group_id
from swarm.core.curriculum import Draw
from swarm.core.returns import DrawsCame, DrawsQuery, Returns, SamplerDraws
from swarm.events import Judged, Rejected, Released, Trained
from swarm.sample.base import EngineError, NoRoom
from swarm.sample.toy import ToyEngine
from swarm.sim.scenario import Fault
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
    monkeypatch.setattr("peers.roles.sampler.Sampler", Cheat)
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
        "sampler-4": "nobody draws so many",
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


def out(group: Group) -> Group | None:
    return None


def damaged(group: Group) -> Group | None:
    return msgspec.structs.replace(group, id="0" * 32)


def claiming(group: Group) -> Group | None:
    return msgspec.structs.replace(group, rewards=(9.0,) * len(group.rewards))


@pytest.mark.parametrize("left", [out, damaged, claiming])
def test_who_leaves_out_what_it_does_not_like_is_named_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch, left: Callable[[Group], Group | None]
) -> None:
    class Picky(Sampler):
        """One sends every third of its groups as `left`."""

        async def _deliver(self, group: Group, bound: PeerId | None = None) -> None:
            chosen = self.host.who.name == "sampler-0" and not group.task % 3
            sent = left(group) if chosen else group
            if sent is not None:
                await super()._deliver(sent, bound)

    monkeypatch.setattr("peers.roles.sampler.Sampler", Picky)
    kill = Fault(at=20, fault="bounce", peer="sampler-1", down=2.0)
    told = Told(scenario(1.3, (2, 3), kill, sample=0.3, **SHORT))
    refused = {event.sampler for event in told.of(Judged) if "of its last" in event.detail}
    assert refused == {event.sender for event in told.of(Rejected)} == {"sampler-0"}
    last = [event for event in told.of(Judged, since=60) if event.sampler == "sampler-0"]
    assert last and Verdict.ADMIT not in {event.verdict for event in last}


def test_nobody_is_named_while_no_step_changes_the_weights() -> None:
    """All versions have the weights of version 0: draws are numbered through them."""
    none = Optimizer(lr=1e-44)  # less than a released value can hold
    told = Told(scenario(2.0, (1, 2), sample=0.3, optimizer=none, **SHORT))
    assert len({event.release.weights for event in told.of(Released)}) == 1
    assert max(event.release.version for event in told.of(Released)) > 4 * SHORT["window"].versions
    assert not told.of(Rejected)
    assert Verdict.ADMIT in {event.verdict for event in told.of(Judged, since=100)}


def named_by(told: Told, *honest: str) -> set[str]:
    return {event.sender for event in told.of(Rejected) if event.peer in honest}


def test_honest_samplers_of_a_run_that_cannot_score_a_fifth_of_its_exercises_are_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = Toy.rewards

    def rewards(self: Toy, task: Task, completions: Sequence[str]) -> list[float]:
        if task.index >= 0 and task.index % 5 == 0:
            raise RewardError("the verifier cannot score this exercise")
        return true(self, task, completions)

    monkeypatch.setattr(Toy, "rewards", rewards)
    told = Told(scenario(1.1, (2, 3), sample=0.3, **SHORT))
    late = [event.verdict for event in told.of(Judged, since=45)]
    assert not told.of(Rejected) and Verdict.UNSCORED in late and Verdict.UNTRUSTED not in late
    assert late.count(Verdict.ADMIT) > 0.6 * len(late)


@pytest.mark.parametrize("picky", [False, True])
@pytest.mark.parametrize("made", [False, True])
def test_who_passes_over_what_nobody_can_sample_is_not_named_for_it_and_who_leaves_out_more_is(
    monkeypatch: pytest.MonkeyPatch, picky: bool, made: bool
) -> None:
    """Of a quarter of the exercises the prompt is too long for the model, or they cannot be `made`."""
    sample, tasks = ToyEngine.sample, Toy.tasks

    def is_bad(index: int) -> bool:
        return index >= 0 and index % 4 == 0

    def sampled(self: ToyEngine, prompts: Sequence[str], *rest: Any) -> Any:
        if any(prompt.startswith("long") for prompt in prompts):
            raise NoRoom("a prompt of 99 tokens and 8 of completion do not fit into 96")
        return sample(self, prompts, *rest)

    def drawn(self: Toy, indices: Sequence[int]) -> list[Task]:
        if made and any(map(is_bad, indices)):
            raise RewardError("this exercise cannot be made")
        found = tasks(self, indices)
        long = [f"long {task.prompt}" if is_bad(task.index) else task.prompt for task in found]
        return [msgspec.structs.replace(task, prompt=text) for task, text in zip(found, long, strict=True)]

    class Picky(Sampler):
        """One leaves out another quarter."""

        async def _deliver(self, group: Group, bound: PeerId | None = None) -> None:
            if self.host.who.name != "sampler-0" or group.task % 4 != 1 or not picky:
                await super()._deliver(group, bound)

    monkeypatch.setattr(ToyEngine, "sample", sampled)
    monkeypatch.setattr(Toy, "tasks", drawn)
    monkeypatch.setattr(Letters, "has_room", lambda self, task: not task.prompt.startswith("long"))
    monkeypatch.setattr("peers.roles.sampler.Sampler", Picky)
    told = Told(scenario(1.3, (2, 3), sample=0.3, **SHORT))
    assert {event.sender for event in told.of(Rejected)} == ({"sampler-0"} if picky else set())
    honest = [event.verdict for event in told.of(Judged, since=45) if event.sampler != "sampler-0"]
    assert honest.count(Verdict.ADMIT) > 0.8 * len(honest) and len(honest) > 100


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


@pytest.mark.parametrize(("due", "seed"), [(0, 1), (1000, 3)])
def test_a_learner_that_lies_about_what_came_has_nobody_named(
    monkeypatch: pytest.MonkeyPatch, due: int, seed: int
) -> None:
    true = DrawReturns._tell
    lie = tuple(SamplerDraws(sampler=PeerId(f"sampler-{k}"), due=due, draws=b"") for k in range(3))

    async def lying(self: DrawReturns, sender: PeerId, question: bytes) -> bytes:
        answer = await true(self, sender, question)
        liar = self._host.ports.me == "learner-2"
        return wire.encode(DrawsCame(since=0.0, samplers=lie)) if liar else answer

    monkeypatch.setattr(DrawReturns, "_tell", lying)
    told = Told(scenario(1.0, (3, 3), sample=0.3, seed=seed, **SHORT))
    assert not named_by(told, "learner-0", "learner-1")
    assert Verdict.ADMIT in {
        event.verdict for event in told.of(Judged, since=50) if event.peer != "learner-2"
    }


@pytest.mark.parametrize("answers", [True, False])
def test_a_learner_that_answers_late_changes_nothing_and_one_that_is_silent_has_nobody_named(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    late, left, settled = ASKED - 0.7 if answers else 2 * ASKED, LEFT * SHORT["pace"].patience, Counter[str]()
    tell, settle, early = DrawReturns._tell, Returns.settle, list[float]()

    class Picky(Sampler):
        """One leaves out every third of its groups."""

        async def _deliver(self, group: Group, bound: PeerId | None = None) -> None:
            if self.host.who.name != "sampler-0" or group.task % 3:
                await super()._deliver(group, bound)

    async def told(self: DrawReturns, sender: PeerId, question: bytes) -> bytes:
        if self._host.ports.me == "learner-2":
            await self._host.ports.clock.sleep(late)
        elif (asked := wire.decode(question, DrawsQuery)).weights in self._closed:
            early.append(self._closed[asked.weights] - (self._host.now() - asked.before))
        return await tell(self, sender, question)

    def counted(self: Returns, *rest: Any) -> list[PeerId]:
        settled["all"] += 1
        return settle(self, *rest)

    monkeypatch.setattr("peers.roles.sampler.Sampler", Picky)
    monkeypatch.setattr(DrawReturns, "_tell", told)
    monkeypatch.setattr(Returns, "settle", counted)
    played = Told(scenario(1.3, (3, 3), sample=0.3, **SHORT))
    assert named_by(played, "learner-0", "learner-1") == ({"sampler-0"} if answers else set())
    # learners see a release leave the window within two of each other's looks, a third of LEFT apart
    assert len(early) > 60 and min(early) > left / 3
    assert (settled["all"] > 60) is answers
    honest = [event.verdict for event in played.of(Judged) if event.sampler in {"sampler-1", "sampler-2"}]
    assert {*honest} <= {Verdict.ADMIT, Verdict.DUPLICATE} and len(honest) > 400
    assert min(Counter(event.peer for event in played.of(Trained)).values()) > 40
