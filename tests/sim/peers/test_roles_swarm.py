"""The roles that ship, on the ports of memory, in virtual time: what a swarm does on a good day and on bad
ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from role_swarms import EPOCH, Told, scenario, seconds, without_rechecks
from rows import nightly

from peers.commands import sim
from peers.learner.learner import LearnerPeer
from peers.sampler.sampler import Sampler
from swarm.core.intake.admission import Admission, group_id
from swarm.events import (
    Adopted,
    CaughtUp,
    Counted,
    Dropped,
    Faulted,
    Judged,
    Noted,
    Recovered,
    Rejected,
    Released,
    Sampled,
    Snapped,
    Trained,
)
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.net.memory.network import MemoryAverager
from swarm.net.ports import Average
from swarm.settings.config import (
    BatchSize,
    Delay,
    DelayLaw,
    Optimizer,
    Pace,
    Releasing,
    Window,
)
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import World
from swarm.types import Array, Group, PeerId, Verdict


@cache
def good_day() -> Told:
    return Told(scenario(2.0, optimizer=Optimizer(lr=0.2)))


def trained_ids(told: Told, learner: str) -> list[str]:
    return [event.group for event in told.of(Judged, learner) if event.verdict is Verdict.ADMIT]


def test_a_simulated_swarm_learns() -> None:
    rewards = [event.metrics["reward"] for event in good_day().of(Trained)]
    assert sum(rewards[-8:]) / 8 > 0.65 > 0.3 > sum(rewards[:4]) / 4


def test_nothing_is_lost_on_a_good_day() -> None:
    told = good_day()
    # A sampler may hear of a release before a learner does: its group is sent back once, and admitted at the
    # next try. Two samplers may draw one slot, which makes one group.
    twice = {e.group for e in told.of(Judged) if e.detail == "there is a group of this task and seed"}
    assert set(told.verdicts()) <= {"admit", "over-quota", "duplicate"}
    assert told.verdicts().get("over-quota", 0) < 0.01 * told.verdicts()["admit"]
    assert told.verdicts().get("duplicate", 0) == len(twice) <= 0.01 * told.verdicts()["admit"]
    assert {e.group for e in told.of(Judged)} - twice == {
        e.group for e in told.of(Judged) if e.verdict is Verdict.ADMIT
    }
    assert not told.of(Rejected)
    judged = {event.group for event in told.of(Judged)}
    assert len({event.group for event in told.of(Sampled, until=110)} - judged) == 0


def test_the_same_seed_gives_the_same_journal_and_another_one_another() -> None:
    runs = [World(scenario(0.3, seed=seed), sim.spawn).run().sha256 for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


def test_two_learners_have_one_policy_after_every_version() -> None:
    told = good_day()
    released: dict[int, set[str]] = {}
    for event in told.of(Released, "learner"):
        released.setdefault(event.release.version, set()).add(event.release.weights)
    together = [event.version for event in told.of(Trained) if event.members == 2]
    assert len(together) > 30
    assert all(len(digests) == 1 for version, digests in released.items() if version in together)
    # A learner that differs from the release says so when it snaps to it.
    assert len(told.of(Snapped)) <= 0.05 * len(together)


def test_who_gets_a_rounds_average_after_its_release_steps_by_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is in the release: a batch that it gave back would be trained twice, and its moments would
    lack a step."""
    real, averaged = MemoryAverager.average, list[tuple[PeerId, int]]()

    async def late(port: MemoryAverager, version: int, *rest: Any) -> Average | None:
        outcome = await real(port, version, *rest)
        if outcome is not None:
            averaged.append((port._me, version + 1))
            await asyncio.sleep(0.5 if port._me == "learner-2" else 0.0)
        return outcome

    monkeypatch.setattr(MemoryAverager, "average", late)
    without_rechecks(monkeypatch)
    told = Told(scenario(0.7, (3, 6)))
    steps = {(event.peer, event.version): event.at for event in told.of(Trained) if event.members == 3}
    released = {event.release.version: event.at for event in told.of(Released, "learner-0")}
    late_steps = [
        version for (peer, version), at in steps.items() if peer == "learner-2" and at > released[version]
    ]
    assert len(late_steps) > 12 and averaged[: len(steps)] == [*steps] and len(averaged) <= len(steps) + 1
    assert {event.version for event in told.of(CaughtUp)} == {0} and not told.of(Snapped)


