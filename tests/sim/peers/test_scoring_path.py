"""Scoring in the roles that ship: slow rewards beside the rest, failures told, nothing else lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from still_host import RUN, still_host

from peers.commands import sim
from peers.evaluator import GIVE_UP
from peers.intake import group_opening
from peers.intake.inbox import LearnerInbox, NoDisk
from peers.intake.reward_calls import RewardCalls
from peers.intake.tally import OTHERS
from peers.learner.learner import LearnerPeer
from peers.runtime.faults import REPEAT_AFTER
from peers.runtime.frames import Frames
from peers.runtime.host import Host
from peers.sampler.sampler import UNSCORED
from swarm import events
from swarm.core.intake.admission import group_id
from swarm.core.intake.curriculum import Draws
from swarm.frames import wire
from swarm.net.libp2p.node import ThreadWork
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Kind, Role
from swarm.sample.base import Completions, NoRoom
from swarm.sample.toy import ToyEngine
from swarm.settings.config import (
    BatchSize,
    Config,
    DelayLaw,
    Evaluation,
    EvaluationSet,
    Optimizer,
    Run,
    Sampling,
    Stop,
    TaskSettings,
    Window,
)
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Scenario
from swarm.sim.world import World
from swarm.tasks.base import RewardError
from swarm.tasks.catalog import Authored
from swarm.tasks.toy import Toy
from swarm.types import Array, Digest, Group, Noise, PeerId, Receipt, Release, Task, Times, Verdict

BATCH = BatchSize(groups=8, close_after=3.0)


class Flawed(Toy):
    """The toy task with rewards that fail for some tasks, or that count as slow, or with slow tasks."""

    def __init__(self, fails: Callable[[Task], bool], slow: bool = False, slow_tasks: bool = False) -> None:
        super().__init__(1, {})
        self.slow, self.slow_tasks, self._fails = slow, slow_tasks, fails

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        if self._fails(task):
            raise RewardError("mine.py:f raised ValueError: no such color (mine.py line 7)")
        return super().rewards(task, completions)


def tenth(task: Task) -> bool:
    return task.index >= 0 and task.index % 10 == 0


def never(task: Task) -> bool:
    return False


def always(task: Task) -> bool:
    return True


class Told:
    """A swarm of one learner, three samplers and an evaluator, whose roles get their source from
    `source(role)`."""

    def __init__(
        self,
        source: Callable[[Role], Flawed],
        minutes: float = 0.8,
        batch: BatchSize = BATCH,
        right: float = 1.0,
        tasks: int = 16,
        samples: int = 0,
        sets: dict[str, EvaluationSet] | None = None,
        stop: float = 0.0,
        **prices: float,
    ) -> None:
        self.all: list[events.Event] = []
        self.learners: list[LearnerPeer] = []

        def role(host: Host, kit: sim.PolicyParts) -> sim.RoleProgram:
            played = sim.role_of(host, kit, source(host.who.role))
            if isinstance(played, LearnerPeer):
                self.learners.append(played)
            return played

        evaluation = Evaluation(tasks=tasks, every=5, right=right, samples=samples, sets=sets or {})
        played = self._scenario(
            minutes, batch, evaluation, Stop(accuracy=stop), {"sample": 1.0, "learn": 0.3} | prices
        )
        World(
            played,
            lambda peer: sim.run_peer(peer, sim.policy_parts(peer.config), role),
            sinks=[self.all.append],
        ).run()

    def _scenario(
        self,
        minutes: float,
        batch: BatchSize,
        evaluation: Evaluation,
        stop: Stop,
        prices: dict[str, float],
    ) -> Scenario:
        return Scenario(
            name="scoring",
            hours=minutes / 60,
            peers={"seed": 1, "learner": 1, "sampler": 3, "evaluator": 1},
            seed=1,
            prices={kind: DelayLaw(law="constant", seconds=seconds) for kind, seconds in prices.items()},
            run=Run(
                name="scoring",
                task=TaskSettings(name="toy"),
                sampling=Sampling(group_size=4, max_tokens=4),
                optimizer=Optimizer(lr=0.2),
                batch=batch,
                evaluation=evaluation,
                stop=stop,
            ),
        )

    def of(self, kind: type[Any], peer: str = "") -> list[Any]:
        return [event for event in self.all if isinstance(event, kind) and event.peer.startswith(peer)]


def test_a_reward_that_fails_for_some_groups_costs_those_groups_and_is_told() -> None:
    told = Told(lambda role: Flawed(never if role is Role.LEARNER else tenth), minutes=1.2)
    faults, mended = told.of(events.Faulted, "sampler"), told.of(events.Recovered, "sampler")
    assert faults and {fault.part for fault in faults} == {"rewards"} and "no such color" in faults[0].detail
    assert abs(len(faults) - len(mended)) <= 3
    assert not [event for event in told.of(events.Sampled) if event.task % 10 == 0]
    verdicts = [event.verdict for event in told.of(events.Judged)]
    assert {*verdicts} <= {Verdict.ADMIT, Verdict.OVER_QUOTA, Verdict.DUPLICATE}
    # two samplers may draw one slot: docs/trust.md, Draws
    assert verdicts.count(Verdict.DUPLICATE) <= len(verdicts) / 100
    rewards = [event.metrics["reward"] for event in told.of(events.Trained)]
    assert len(rewards) > 15 and sum(rewards[-5:]) / 5 > 2 * sum(rewards[:4]) / 4


def test_a_learner_that_scores_no_group_is_sent_one_now_and_then_until_it_scores_again() -> None:
    samplers, calls = 3, count()
    broken = Told(lambda role: Flawed(always), minutes=2.0)
    lost = [event for event in broken.of(events.Judged) if event.verdict is Verdict.UNSCORED]
    assert samplers * UNSCORED <= len(lost) < samplers * (UNSCORED + 30), "one sampler draws one a second"
    notes = [event for event in broken.of(events.Noted, "sampler") if "in a row" in event.text]
    assert len(notes) == len({note.peer for note in notes}) == samplers
    said = "learner-0 scored none of 64 groups in a row (its rewards could not be recomputed here: mine.py:f"
    assert said in notes[0].text and "no such color" in notes[0].text

    def at_first(task: Task) -> bool:
        return next(calls) < samplers * UNSCORED + 12

    mended = Told(lambda role: Flawed(at_first if role is Role.LEARNER else never), minutes=3.0)
    verdicts = [event.verdict for event in mended.of(events.Judged)]
    assert any("in a row" in event.text for event in mended.of(events.Noted, "sampler"))
    assert verdicts.count(Verdict.UNSCORED) < samplers * UNSCORED + 20 < verdicts.count(Verdict.ADMIT)


def test_a_sampler_whose_rewards_nobody_else_computes_waits_and_the_cause_is_told_once_a_minute() -> None:
    samplers, chance = 3, count()

    class Judge(Flawed):
        def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
            return [float(next(chance)) for _ in completions]

    told = Told(lambda role: Judge(never, slow=True), minutes=3.0)
    lost = [event for event in told.of(events.Judged) if event.verdict is Verdict.UNTRUSTED]
    assert samplers * UNSCORED <= len(lost) < samplers * (UNSCORED + 30), "one sampler draws one a second"
    notes = [event.text for event in told.of(events.Noted, "sampler") if "in a row" in event.text]
    assert len(notes) == samplers
    assert notes[0].startswith("learner-0 believed none of 64 groups in a row (claims rewards [")
    assert notes[0].endswith("begin a run with one that is the same number everywhere")
    named = [event for event in told.of(events.Rejected, "learner") if event.kind == events.REWARDS]
    assert {event.sender for event in named} == {event.sampler for event in lost}
    assert len(named) <= samplers * 4 and "it claims a reward of" in named[0].reason


@pytest.mark.parametrize("slow", [False, True])
def test_a_swarm_goes_on_without_the_tasks_and_rewards_at_which_their_authors_code_raises(slow: bool) -> None:
    class Raises(Flawed):
        def task(self, index: int) -> Task:
            if index % 8 == 1:
                raise StopIteration
            return super().task(index)

        def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
            return [1 / (task.index % 10) - 1 / (task.index % 10)] and super().rewards(task, completions)

        def held_out(self, n: int) -> list[Task]:
            raise KeyError("held out")

    told = Told(lambda role: cast(Flawed, Authored("mine", Raises(never, slow, slow))))
    faults = [fault.detail for fault in told.of(events.Faulted, "sampler")]
    assert any("`tasks` of the task source 'mine' raises StopIteration (" in detail for detail in faults)
    sampled = {event.task for event in told.of(events.Sampled)}
    assert len(sampled) > 90 and not any(task % 8 == 1 or task % 10 == 0 for task in sampled)
    notes = [event.text for event in told.of(events.Noted, "evaluator")]
    assert notes and "has no accuracy: `held_out` of the task source 'mine' raises KeyError" in notes[0]
    assert len(told.of(events.Trained)) > 10


@pytest.mark.parametrize("slow", [False, True])
def test_a_group_that_a_learner_cannot_score_is_unscored_and_the_rest_is_trained_on(slow: bool) -> None:
    told = Told(lambda role: Flawed(tenth if role is Role.LEARNER else never, slow))
    judged = {event.group: event for event in told.of(events.Judged)}
    lost = {group for group, event in judged.items() if event.verdict is Verdict.UNSCORED}
    unscored = {event.task for event in told.of(events.Sampled) if event.group in lost}
    assert unscored and all(task % 10 == 0 for task in unscored)
    assert all("no such color" in event.detail for event in judged.values() if event.verdict == "unscored")
    assert {event.verdict for event in judged.values()} <= {
        Verdict.ADMIT,
        Verdict.DUPLICATE,
        Verdict.OVER_QUOTA,
        Verdict.UNSCORED,
    }
    counted = sum(event.verdicts.get("unscored", 0) for event in told.of(events.Counted))
    assert 0 < counted <= len(unscored) and len(told.of(events.Trained)) > 12
    inbox = told.learners[0].inbox
    held = {item.group.id for item in told.learners[0]._batch} | {
        item.group.id for item in inbox.batcher._waiting
    }
    assert set(inbox._tasks) == held and inbox.batcher.scoring.total() <= 1


@cache
def quick() -> Told:
    return Told(lambda role: Flawed(never), sample=1.0)


def test_slow_rewards_do_not_keep_the_engine_waiting() -> None:
    slow = Told(lambda role: Flawed(never, slow=role is Role.SAMPLER), sample=1.0, score=0.9)
    sampled = [len(told.of(events.Sampled)) for told in (quick(), slow)]
    assert sampled[1] > 0.9 * sampled[0]
    assert min(event.seconds for event in slow.of(events.Sampled)) >= 1.9, (
        "a group is finished when it is scored"
    )


def test_the_engine_has_its_next_call_before_the_groups_of_the_last_one_are_scored() -> None:
    batch = BatchSize(groups=32, close_after=30.0)
    told = Told(
        lambda role: Flawed(never, slow_tasks=role is Role.SAMPLER), batch=batch, sample=1.0, draw=1.5
    )
    seconds = Counter(event.seconds for event in told.of(events.Sampled))
    # scored half a second after the call, when the next tasks are there; at once where no call follows
    assert {*seconds} <= {1.0, 1.5} and seconds[1.5] > seconds[1.0]


def test_tasks_are_made_while_the_engine_samples_others() -> None:
    slow = Told(lambda role: Flawed(never, slow_tasks=role is Role.SAMPLER), sample=1.0, draw=0.5)
    sampled = [len(told.of(events.Sampled)) for told in (quick(), slow)]
    assert sampled[1] > 0.9 * sampled[0]


def test_an_evaluator_leaves_out_what_it_cannot_score_and_says_so() -> None:
    told = Told(lambda role: Flawed(lambda task: role is Role.EVALUATOR and task.index in (-2, -5)))
    judged = told.of(events.Evaluated)
    assert len(judged) > 3 and {event.tasks for event in judged} == {14}
    assert judged[-1].accuracy > judged[0].accuracy, "of those that could be scored"
    notes = [event.text for event in told.of(events.Noted, "evaluator")]
    assert notes and all(
        "2 of 16 held-out answers could not be scored" in text and "no such color" in text for text in notes
    )


def test_an_evaluation_has_different_tasks_alone_and_says_once_how_many_where_they_are_too_few() -> None:
    told = Told(lambda role: Flawed(never), tasks=256)
    judged = told.of(events.Evaluated)
    assert len(judged) > 3 and {event.tasks for event in judged} == {16}, "toy has 16 words"
    notes = [event.text for event in told.of(events.Noted, "evaluator") if "different" in event.text]
    assert len(notes) == 1 and "the task has 16 different held-out exercises" in notes[0]
    assert not [n for n in Told(lambda role: Flawed(never)).of(events.Noted) if "different" in n.text]


def test_sampled_answers_are_judged_beside_the_greedy_ones_where_the_run_asks_for_them() -> None:
    greedy, sampled = (
        Told(lambda role: Flawed(never), right=0.5, samples=samples).of(events.Evaluated)
        for samples in (0, 8)
    )
    assert not any(event.sampled for event in greedy)
    assert [event.accuracy for event in sampled] == [event.accuracy for event in greedy]
    for event in sampled:
        assert [*event.sampled] == ["mean@8", "pass@2", "pass@4", "pass@8"]
        values = [one.value for one in event.sampled.values()]
        assert 0 < values[0] < 1 and values == sorted(values)
        assert all(one.low <= one.value <= one.high for one in event.sampled.values())
    first, last = sampled[0].sampled["mean@8"], sampled[-1].sampled["mean@8"]
    assert first.high < last.value, "it has learnt, and the intervals are narrow enough to show it"
    again = Told(lambda role: Flawed(never), right=0.5, samples=8).of(events.Evaluated)
    assert again == sampled


def test_evaluation_sets_are_judged_beside_the_held_out_tasks_and_change_nothing_of_them() -> None:
    sets = {
        "alike": EvaluationSet(tasks=8),
        "other": EvaluationSet(options={"alphabet": 4}),
        "few": EvaluationSet(options={"buckets": 4}),
    }
    plain, told = (Told(lambda role: Flawed(never), right=0.5, samples=4, sets=s) for s in (None, sets))
    judged = told.of(events.Evaluated)
    assert [replace(event, sets={}) for event in judged] == plain.of(events.Evaluated)
    for event in judged:
        assert {name: one.tasks for name, one in event.sets.items()} == {"alike": 8, "other": 16, "few": 4}
        assert all([*one.sampled] == ["mean@4", "pass@2", "pass@4"] for one in event.sets.values())
    last = judged[-1]
    assert last.accuracy > 0.8 and last.sets["alike"].accuracy > 0.7
    assert last.sets["other"].accuracy < 0.5, "its words are others"
    notes = [event.text for event in told.of(events.Noted, "evaluator")]
    assert notes == ["evaluation set few has 4 different tasks, and 16 are asked for"]


def test_an_evaluation_set_that_cannot_be_drawn_or_scored_costs_its_own_result_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = {"lost": EvaluationSet(options={"buckets": 9}), "unscored": EvaluationSet(options={"buckets": 5})}
    held_out, rewards = Toy.held_out, Toy.rewards

    def drawn(self: Toy, n: int) -> list[Task]:
        if self.buckets == 9:
            raise RewardError("its process is gone")
        return held_out(self, n)

    def scored(self: Toy, task: Task, completions: Sequence[str]) -> list[float]:
        if self.buckets == 5:
            raise RewardError("mine.py:f raised ValueError")
        return rewards(self, task, completions)

    monkeypatch.setattr(Toy, "held_out", drawn)
    monkeypatch.setattr(Toy, "rewards", scored)
    told = Told(lambda role: Flawed(never), minutes=0.3, right=0.5, sets=sets)
    judged = told.of(events.Evaluated)
    assert judged and all(event.tasks == 16 and not event.sets for event in judged)
    notes = [event.text for event in told.of(events.Noted, "evaluator")]
    assert "version 0 has no accuracy on evaluation set lost: its process is gone" in notes
    assert any(
        text.startswith("version 0 has no accuracy on evaluation set unscored: 5 of 5") for text in notes
    )


def test_samples_that_cannot_be_scored_or_have_no_room_cost_their_tasks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = ToyEngine.sample

    def roomless(
        self: ToyEngine, prompts: Sequence[str], size: int, seeds: Sequence[int]
    ) -> list[Completions]:
        if size == 2 and "17" in prompts:
            raise NoRoom("too long")
        return sample(self, prompts, size, seeds)

    monkeypatch.setattr(ToyEngine, "sample", roomless)
    told = Told(lambda role: Flawed(never), minutes=0.3, right=0.0, samples=2)
    assert {event.sampled["mean@2"].value for event in told.of(events.Evaluated)} == {1.0}
    told = Told(lambda role: Flawed(never), minutes=0.3, right=0.01, samples=2)
    assert all(event.sampled["pass@2"].value <= 15 / 16 for event in told.of(events.Evaluated))
    lost = Told(lambda role: Flawed(lambda task: task.index == -3), minutes=0.3, samples=2)
    notes = [event.text for event in lost.of(events.Noted, "evaluator")]
    assert sum("1 of 16 held-out answers" in text for text in notes) == 2 * len(lost.of(events.Evaluated))


@pytest.mark.parametrize(("right", "expected"), [(0.0, 1.0), (2.0, 0.0)])
def test_an_answer_counts_as_right_from_the_reward_that_the_run_says(right: float, expected: float) -> None:
    told = Told(lambda role: Flawed(never), minutes=0.4, right=right)
    assert {event.accuracy for event in told.of(events.Evaluated)} == {expected}


def test_an_evaluator_that_can_score_nothing_tells_no_accuracy() -> None:
    asked: list[Task] = []

    def fails(task: Task) -> bool:
        asked.append(task)
        return True

    told = Told(lambda role: Flawed(fails if role is Role.EVALUATOR else never), minutes=0.5)
    assert not told.of(events.Evaluated) and told.of(events.Trained)
    notes = [event.text for event in told.of(events.Noted, "evaluator")]
    assert notes and "has no accuracy: 16 of 16" in notes[0]
    assert len(asked) == GIVE_UP * len(notes), "a hanging reward would cost a timeout for each"


@pytest.mark.parametrize(("unscored", "ends"), [(0, True), (1, False), (15, False)])
def test_an_answer_that_cannot_be_scored_is_not_right_where_the_accuracy_ends_the_run(
    unscored: int, ends: bool
) -> None:
    """The others are all right, and there may be one alone."""
    told = Told(
        lambda role: Flawed(lambda task: -17 < task.index < unscored - 16), minutes=0.3, right=0.0, stop=0.9
    )
    judged = told.of(events.Evaluated)
    assert {(event.accuracy, event.tasks) for event in judged} == {(1.0, 16 - unscored)}
    left = [event for event in told.of(events.Left) if event.reason == "asked to stop"]
    assert bool(left) == ends


# --- one inbox ---------------------------------------------------------------------------------------------

ME, SAMPLER = PeerId("learner-0"), PeerId("sampler-0")
BATCH = 8
DRAWS = Draws(RUN, BATCH)


def group_of(number: int, source: Toy, weights: str = "") -> Group:
    """The sampler's draw of this number of the toy task, its tokens all the letter `a`."""
    drawn, now = DRAWS.of(Digest(weights), SAMPLER, number), 0.0
    task = source.task(drawn.task)
    tokens = Array(dtype="int32", shape=(4,), data=bytes(16))
    rewards = source.rewards(task, ["aa", "aa"])
    return Group(
        id=group_id(SAMPLER, 0, drawn.task, drawn.seed, tokens.data, tokens.data),
        sampler=SAMPLER,
        task=drawn.task,
        version=0,
        weights=Digest(weights),
        draw=number,
        seed=drawn.seed,
        lengths=(2, 2),
        tokens=tokens,
        logprobs=Array(dtype="float32", shape=(4,), data=bytes(16)),
        rewards=tuple(rewards),
        times=Times(released=now, fetched=now, used=now, finished=now, sent=now),
        noise=Noise.GUMBEL,
    )


