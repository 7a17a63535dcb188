"""Gradients that other learners compute again, in simulated swarms."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
import torch

from lab.studies.liars import adversaries
from lab.studies.liars.adversaries import Attacked, suffer
from peers.intake.reward_calls import RewardCalls
from peers.learner.agreement import rechecks
from peers.learner.agreement.manifests import BatchManifest
from peers.learner.agreement.rechecks import BatchRechecks, compared
from peers.runtime.host import Host
from peers.sampler.sampler import Sampler
from swarm.core.gradient_checks.recomputed import UNSURE, Rechecks
from swarm.core.intake.admission import group_id
from swarm.core.intake.curriculum import Draws
from swarm.events import Event, Faulted, LeftOut, Moved, Noted, Trained
from swarm.learn.learners.base_learner import Gradient
from swarm.limits import MAIL_LIMIT
from swarm.net.averaging.sketch import Sketches
from swarm.net.memory.network import MemoryWork
from swarm.protocol import Kind, Role
from swarm.sim.world import World
from swarm.storage.blocks import digest_of
from swarm.tasks.base import RewardError
from swarm.tasks.toy import Toy
from swarm.types import Digest, PeerId, Task


@cache
def row(attack: str) -> dict[str, object]:
    return dict(suffer(Attacked(attack=attack, defended=True, seconds=8.0)))


@pytest.mark.parametrize("attack", ["times -1", "random, of the same norm"])
def test_a_false_gradient_is_named_in_the_first_rounds_whatever_the_noise(attack: str) -> None:
    found = row(attack)
    assert float(str(found["proof"])) <= 3 and int(str(found["struck"])) >= 2 and found["falsely"] == 0


def two(attack: str, seconds: float = 8.0, each: tuple[str, ...] = ()) -> list[Event]:
    told: list[Event] = []
    one = Attacked(attack=attack, defended=True, seconds=seconds, learners=2)
    peers = {Role.SEED: 1, Role.LEARNER: 2, Role.SAMPLER: 6}
    scenario = msgspec.structs.replace(adversaries.scenario(one), peers=peers, each=each)
    heard = adversaries.Overheard(1)
    World(scenario, lambda peer: adversaries.spawn(peer, one, heard), sinks=[told.append]).run()
    return told


def test_of_two_learners_the_one_with_the_proof_goes_on_alone() -> None:
    told = two("times -1", seconds=16.0)
    proofs = [event for event in told if isinstance(event, LeftOut)]
    assert {(event.peer, event.learner) for event in proofs} == {("learner-0", "learner-1")}
    after = [event for event in told if event.peer == "learner-0" and event.at > proofs[0].at]
    assert [event for event in after if isinstance(event, Moved) and event.cause == "alone"]
    assert len([event for event in after if isinstance(event, Trained)]) >= 2


class Evasion:
    """learner-1's manifests name a group of a sampler of its own that nobody can score, signed as it should
    be; `drawn`: its exercise and seed are those of its sampler's draw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, drawn: bool) -> None:
        self._drawn, self._unscorable, self._hosts = drawn, set[int](), dict[str, Host]()
        self._made, self._shown, self._true = Sampler.__init__, BatchRechecks.show, Toy.rewards

        def make(its: Sampler, host: Host, *rest: Any) -> None:
            self._make(its, host, *rest)

        def show(its: BatchRechecks, weights: Digest, gradient: Gradient) -> None:
            self._show(its, weights, gradient)

        def rewards(its: Toy, task: Task, texts: Sequence[str]) -> list[float]:
            return self._rewards(its, task, texts)

        monkeypatch.setattr(Sampler, "__init__", make)
        monkeypatch.setattr(BatchRechecks, "show", show)
        monkeypatch.setattr(Toy, "rewards", rewards)

    def _make(self, its: Sampler, host: Host, *rest: Any) -> None:
        self._hosts[host.who.name] = host
        self._made(its, host, *rest)

    def _rewards(self, its: Toy, task: Task, texts: Sequence[str]) -> list[float]:
        if task.index in self._unscorable:
            raise RewardError("the worker hung on this text")
        return self._true(its, task, texts)

    def _show(self, its: BatchRechecks, weights: Digest, gradient: Gradient) -> None:
        self._shown(its, weights, gradient)
        if its._host.ports.me == "learner-1":
            frame, (sealed, held) = self._frame(its), its._shown[its._learner.version, weights]
            said = its._host.frames.read(sealed, MAIL_LIMIT, BatchManifest)[1]
            said = msgspec.structs.replace(said, groups=(*said.groups, digest_of(frame)))
            its._shown[its._learner.version, weights] = its._host.seal(said), held | {digest_of(frame): frame}

    def _frame(self, its: BatchRechecks) -> bytes:
        one, host = its._batch[0].group, self._hosts["sampler-0"]
        due = Draws(host.who.run, host.config.run.batch.groups).of(one.weights, host.ports.me, 900)
        task = due.task if self._drawn else due.task + 1
        self._unscorable.add(task)
        name = group_id(host.ports.me, one.version, task, due.seed, one.tokens.data, one.logprobs.data)
        of = {"sampler": host.ports.me, "task": task, "seed": due.seed, "draw": 900, "id": name}
        return host.seal(msgspec.structs.replace(one, **of))