def test_a_learner_that_crashes_costs_the_others_a_round() -> None:
    told = Told(scenario(1.05, (3, 3), Fault(at=20.3, fault="crash", peer="learner-1")))
    steps = sorted(event.at for event in told.of(Trained, "learner-0", since=10))
    gaps = [after - before for before, after in pairwise(steps)]
    # Its share waits for it until it counts as lost, at most; the match window and one batch on top.
    assert max(gaps) < Pace().patience + 6.0
    assert len([at for at in steps if at - EPOCH > 35]) > 10


def test_a_learner_that_comes_back_catches_up_and_takes_part() -> None:
    told = Told(scenario(0.85, (2, 3), Fault(at=12, fault="bounce", peer="learner-1", down=15)))
    assert told.of(CaughtUp, "learner-1", since=27, until=37)
    assert [event for event in told.of(Trained, "learner-1", since=32) if event.members == 2]
    versions = {event.peer: event.version for event in told.of((Trained, CaughtUp), "learner")}  # type: ignore[arg-type]
    assert abs(versions["learner-0"] - versions["learner-1"]) <= 1


@pytest.mark.parametrize(
    ("cut", "window", "twins"),
    [*nightly([(0.5, 1800, True)]), (3.0, 1800, True), (3.0, 20, False)],
)
def test_a_learner_that_joins_becomes_a_twin_or_learns_on_from_releases(
    cut: float, window: float, twins: bool
) -> None:
    """A version is made in less than half a second; a state that takes longer than the others wait, an eighth
    of the window, is late."""
    quick = scenario(
        30 / 60,
        (2, 6),
        Fault(at=10, fault="host", peer="learner-1"),
        batch=BatchSize(groups=8, close_after=1.0),
        window=Window(seconds=window),
    )
    prices = {
        "sample": DelayLaw(law="lognormal", seconds=0.3, shape=0.3),
        "learn": seconds(0.1),
        "cut": seconds(cut),
    }
    told = Told(msgspec.structs.replace(quick, prices=prices))
    together = [event.version for event in told.of(Trained, "learner-1", since=20) if event.members == 2]
    made = {event.version for event in told.of(Trained, since=20)}
    assert len(together) >= 0.9 * len(made) > 10
    assert bool(told.of(Snapped, since=20)) is not twins and not told.of(CaughtUp, since=20)


@pytest.mark.parametrize("method", ["gradient", "step", "snapshot", "load"])
def test_a_learner_whose_policy_is_lost_with_a_process_takes_the_newest_release_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    real, calls, bad = getattr(Learner, method), Counter[int](), (1, 9) if method == "load" else (2, 9)

    def breaks(self: Learner, *args: Any) -> Any:
        calls[id(self)] += 1
        if calls[id(self)] in bad:
            self.version = -1
            raise RankLost("rank 1 of 2 (cuda:1) was killed by SIGKILL", memory=False)
        return real(self, *args)

    monkeypatch.setattr(Learner, method, breaks)
    told = Told(scenario(0.9, (1, 3)))
    lost = [event for event in told.of(Faulted) if event.part == "learner"]
    again = [event for event in told.of(Noted) if "could not be taken: rank 1 of 2" in event.text]
    assert len(lost) + len(again) == sum(count >= call for count in calls.values() for call in bad) > 0
    assert all("newest release" in event.detail for event in lost)
    assert len(told.of(Recovered)) == len(lost)
    versions = [event.version for event in told.of(Trained)]
    assert len(versions) > 12 and max(versions) - len(set(versions)) <= 2


@pytest.mark.parametrize(("method", "policy"), [("gradient", True), ("step", True), ("step", False)])
def test_a_learner_whose_memory_ends_drops_the_batch_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, method: str, policy: bool
) -> None:
    """Where the policy is lost as well, half way through a step, the release is fetched again. Batches
    without a step between them are one fault, and each is an event that names its groups."""
    real, calls, bad = getattr(Learner, method), Counter[int](), (3, 4, 9)

    def ends(self: Learner, *args: Any) -> Any:
        calls[id(self)] += 1
        if calls[id(self)] in bad:
            self.version = self.version if policy else -1
            raise OutOfMemory("not even one group goes through the model")
        return real(self, *args)

    monkeypatch.setattr(Learner, method, ends)
    told = Told(scenario(0.9, (1, 3)))
    dropped = [event for event in told.of(Dropped) if event.why == "out of memory"]
    assert len(dropped) == 3 and all(event.groups for event in dropped)
    ended = [event for event in told.of(Faulted) if event.part == "memory"]
    assert [(event.at, event.detail) for event in ended] == [
        (
            first.at,
            f"a batch of {len(first.groups)} groups is dropped: not even one group goes through the model",
        )
        for first in (dropped[0], dropped[2])
    ]
    again = [event for event in told.of(Recovered) if event.part == "memory"]
    assert len(again) == 2 and dropped[1].at < again[0].at < dropped[2].at < again[1].at
    assert bool(told.of(CaughtUp, since=5)) == (not policy)
    versions = [event.version for event in told.of(Trained)]
    assert len(versions) > 12 and versions == sorted(set(versions))