class Desk:
    """A learner's inbox and all around it."""

    def __init__(self, host: Host, inbox: LearnerInbox, sampler: Frames) -> None:
        self.host, self.inbox, self.sampler = host, inbox, sampler
        self.told: list[events.Event] = []
        host.bus.add(self.told.append)

    def deliver(self, group: Group) -> asyncio.Task[Verdict]:
        """A delivery on its way; its result is the receipt's verdict."""
        return asyncio.create_task(self._deliver(self.sampler.seal(group)))

    async def _deliver(self, frame: bytes) -> Verdict:
        return wire.decode(await self.inbox.receive(SAMPLER, frame), Receipt).verdict


def at_a_desk(
    play: Callable[[Desk], Any], source: Flawed, price: float = 0.0, keeper: type[NoDisk] = NoDisk
) -> None:
    """Play with a learner's inbox in virtual time; scoring a group costs `price` seconds."""

    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.05), 1e6, Random(1))
        async with MemoryNetwork(Random(2), links) as network:
            config = Config(
                run=Run(
                    sampling=Sampling(group_size=2, max_tokens=4),
                    batch=BatchSize(groups=BATCH, buffer=2.0),
                    window=Window(versions=9, seconds=1e12),
                )
            )
            host = still_host(
                network,
                ME,
                Role.LEARNER,
                config,
                price=lambda kind: price if kind == "score" else 0.0,
            )
            host.releases.candidates.receive(
                Release(
                    version=0,
                    weights=Digest(""),
                    size=1,
                    parent=Digest(""),
                    publisher=ME,
                    learners=1,
                    groups=0,
                    released=0.0,
                )
            )
            tokenization: Any = SimpleNamespace(
                vocabulary=8, decode_batch=lambda rows: ["a" * len(row) for row in rows]
            )
            sampler = Frames(RUN, network.ports(SAMPLER, lambda kind: 0.0).keyring, None, None)
            inbox = LearnerInbox(host, source, tokenization, lambda: 0, lambda: 1, keeper=keeper)
            await play(Desk(host, inbox, sampler))

    run(main())