@pytest.mark.parametrize(
    ("drawn", "why"), [(True, "the worker hung on this text"), (False, "its task is not that of draw 900")]
)
def test_a_group_that_nobody_can_score_is_no_way_out(
    monkeypatch: pytest.MonkeyPatch, drawn: bool, why: str
) -> None:
    spent = Rechecks.spent  # else the third look is a minute later
    monkeypatch.setattr(
        Rechecks, "spent", lambda its, peer, _, *more, **named: spent(its, peer, 0.0, *more, **named)
    )
    Evasion(monkeypatch, drawn)
    told = two("times -1", seconds=14.0)
    proofs = [event for event in told if isinstance(event, LeftOut)]
    assert {(event.peer, event.learner) for event in proofs} == {("learner-0", "learner-1")}
    assert all(why in event.why for event in proofs)
    assert not [event for event in told if isinstance(event, Faulted)]


def test_honest_learners_of_a_run_with_exercises_that_nobody_can_score_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true, found = Toy.rewards, Counter[str]()
    again = Rechecks.found

    def rewards(toy: Toy, task: Task, texts: Sequence[str]) -> list[float]:
        if task.index % 5 == 0:
            raise RewardError("the verifier cannot score this exercise")
        return true(toy, task, texts)

    def agrees(checks: Rechecks, peer: PeerId, *rest: Any) -> str | None:
        found[peer] += 1
        return again(checks, peer, *rest)

    monkeypatch.setattr(Toy, "rewards", rewards)
    monkeypatch.setattr(Rechecks, "found", agrees)
    monkeypatch.setattr(Rechecks, "showed_nothing", lambda *_: pytest.fail("a batch was not shown"))
    told = two("honest")
    assert not [event for event in told if isinstance(event, LeftOut)]
    assert {*found} == {"learner-0", "learner-1"}


def test_a_learner_whose_own_rewards_fail_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, true, scores = Counter[str](), RewardCalls.task_and_rewards, BatchRechecks._scores
    looked = list[bool]()

    async def fails(its: RewardCalls, *_: Any) -> Any:
        asked[its.host.ports.me] += 1
        raise RewardError("the worker is gone")

    async def mine(its: BatchRechecks) -> bool:
        with monkeypatch.context() as gone:
            gone.setattr(RewardCalls, "task_and_rewards", fails)
            looked.append(await scores(its))
        return looked[-1]

    monkeypatch.setattr(RewardCalls, "of_others", fails)
    monkeypatch.setattr(BatchRechecks, "_scores", mine)
    monkeypatch.setattr(Rechecks, "showed_nothing", lambda *_: pytest.fail("somebody is blamed"))
    two("honest")
    assert {*asked} == {"learner-0", "learner-1"} and looked and not any(looked)
    assert RewardCalls.task_and_rewards is true


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_learner_whose_memory_ends_while_it_checks_blames_nobody_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried, spent = Counter[str](), Counter[str]()
    again, pays = BatchRechecks._masked, Rechecks.spent

    def ends(its: BatchRechecks, gradient: Gradient) -> tuple[int, ...]:
        if sys._getframe(1).f_code.co_name == "_agreement":
            tried[its._host.ports.me] += 1
            raise error
        return again(its, gradient)

    def pay(checks: Rechecks, peer: PeerId, *rest: Any, **named: Any) -> None:
        spent[peer] += 1
        pays(checks, peer, *rest, **named)

    monkeypatch.setattr(BatchRechecks, "_masked", ends)
    monkeypatch.setattr(Rechecks, "spent", pay)
    monkeypatch.setattr(Rechecks, "showed_nothing", lambda *_: pytest.fail("somebody is blamed"))
    told = two("honest")
    assert {*tried} == {*spent} == {"learner-0", "learner-1"} and tried.total() == spent.total()
    assert not [event for event in told if isinstance(event, LeftOut)]
    notes = [
        event.peer for event in told if isinstance(event, Noted) and "could not be checked" in event.text
    ]
    assert sorted(notes) == ["learner-0", "learner-1"]
    assert len([event for event in told if isinstance(event, Trained)]) >= 4