def test_the_next_learner_publishes_when_the_publisher_died_after_its_step() -> None:
    def packing(minutes: float, *faults: Fault) -> Scenario:
        """Between a step and its release lies the packing: a learner that dies then has told nobody."""
        plain = scenario(minutes, (2, 3), *faults)
        return msgspec.structs.replace(
            plain, prices=plain.prices | {"pack": DelayLaw(law="constant", seconds=0.2)}
        )

    quiet = Told(packing(0.4))
    release = next(event.release for event in quiet.of(Released, "learner", since=18))
    step = next(event for event in quiet.of(Trained, release.publisher) if event.version == release.version)
    told = Told(packing(0.7, Fault(at=step.at - EPOCH + 0.1, fault="crash", peer=release.publisher)))
    published = {event.release.version: event for event in told.of(Released, "learner")}
    heir = published[release.version]
    assert heir.peer != release.publisher
    assert heir.at - step.at < Releasing().timeout + 1.0
    assert max(published) > release.version


def test_nothing_older_than_the_window_is_trained_on() -> None:
    slow = Delay(
        policy=DelayLaw(law="lognormal", seconds=4.0, shape=1.0, longest=60.0),
        upload=DelayLaw(law="lognormal", seconds=3.0, shape=1.0, longest=60.0),
    )
    told = Told(scenario(0.9, (2, 4), delay=slow, window=Window(versions=6, seconds=15.0)))
    assert told.verdicts()["stale"] > 5 and told.of(Trained)
    ages = Counter[int]()
    lags = Counter[int]()
    for event in told.of(Counted):
        ages.update({int(age): count for age, count in event.seconds.items()})
        lags.update({int(lag): count for lag, count in event.versions.items()})
    assert max(lags) <= 6 and max(ages) <= 32


def test_a_run_whose_samplers_are_away_for_longer_than_the_window_goes_on() -> None:
    sides = (("sampler-*",), ("learner-*", "seed-*"))
    cut, whole = Fault(at=20, fault="partition", between=sides), Fault(at=40, fault="repair", between=sides)
    told = Told(scenario(1.0, (1, 2), cut, whole, window=Window(seconds=10.0)))
    assert told.of(Trained, until=20) and told.of(Trained, since=45)


def test_a_learner_that_refuses_all_groups_tells_so_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "_not_drawn", lambda *_: "nobody is believed")
    told = Told(scenario(1.0, (1, 2)))
    assert not told.of(Trained)
    refused = [event.at for event in told.of(Counted) if event.verdicts.get("untrusted")]
    assert len(refused) > 3 and refused[0] - EPOCH < 30.0


def test_a_group_whose_receipt_is_late_is_trained_on_once() -> None:
    sides = (("sampler-0",), ("learner-*",))
    # Held for less than it takes to be lost, long enough for a delivery's deadline.
    told = Told(
        scenario(
            0.8,
            (2, 3),
            Fault(at=10, fault="hold", between=sides),
            Fault(at=30, fault="release", between=sides),
            pace=Pace(beat=2.0, patience=60.0),
        )
    )
    assert told.verdicts()["duplicate"] > 0
    for learner in ("learner-0", "learner-1"):
        ids = trained_ids(told, learner)
        assert len(ids) == len(set(ids)) > 30


def test_twenty_samplers_on_two_learners_seldom_find_them_full() -> None:
    told = Told(scenario(0.25, (2, 20), batch=BatchSize(groups=32, close_after=3.0)))
    verdicts = told.verdicts()
    assert verdicts["over-quota"] < 0.05 * verdicts.total() and verdicts["admit"] > 100


def test_injected_delays_show_where_they_act() -> None:
    def constant(seconds: float) -> DelayLaw:
        return DelayLaw(law="constant", seconds=seconds)

    policy = Told(scenario(0.6, (1, 2), delay=Delay(policy=constant(7.0))))
    assert min(event.age for event in policy.of(Adopted)) >= 7.0
    upload = Told(scenario(0.6, (1, 2), delay=Delay(upload=constant(7.0))))
    assert min(event.seconds for event in upload.of(Judged)) >= 7.0
    assert min(event.age for event in upload.of(Adopted)) < 2.0