def test_groups_that_are_being_scored_take_room_and_hold_nobody_up() -> None:
    async def play(desk: Desk) -> None:
        inbox = desk.inbox
        room, credit = inbox.batcher.room(SAMPLER, 1, desk.host.now()).groups, inbox.credit()
        deliveries = [desk.deliver(group_of(i, source)) for i in range(room + 5)]
        await asyncio.sleep(0.5)  # not one is scored: a group costs a second
        assert [delivery.result() for delivery in deliveries if delivery.done()] == [Verdict.OVER_QUOTA] * 5
        assert (
            inbox.batcher.scoring.total() == room
            and len(inbox.batcher) == 0
            and inbox.credit() == max(0, credit - room)
        )
        assert await desk.deliver(group_of(0, source)) is Verdict.DUPLICATE, "it is being scored: not twice"
        await asyncio.sleep(room + 1.0)
        assert [delivery.result() for delivery in deliveries[:room]] == [Verdict.ADMIT] * room
        assert len(inbox.batcher) == room and inbox.batcher.scoring.total() == 0

    source = Flawed(never, slow=True)
    at_a_desk(play, source, price=1.0)


def test_a_delivery_that_is_repeated_ends_when_the_group_is_on_the_disk_and_not_before() -> None:
    source, kept = Flawed(never, slow=True), list[str]()

    class Slow(NoDisk):
        async def keep(self, group: Group, rewards: tuple[float, ...]) -> bool:
            await asyncio.sleep(1.0)
            kept.append(group.id)
            return True

    async def play(desk: Desk) -> None:
        group = group_of(0, source)
        first = desk.deliver(group)  # say its line breaks, and the sampler hears no receipt
        for wait in (0.5, 1.0):  # it is scored, it is written
            await asyncio.sleep(wait)
            assert not kept and not first.done()
            again = desk.deliver(group)
            await asyncio.sleep(0.1)
            assert not again.done()
        assert await again is Verdict.DUPLICATE and kept == [group.id]
        assert await first is Verdict.ADMIT and not desk.inbox._arriving

    at_a_desk(play, source, price=1.0, keeper=Slow)