def test_honest_learners_agree_and_spend_little_on_it() -> None:
    found = row("honest")
    assert found["struck"] == found["falsely"] == 0 and float(str(found["versions"])) >= 4


def test_who_leaves_other_groups_out_than_is_found_here_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, masked = list[tuple[str, str]](), BatchRechecks._masked
    shows = Rechecks.showed_nothing

    def shown_nothing(checks: Rechecks, peer: PeerId, why: str, now: float) -> str | None:
        said.append((peer, why))
        return shows(checks, peer, why, now)

    def masks_more(its: BatchRechecks, gradient: Gradient) -> tuple[int, ...]:
        return (0,) if its._host.ports.me == "learner-1" else masked(its, gradient)

    monkeypatch.setattr(Rechecks, "showed_nothing", shown_nothing)
    monkeypatch.setattr(BatchRechecks, "_masked", masks_more)
    suffer(Attacked(attack="honest", defended=True, seconds=8.0))
    assert (
        "learner-1",
        "it leaves other groups of its batch out than their log-probabilities say here",
    ) in said
    assert {peer for peer, _ in said} == {"learner-0", "learner-1", "learner-2", "learner-3"}, (
        "it finds the same"
    )


def test_a_gradient_that_is_not_finite_here_is_no_proof_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    said = set[str]()
    monkeypatch.setattr(rechecks, "compared", lambda *_: (math.nan, math.nan))
    monkeypatch.setattr(Rechecks, "found", lambda *_: pytest.fail("nothing was compared"))
    monkeypatch.setattr(Rechecks, "showed_nothing", lambda its, peer, why, now: said.add(why))
    two("honest")
    assert said == {"the gradient of its batch is not finite here"}


@pytest.mark.parametrize(
    ("cosine", "alike", "agrees"), [(0.98, True, False), (0.6, False, True), (0.4, False, False)]
)
def test_gradients_in_bfloat16_may_differ_more(cosine: float, alike: bool, agrees: bool) -> None:
    checks = Rechecks(random.Random(1), 0.05)
    said = [checks.found(PeerId("a"), cosine, 1.0, alike, 0.0) for _ in range(1 if alike else UNSURE)]
    assert (said[-1] is None) == agrees


def test_a_gradient_in_bfloat16_that_differs_is_checked_in_the_next_rounds_before_it_is_a_strike() -> None:
    checks, members = Rechecks(random.Random(1), 0.05), [PeerId(name) for name in "abc"]
    for peer in members:
        assert checks.found(peer, 1.0, 1.0, False, 0.0) is None
        checks.spent(peer, 2.0, 4, 2.0)
    for k in range(UNSURE):
        assert (checks.found(members[1], 0.4, 1.0, False, 3.0) is None) == (k < UNSURE - 1)
        checks.spent(members[1], 2.0, 4, 3.0)
        assert checks.due(members, 4.0) == members[1]
    assert checks.found(members[1], 0.9, 1.0, False, 3.0) is None
    checks.spent(members[1], 2.0, 4, 3.0)
    assert checks.due(members, 4.0) is None


@pytest.mark.parametrize(("times", "agrees"), [(0.49, False), (0.51, True), (1.99, True), (2.01, False)])
@pytest.mark.parametrize("alike", [True, False])
def test_a_gradient_is_neither_far_longer_nor_far_shorter_than_its_recomputation(
    times: float, agrees: bool, alike: bool
) -> None:
    checks, times = Rechecks(random.Random(1), 0.05), times if alike else times**2
    said = [checks.found(PeerId("a"), 1.0, times, alike, 0.0) for _ in range(1 if alike else UNSURE)]
    assert (said[-1] is None) == agrees