LIES = ("reward", "sampler", "token", "nan", "task", "id", "truth")


def lie(what: str, group: Group) -> Group:
    match what:
        case "reward":
            return msgspec.structs.replace(group, rewards=tuple(1.0 - reward for reward in group.rewards))
        case "sampler":
            group = msgspec.structs.replace(group, sampler="sampler-1")
        case "token":
            tokens = Array(
                dtype="int32", shape=group.tokens.shape, data=b"\x7f\x00\x00\x00" + group.tokens.data[4:]
            )
            group = msgspec.structs.replace(group, tokens=tokens)
        case "nan":
            spoiled = Array(
                dtype="float32",
                shape=group.logprobs.shape,
                data=b"\x00\x00\xc0\x7f" + group.logprobs.data[4:],
            )
            group = msgspec.structs.replace(group, logprobs=spoiled)
        case "task":
            group = msgspec.structs.replace(group, task=-1)
        case "id":
            return msgspec.structs.replace(group, id="x" * 100)
    identity = group_id(
        group.sampler, group.version, group.task, group.seed, group.tokens.data, group.logprobs.data
    )
    return msgspec.structs.replace(group, id=identity)


def test_a_liar_is_told_so_and_nobody_else_loses_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    told_lies: dict[str, str] = {}

    class Liar(Sampler):
        async def _send(self, group: Group, learner: Any) -> Any:
            if self.host.ports.me == "sampler-0":
                group = lie(LIES[len(told_lies) % len(LIES)], group)
                told_lies.setdefault(group.id, LIES[len(told_lies) % len(LIES)])
            return await super()._send(group, learner)

    monkeypatch.setattr("peers.sampler.sampler.Sampler", Liar)
    told = Told(scenario(0.8))
    verdicts = {
        (told_lies[event.group], event.verdict.value) for event in told.of(Judged) if event.group in told_lies
    }
    expected = {"reward": "untrusted", "sampler": "untrusted", "truth": "admit"}
    assert {pair for pair in verdicts if pair[1] != "stale"} == {
        (what, expected.get(what, "malformed")) for what in LIES
    }
    honest = [event for event in told.of(Judged) if event.group not in told_lies]
    # A sampler may have a version before a learner has it, and then takes its group to another one.
    judged = {event.verdict for event in honest if "ahead of this learner" not in event.detail}
    assert judged == {Verdict.ADMIT} and told.of(Trained, since=40)


def test_strangers_keep_out_nobody_who_delivered_or_is_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    learners: list[LearnerPeer] = []
    seen: list[list[bool]] = []

    class Watched(LearnerPeer):
        def __init__(self, *rest: Any) -> None:
            super().__init__(*rest)
            learners.append(self)

    class Liar(Sampler):
        async def _send(self, group: Group, learner: Any) -> Any:
            peers = ("seed-0", "learner-0", "sampler-0", "sampler-1", "stranger")
            seen.append([learners[0].host.known_sender(PeerId(peer)) for peer in peers])
            return await super()._send(
                lie("reward", group) if self.host.ports.me == "sampler-0" else group, learner
            )

    monkeypatch.setattr("peers.learner.learner.LearnerPeer", Watched)
    monkeypatch.setattr("peers.sampler.sampler.Sampler", Liar)
    Told(scenario(0.5, (1, 2)))
    assert seen[0] == [True, False, False, False, False]
    assert seen[-1] == [True, False, False, True, False]


def test_a_learner_remembers_only_the_exercises_it_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[LearnerPeer] = []

    class Watched(LearnerPeer):
        def __init__(self, *rest: Any) -> None:
            super().__init__(*rest)
            kept.append(self)

    monkeypatch.setattr("peers.learner.learner.LearnerPeer", Watched)
    told = Told(
        scenario(
            0.6,
            (2, 4),
            delay=Delay(upload=DelayLaw(law="lognormal", seconds=3.0, shape=1.0)),
            window=Window(versions=4, seconds=15.0),
        )
    )
    assert told.verdicts()["stale"] > 0
    for peer in kept:
        held = {item.group.id for item in peer._batch} | {
            item.group.id for item in peer.inbox.batcher._waiting
        }
        assert set(peer.inbox._tasks) == held
        assert len(peer.inbox._senders) <= 4