def test_a_delivery_that_is_repeated_while_its_release_is_asked_for_does_not_end_before_that_either() -> None:
    source, kept, weights = Flawed(never, slow=True), list[str](), Digest("b" * 64)

    class Slow(NoDisk):
        async def keep(self, group: Group, rewards: tuple[float, ...]) -> bool:
            await asyncio.sleep(1.0)
            kept.append(group.id)
            return True

    async def play(desk: Desk) -> None:
        async def ask_release(*_: object) -> None:
            await asyncio.sleep(0.5)
            (known,) = desk.host.releases.known(0, Digest(""))
            desk.host.releases.candidates.receive(replace(known, weights=weights), b"")

        group = group_of(0, source, weights)
        cast(Any, desk.host.queries).ask_release = ask_release
        first = desk.deliver(group)
        await asyncio.sleep(0.1)  # its line breaks, and it comes again
        assert await desk.deliver(group) is Verdict.DUPLICATE and kept == [group.id]
        assert await first is Verdict.ADMIT

    at_a_desk(play, source, price=1.0, keeper=Slow)


def test_a_group_that_its_sampler_could_not_score_has_the_learners_rewards_or_none() -> None:
    async def play(desk: Desk) -> None:
        for number in range(9):
            true = group_of(number, honest)
            verdict = await desk.deliver(replace(true, rewards=(0.0, 0.0), scored=False))
            assert verdict is (Verdict.UNSCORED if tenth(honest.task(true.task)) else Verdict.ADMIT)
            if verdict is Verdict.ADMIT:
                assert desk.inbox.task_and_rewards(true).rewards == true.rewards

    honest = Flawed(never)
    at_a_desk(play, Flawed(tenth))