def test_who_shows_no_batch_three_times_has_a_strike() -> None:
    checks, one = Rechecks(random.Random(1), 0.05), PeerId("a")
    said = [checks.showed_nothing(one, "it is silent", float(k)) for k in range(UNSURE)]
    assert said[:-1] == [None] * (UNSURE - 1) and said[-1] is not None
    assert one in checks.against(10.0) and one not in checks.against(1e6)


def test_a_member_that_shows_no_batch_whenever_it_lied_has_a_strike() -> None:
    checks, one, struck = Rechecks(random.Random(1), 0.05), PeerId("a"), 0
    for k in range(12):  # two lies, and a true gradient in between
        if k % 3 < 2:
            struck += checks.showed_nothing(one, "it is silent", float(k)) is not None
        else:
            assert checks.found(one, 1.0, 1.0, True, float(k)) is None
    assert struck == 5
    unlucky = PeerId("b")
    for k in range(100):
        if k % 10:
            assert checks.found(unlucky, 1.0, 1.0, True, float(k)) is None
        else:
            assert checks.showed_nothing(unlucky, "a message was lost", float(k)) is None


def test_new_members_are_due_at_once_and_others_after_the_share_of_a_round_of_four() -> None:
    checks, members = Rechecks(random.Random(1), 0.05), [PeerId(name) for name in "abc"]
    first = set()
    for _ in members:
        peer = checks.due(members, 0.0)
        assert peer is not None
        first.add(peer)
        checks.spent(peer, 2.0, 4, 2.0)
    assert first == {*members}
    assert checks.due(members, 159.0) is None and checks.due(members, 160.1) in members
    assert Rechecks(random.Random(1), 0.0).due(members, 0.0) is None


def test_a_member_that_another_names_is_due_at_once_and_once_for_each_that_names_it() -> None:
    checks, members = Rechecks(random.Random(1), 0.05), [PeerId(name) for name in "abc"]
    for _ in members:
        peer = checks.due(members, 0.0)
        assert peer is not None
        checks.spent(peer, 2.0, 4, 2.0)
    a, b, c = members
    for by in (a, b):
        checks.heard({c: [by]})
        checks.heard({c: [by]})
        assert checks.due(members, 3.0) == c and checks.due([a, b], 3.0) is None
        checks.spent(c, 2.0, 4, 3.0)
        checks.heard({c: [by]})
        assert checks.due(members, 4.0) is None
    idle = Rechecks(random.Random(1), 0.0)
    idle.heard({c: [a]})
    assert idle.due(members, 3.0) is None, "it computes nothing again"


def test_sketches_of_parts_tell_the_cosine_of_vectors() -> None:
    torch.manual_seed(1)
    vector = torch.randn(40_001)
    its = Sketches(7, [(3, 20_000), (20_003, 17)], {})
    same = compared(its.of(vector).tolist(), its.of(vector * 2).tolist())
    assert math.isclose(same[0], 1.0, abs_tol=1e-9) and math.isclose(same[1], 0.5)
    near, other = vector + 0.2 * torch.randn(40_001), torch.randn(40_001)
    exact = float(torch.cosine_similarity(vector[3:20_020], near[3:20_020], dim=0))
    assert abs(compared(its.of(vector).tolist(), its.of(near).tolist())[0] - exact) < 0.01
    assert abs(compared(its.of(vector).tolist(), its.of(other).tolist())[0]) < 0.15
    assert compared([0.0], [0.0]) == (1.0, 1.0) and compared([0.0], [1.0])[0] == 0.0
    tiny = its.of(vector.double() * 1e-290).tolist()  # squares of such values are 0
    assert compared(tiny, tiny) == pytest.approx((1.0, 1.0))


def test_a_scenario_that_prices_each_group_prices_the_groups_of_a_recheck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priced: list[int] = []
    run = MemoryWork.run

    async def watched(self: MemoryWork, kind: Kind, function: Any, *args: Any) -> Any:
        if kind is Kind.LEARN and "_agreement" in function.__qualname__:
            priced.append(len(args[0]))
        return await run(self, kind, function, *args)

    monkeypatch.setattr(MemoryWork, "run", watched)
    told = two("honest", seconds=14.0, each=("learn",))
    assert [event for event in told if isinstance(event, Trained)]
    assert max(priced) > 1