def test_room_comes_back_when_scoring_fails() -> None:
    honest = Flawed(never)

    async def play(desk: Desk) -> None:
        inbox = desk.inbox
        room = inbox.batcher.room(SAMPLER, 1, desk.host.now()).groups
        for start in (0, room):
            verdicts = await asyncio.gather(*(desk.deliver(group_of(start + i, honest)) for i in range(room)))
            assert set(verdicts) == {Verdict.UNSCORED}
        assert inbox.batcher.scoring.total() == 0 == len(inbox.batcher) and not inbox._tasks

    at_a_desk(play, Flawed(always, slow=True), price=0.1)


def test_a_large_group_is_opened_and_decoded_off_the_loop_and_a_small_one_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(desk: Desk) -> None:
        work, apart = desk.host.ports.work, list[str]()
        run_as_before = work.run

        async def noted(kind: Kind, function: Callable[..., Any], *args: Any) -> Any:
            apart.append(f"{kind} {function.__name__}")
            return await run_as_before(kind, function, *args)

        monkeypatch.setattr(work, "run", noted)
        for number, more in enumerate(([], ["open texts"], ["open read", "open texts"])):
            assert await desk.deliver(group_of(number, source)) is Verdict.ADMIT
            assert apart == more
            apart.clear()
            monkeypatch.setattr(group_opening, ("APART_TOKENS", "APART", "APART")[number], 1)

    source = Flawed(never)
    at_a_desk(play, source)


def test_a_large_frame_that_is_not_one_is_refused() -> None:
    async def play(desk: Desk) -> None:
        for stranger in range(9):
            await desk.inbox.receive(PeerId(f"stranger-{stranger}"), b"junk")
        assert set(desk.inbox.tally.samplers) == {OTHERS}, "nobody's key was seen"
        junk = bytes(group_opening.APART + 1)
        receipt = wire.decode(await desk.inbox.receive(SAMPLER, junk), Receipt)
        assert receipt.verdict is Verdict.MALFORMED

    at_a_desk(play, Flawed(never))


def test_a_failure_that_goes_on_is_told_once_a_minute() -> None:
    async def play(desk: Desk) -> None:
        host, told = desk.host, desk.told
        scorer = RewardCalls(host, source)
        for _ in range(30):
            with pytest.raises(RewardError):
                await scorer.rewards(source.task(1), ["a"])
            await host.ports.clock.sleep(REPEAT_AFTER / 10)
        assert len([event for event in told if isinstance(event, events.Faulted)]) == 3
        source.flaw(never)
        await scorer.rewards(source.task(1), ["a"])
        await scorer.rewards(source.task(1), ["a"])
        (back,) = (event for event in told if isinstance(event, events.Recovered))
        assert back.part == "rewards" and back.seconds == pytest.approx(3 * REPEAT_AFTER)

    class Mending(Flawed):
        def flaw(self, fails: Callable[[Task], bool]) -> None:
            self._fails = fails

    source = Mending(always)
    at_a_desk(play, source)


def test_rewards_are_computed_while_the_model_computes() -> None:
    async def main() -> None:
        work, learned = ThreadWork(), threading.Event()
        learning = asyncio.create_task(work.run("learn", learned.wait, 20.0))
        await asyncio.sleep(0)
        names = [await work.run("score", threading.current_thread) for _ in range(2)]
        assert names[0] is names[1] and not learning.done()
        learned.set()
        assert await learning
        work.close()

    asyncio.run(main())
