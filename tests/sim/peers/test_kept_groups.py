"""What a learner acknowledged is trained once or refused, whatever dies: learners with disks on the ports of
memory."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kept_groups import digest, heard, memory, scored, trained_in, waiting
from nouns import beat, group, release
from role_swarms import scenario

from peers.commands import sim
from peers.intake import group_log, unkept_steps
from peers.intake.group_log import KeptGroup
from peers.intake.inbox import TaskAndRewards
from peers.intake.reward_calls import RewardCalls
from peers.learner import trained_groups
from peers.learner.checkpoints import Progress
from peers.learner.learner import LearnerPeer
from peers.learner.trained_groups import TrainedGroups
from swarm.core.agreement.trained import HeldPolicy, mark
from swarm.core.group_accounts import JournalAudit, audit
from swarm.core.intake.batcher import Waiting
from swarm.events import (
    AnyEvent,
    Dropped,
    Faulted,
    Found,
    Rejected,
    Released,
    Returned,
    Started,
    Stepped,
    Trained,
)
from swarm.frames import wire
from swarm.net.ports import Refused
from swarm.protocol import Role, Service
from swarm.settings.config import Releasing, Window
from swarm.sim.clock import run
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import World
from swarm.tasks.base import RewardError
from swarm.types import (
    MARK_BYTES,
    MARKED,
    Array,
    Digest,
    Heads,
    PeerId,
    Task,
    TrainedQuery,
    TrainedStep,
    TrainedSteps,
    Verdict,
)


def played(script: Scenario, disks: Path | None) -> tuple[list[AnyEvent], JournalAudit]:
    told: list[Any] = []
    World(script, sim.spawn, sinks=[told.append], disks=disks).run()
    return told, audit(told)


def bounces(*learners: tuple[str, float], down: float = 2.0) -> tuple[Fault, ...]:
    return tuple(Fault(at=at, fault="bounce", peer=peer, down=down) for peer, at in learners)


KILLED = bounces(("learner-0", 31.3), ("learner-1", 52.7), ("learner-0", 74.1), ("learner-1", 75.0))


@pytest.mark.nightly
def test_learners_that_are_killed_take_their_groups_up_again_from_the_disk(tmp_path: Path) -> None:
    told, account = played(scenario(2.0, (2, 3), *KILLED), tmp_path)
    assert account.passed, (account.lost, account.doubled)
    assert account.acknowledged > 150 and account.once > 0.9 * account.acknowledged
    assert any(isinstance(event, Returned) for event in told)


def test_without_its_disk_a_killed_learners_groups_are_lost() -> None:
    """And the audit sees it."""
    _, account = played(scenario(0.8, (2, 3), *KILLED[:1]), None)
    assert account.lost and not account.passed


def test_what_a_learner_finds_on_its_disk_is_not_lost_wherever_the_journals_end(tmp_path: Path) -> None:
    """It ends before it takes its groups up, comes back, and does."""
    told, _ = played(scenario(0.8, (2, 3), *bounces(("learner-0", 31.3), ("learner-0", 33.35))), tmp_path)
    lives = [event for event in told if isinstance(event, Started) and event.peer == "learner-0"]
    found = [event for event in told if isinstance(event, Found)]
    assert [event.at for event in found] == [event.at for event in lives[1:]] and len(found) == 2
    at = [lives[1].at + 0.1 * k for k in range(100)]
    assert not any(audit(event for event in told if event.at <= end).lost for end in at)


def test_a_lone_learner_trains_again_what_was_trained_after_its_checkpoint(tmp_path: Path) -> None:
    """Its releases died with it: nobody else had one."""
    faults = (
        Fault(at=30.0, fault="partition", between=("learner", "seed")),
        *bounces(("learner-0", 45.0)),
    )
    script = scenario(1.1, (1, 3), *faults, release=Releasing(checkpoint_every=4))
    _, account = played(script, tmp_path)
    assert account.passed, (account.lost, account.doubled)
    assert account.acknowledged > 50


def test_a_restarted_learner_releases_its_version_as_it_was_made(tmp_path: Path) -> None:
    """It ended between a checkpoint and the release of the same version."""
    kill = Fault(at=10.0, fault="bounce", peer="learner-0", down=2.0, step="announcing")
    script = scenario(0.7, (1, 3), kill, release=Releasing(checkpoint_every=1))
    told, _ = played(script, tmp_path)
    mine = [event for event in told if event.peer == "learner-0"]
    lives = [k for k, event in enumerate(mine) if isinstance(event, Started)]
    before, after = mine[: lives[1]], mine[lives[1] :]
    step = [event for event in before if isinstance(event, Trained)][-1]
    release = next(event.release for event in after if isinstance(event, Released))
    assert (release.version, release.learners, release.groups) == (step.version, 1, step.groups)


def test_what_a_learner_finds_on_its_disk_waits_while_its_tasks_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has stepped meanwhile, on groups that came."""
    tasks, back = RewardCalls.tasks, 21.3
    failed = list[int]()

    async def made(self: RewardCalls, indices: Sequence[int]) -> list[Task]:
        host = self.host
        if host.who.role is Role.LEARNER and indices and back <= host.steady() and len(failed) < 2:
            failed.append(len(indices))
            raise RewardError("the environment is away")
        return await tasks(self, indices)

    monkeypatch.setattr(RewardCalls, "tasks", made)
    told, account = played(scenario(1.0, (1, 3), *bounces(("learner-0", back - 2.0))), tmp_path)
    assert not [event for event in told if isinstance(event, Dropped) and event.why == "of another line"]
    assert len(failed) == 2
    (found,) = (event for event in told if isinstance(event, Found))
    steps = [group for event in told if isinstance(event, Stepped) for group in event.groups]
    assert account.passed and {*found.groups} <= {*steps}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3, 5])
def test_no_group_is_lost_or_doubled_over_ten_kills(seed: int, tmp_path: Path) -> None:
    times = [25.0 + 7.3 * k + 0.37 * seed for k in range(10)]
    faults = bounces(*((f"learner-{(k + seed) % 2}", at) for k, at in enumerate(times)), down=1.0 + seed / 4)
    _, account = played(scenario(2.2, (2, 3), *faults, seed=seed), tmp_path)
    assert account.passed, (account.lost, account.doubled)
    assert account.acknowledged > 90


def test_what_a_learner_remembers_of_trained_groups_does_not_grow_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners, begin = list[LearnerPeer](), LearnerPeer.__init__

    def begun(self: LearnerPeer, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        learners.append(self)

    monkeypatch.setattr(LearnerPeer, "__init__", begun)
    script = scenario(1.0, window=Window(versions=4, seconds=60.0))
    played(script, tmp_path)
    run = script.run
    for learner in learners:
        trained = learner.trained
        assert learner.learner.version > 20
        most = (run.window.versions + run.release.checkpoint_every + 1) * run.batch.groups
        assert 0 < len(trained._trained) <= most
        assert all(trained._stepped)


@pytest.mark.parametrize("heads", [0, 4, 64])
def test_trained_groups_are_remembered_up_to_their_bytes_with_those_of_their_heads(
    heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_groups, "REMEMBERED_BYTES", 1 << 20)
    trained = TrainedGroups.__new__(TrainedGroups)
    trained._stepped, trained._stepped_bytes = deque(), 0
    tokens = 1000
    of_heads = Heads(tokens=bytes(4 * tokens * heads), logprobs=bytes(2 * tokens * heads)) if heads else None
    numbers = Array(dtype="int32", shape=(tokens,), data=bytes(4 * tokens))
    logprobs = Array(dtype="float32", shape=(tokens,), data=bytes(4 * tokens))
    for k in range(300):
        one = group(k, tokens=numbers, logprobs=logprobs, lengths=(500, 500), heads=of_heads)
        trained._remember({mark(one.id): (Waiting(one, 0.0), TaskAndRewards(None, ()))})  # type: ignore[arg-type]
    size = tokens * (8 + 6 * heads)
    assert len(trained._stepped) == (1 << 20) // size


@asynccontextmanager
async def trained_of(folder: Path, at: list[int]) -> AsyncIterator[TrainedGroups]:
    """Those of a learner that does not run, whose version is `at`."""
    async with memory() as network:
        yield trained_in(network, folder, at)


@pytest.mark.parametrize(
    ("refuses", "other", "takes"),
    [
        (False, {}, True),
        (True, {}, False),
        (True, {"unkept": True}, True),
        (True, {"credit": 0}, True),
        (True, None, True),
    ],
    ids=[
        "my disk is well",
        "the other's disk is",
        "neither is",
        "the other takes none",
        "nobody else is here",
    ],
)
def test_a_learner_whose_disk_refuses_groups_leaves_them_to_one_whose_disk_does_not(
    refuses: bool, other: dict[str, Any] | None, takes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with trained_of(tmp_path, [1]) as trained:
            inbox, host = trained._inbox, trained._host
            if other is not None:
                host.roster.receive(PeerId("learner-1"), beat(**other), host.now())
            monkeypatch.setattr(TrainedGroups, "refused", refuses)
            room = inbox._room(group(), 2.0, host.now())
            assert (room.groups > 0, inbox.credit() > 0) == (takes, takes)
            assert host.status.unkept == refuses
            assert takes or "disk" in room.why

    run(main())


def test_a_group_that_the_disk_refused_is_unkept_however_often_it_comes_until_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def main() -> None:
        async with trained_of(tmp_path, [1]) as trained:
            one, unkept = group(1), trained._inbox._is_unkept
            writes = asyncio.create_task(trained.keep_refused())
            with monkeypatch.context() as disk:
                disk.setattr(os, "write", full)
                assert not await trained.keep(one, (1.0, 0.0))
                assert unkept(one, Verdict.ADMIT, False) and unkept(one, Verdict.DUPLICATE, False)
                assert not unkept(one, Verdict.STALE, False) and not unkept(group(2), Verdict.ADMIT, False)
            await trained._host.ports.clock.sleep(3 * group_log.PAUSE)
            assert not unkept(one, Verdict.DUPLICATE, False)
            writes.cancel()

    run(main())


def test_what_another_learner_trained_is_not_admitted_when_it_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained_of(tmp_path, [1]) as trained:
            theirs, other = mark(group(1).id), PeerId("learner-1")
            await trained.stepped({other}, (), {other: theirs})
            assert theirs in trained._inbox.admission._seen
            assert trained.has([Waiting(group(1), 0.0)]) and not trained.has([Waiting(group(2), 0.0)])
            assert trained.has([Waiting(group(number), 0.0) for number in (1, 2)]), "one of them is enough"

    run(main())


@pytest.mark.parametrize(
    ("policy", "members", "admits"),
    [
        (HeldPolicy(2, Digest("e" * 64), digest(1)), 1, True),
        (HeldPolicy(2, digest(2), digest(1)), 2, True),
        (HeldPolicy(2, digest(2), digest(1)), 1, False),
    ],
    ids=["not in the line", "unknown", "in the line"],
)
def test_a_group_of_a_step_on_the_disk_that_is_not_there_itself_is_admitted_unless_the_policy_has_the_step(
    tmp_path: Path, policy: HeldPolicy, members: int, admits: bool
) -> None:
    async def main() -> None:
        me, other, theirs = PeerId("learner-0"), PeerId("learner-1"), mark(group(2).id)
        async with trained_of(tmp_path, [1]) as before:
            await before.stepped([me, other][:members], scored(before, 1), {other: theirs})
        async with trained_of(tmp_path, [2]) as trained:
            seen = trained._inbox.admission._seen
            await trained.open()
            assert not seen, "no policy is known"
            if members == 1:
                trained._ledger.name(2, digest(2))
            await trained._place_groups(policy)
            assert seen.keys() == (set() if admits else {mark(group(1).id), theirs})

    run(main())


def test_another_members_groups_of_a_lost_step_are_admitted_when_they_come_and_mine_are_here() -> None:
    async def main() -> None:
        async with memory() as network:
            trained, other = trained_in(network, None, [1]), PeerId("learner-1")
            me, theirs, seen = trained._host.ports.me, mark(group(2).id), trained._inbox.admission._seen
            trained._inbox.admission.admitted(group(1))
            await trained.stepped({me, other}, scored(trained, 1), {other: theirs})
            assert {mark(group(1).id), theirs} <= seen.keys()
            trained._ledger.name(2, digest(2))
            await trained._place_groups(HeldPolicy(2, Digest("e" * 64), digest(1)))
            assert mark(group(1).id) in seen and theirs not in seen

    run(main())


def test_a_group_that_another_learners_step_had_comes_back_where_that_step_is_lost() -> None:
    async def main() -> None:
        async with memory() as network:
            trained = trained_in(network, None, [2])
            for item, _ in scored(trained, 1):
                trained._inbox.batcher.add(item.group, 0.0)
            step = TrainedStep(
                version=2,
                parent=digest(1),
                weights=digest(2),
                members=(PeerId("learner-1"),),
                groups=mark(group(1).id),
            )
            trained._ledger.receive([step])
            for policy, left in [(digest(2), []), (Digest("e" * 64), [1])]:
                await trained._place_groups(HeldPolicy(2, policy, digest(1)))
                assert waiting(trained) == left

    run(main())


def test_segments_of_groups_and_of_steps_that_are_beyond_the_window_go_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_groups, "SEGMENT_BYTES", 100)  # each record begins a segment

    async def main() -> None:
        at = [0]
        async with trained_of(tmp_path, at) as trained:
            for at[0] in range(6):
                assert await trained.keep(group(at[0], version=at[0]), (1.0, 0.0))
                await trained.stepped((), (), {})
            await trained.saved(5)
            assert trained._groups.segments == [3, 4, 5]
            assert trained._steps.segments == [2, 3, 4, 5], "of the step from version 2 on"

    run(main())


@pytest.mark.parametrize("steps", [True, False], ids=["undone", "given back"])
def test_what_others_trained_does_not_come_back_unless_their_step_is_lost(steps: bool) -> None:
    async def main() -> None:
        async with memory() as network:
            trained = trained_in(network, None, [1])
            told, other = heard(trained, Dropped), PeerId("learner-1")
            await trained.stepped({other}, (), {other: mark(group(2).id)})
            batch = scored(trained, 1, 2, 3)
            if steps:
                trained.undone(batch)
            else:
                trained.give_back([item for item, _ in batch])
            assert waiting(trained) == [1, 3]
            assert [(event.groups, event.why) for event in told] == [((group(2).id,), "duplicate")]
            assert trained._stepped_bytes == sum(map(trained_groups._bytes, trained._stepped)) > 0
            trained._put_back({mark(group(2).id)})
            assert waiting(trained) == [1, 2, 3]

    run(main())


def test_the_groups_of_a_step_that_no_policy_has_come_back_once() -> None:
    """One of them is learned on, and one waits: their samplers sent them again."""

    async def main() -> None:
        async with memory() as network:
            at = [1]
            trained = trained_in(network, None, at, Waiting(group(2), 0.0))
            told, me = heard(trained, Returned), trained._host.ports.me
            await trained.stepped({me}, scored(trained, 1, 2, 3), {})
            trained._inbox.batcher.add(group(3), 0.0)
            at[0] = 3  # loaded: of a line that my step to version 2 is not in
            trained.loaded(Progress(parent=Digest("e" * 64)), 2, digest(2))
            asked, receive = list[HeldPolicy](), trained._receive

            async def hears(policy: HeldPolicy) -> None:
                asked.append(policy)
                await receive(policy)

            trained._receive = hears  # type: ignore[method-assign]
            placing = network.tasks.create_task(trained.run())
            await trained.placed()
            assert asked == [HeldPolicy(3, digest(3), Digest("e" * 64))]
            assert waiting(trained) == [1, 3] and [event.groups for event in told] == [(group(1).id,)]
            assert not trained._stepped and not trained._stepped_bytes
            placing.cancel()

    run(main())


def test_a_step_that_the_policy_has_stays_trained_until_it_is_older_than_the_window() -> None:
    async def main() -> None:
        async with memory() as network:
            at = [0]
            trained = trained_in(network, None, at)
            for at[0] in range(6):
                await trained.stepped({trained._host.ports.me}, scored(trained, at[0]), {})
            batch = [Waiting(group(number), 0.0) for number in range(6)]
            assert [trained.has([item]) for item in batch] == [True] * 5 + [False], (
                "the last one is no version"
            )
            await trained.saved(5)
            assert [trained.has([item]) for item in batch] == [False, False, True, True, True, False]

    run(main())


def test_a_segment_goes_when_its_groups_are_too_old_and_older_than_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_groups, "SEGMENT_BYTES", 100)

    async def main() -> None:
        async with memory() as network:
            trained = trained_in(network, tmp_path, [5], seconds=60.0)
            now = trained._host.now()
            for number, (version, age) in enumerate([(4, 61.0), (4, 59.0), (5, 61.0), (5, 0.0)]):
                assert await trained.keep(group(number, version=version, released=now - age), (1.0, 0.0))
            await trained.saved(5)
            assert trained._groups.segments == [1, 2, 3]

    run(main())


def test_a_record_of_another_version_of_this_program_costs_itself_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained_of(tmp_path, [1]) as before:
            await before.keep(group(1), (1.0, 0.0))
            await before._groups.keep(wire.encode(["nonsense"]))
            await before.stepped((), scored(before, 2), {PeerId("learner-1"): mark(group(3).id)})
        async with trained_of(tmp_path, [1]) as trained:
            told = heard(trained, Found, Faulted)
            await trained.open()
            (damage, found) = told
            assert "a record of groups is left out" in damage.detail and found.groups == (group(1).id,)
            assert mark(group(1).id) in trained._inbox.admission._seen
            assert trained._ledger.marks() == {mark(group(k).id) for k in (2, 3)}

    run(main())


@pytest.mark.parametrize(
    ("limits", "told"), [({"TOLD": 4}, [3, 4, 5, 6]), ({"TOLD_BYTES": 4 * MARK_BYTES}, [5, 6])]
)
def test_a_learner_that_asks_is_told_the_newest_steps(
    limits: dict[str, int], told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in limits.items():
        monkeypatch.setattr(unkept_steps, name, most)

    async def main() -> None:
        async with memory() as network:
            at, asks = [0], PeerId("learner-1")
            trained = trained_in(network, None, at)
            for at[0] in range(6):
                await trained.stepped((), scored(trained, 2 * at[0], 2 * at[0] + 1), {})
            at[0] = 6
            question = wire.encode(TrainedQuery(since=0))
            with pytest.raises(Refused):
                await trained._answer(asks, question)
            trained._host.roster.receive(asks, beat(), trained._host.now())
            steps = wire.decode(await trained._answer(asks, question), TrainedSteps).steps
            assert [step.version for step in steps] == told and steps[-1].weights == digest(6)
            newest = await trained._answer(asks, wire.encode(TrainedQuery(since=6)))
            assert [step.version for step in wire.decode(newest, TrainedSteps).steps] == [6]

    run(main())


def test_a_learner_that_tells_nonsense_is_named_and_asked_again_with_one_that_is_away() -> None:
    async def main() -> None:
        async with memory() as network:
            trained, asked, since = trained_in(network, None, [1]), list[str](), list[int]()
            theirs = TrainedStep(
                version=1, parent=digest(0), weights=digest(1), members=(), groups=mark(group(7).id)
            )
            answers = {"learner-1": wire.encode(TrainedSteps(steps=(theirs,))), "learner-2": b"nonsense"}
            for name in (*answers, "learner-3"):
                trained._host.roster.receive(PeerId(name), beat(name=name), trained._host.now())
            for name, answer in answers.items():

                async def tell(
                    sender: PeerId, question: bytes, name: str = name, answer: bytes = answer
                ) -> bytes:
                    asked.append(name)
                    since.append(wire.decode(question, TrainedQuery).since)
                    return answer

                await network.ports(name, lambda _: 0.0).mail.serve(Service.TRAINED, tell)
            told = heard(trained, Rejected)
            await trained._ask_again()
            assert not asked, "nothing is unsure"
            trained._unsure = True
            for item, _ in scored(trained, 6, 7):
                trained._inbox.batcher.add(item.group, 0.0)
            await trained._ask_again()
            assert waiting(trained) == [6] and since == [0, 0]
            assert trained.has([Waiting(group(7), 0.0)]) and trained._reported_lines.keys() == {"learner-1"}
            assert [event.sender for event in told] == ["learner-2"] and sorted(asked) == [*answers]
            trained._unsure = True
            for name in ("learner-2", "learner-3"):
                trained._reported_lines[PeerId(name)] = frozenset()
            await trained._ask_again()
            assert len(asked) == 2, "all have told it"
            trained._host.roster.forget(PeerId("learner-1"))
            await trained._receive(HeldPolicy(1, digest(1), digest(0)))
            assert "learner-1" not in trained._reported_lines
            await trained.stepped((), (), {})
            trained._unsure, trained._reported_lines = True, {}
            await trained._ask_again()
            assert trained._unsure, "another policy is about to come"

    run(main())


def test_what_the_disk_had_of_versions_that_a_step_makes_anew_is_of_another_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained_of(tmp_path, [0]) as before:
            for version in (1, 2, 3):
                await before.keep(group(version, version=version), (1.0, 0.0))
        async with trained_of(tmp_path, [1]) as trained:
            await trained.open()
            told = heard(trained, Dropped)
            await trained.stepped((), (), {})
            assert [(event.groups, event.why) for event in told] == [
                (tuple(group(version, version=version).id for version in (2, 3)), "of another line")
            ]
            assert [kept.group.version for kept in trained._unread] == [1]

    run(main())


def test_a_group_that_two_members_have_is_told_once_as_mine() -> None:
    async def main() -> None:
        async with memory() as network:
            trained, other = trained_in(network, None, [1]), PeerId("learner-1")
            told, (mine, theirs) = heard(trained, Stepped), (mark(group(k).id) for k in (1, 2))
            await trained.stepped({other}, scored(trained, 1), {other: mine + theirs})
            (stepped,) = told
            assert (stepped.groups, stepped.others) == ((group(1).id,), (theirs.hex(),))
            assert not trained.has([Waiting(group(1), 0.0)]), "the step may fail"
            assert trained._ledger.mine[0].groups == mine + theirs

    run(main())


def test_of_a_lost_steps_groups_those_that_another_learners_step_has_do_not_come_back() -> None:
    async def main() -> None:
        async with memory() as network:
            at, me = [1], PeerId("learner-0")
            trained = trained_in(network, None, at)
            await trained.stepped({me}, scored(trained, 1, 2), {})
            at[0] = 2
            await trained.stepped((), (), {})
            won = Digest("e" * 64)
            theirs = TrainedStep(
                version=2, parent=digest(1), weights=won, members=(), groups=mark(group(1).id)
            )
            trained._ledger.receive([theirs])
            await trained._place_groups(HeldPolicy(2, won, digest(1)))
            assert waiting(trained) == [2] and trained.has([Waiting(group(1), 0.0)])

    run(main())


def test_of_the_disk_only_groups_up_to_my_version_come_back_that_nobody_trained(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained_of(tmp_path, [0]) as before:
            for version in (1, 2, 3):
                await before.keep(group(version, version=version), (1.0, 0.0))
            await before.keep(group(4), (1.0, 0.0))
        async with trained_of(tmp_path, [2]) as trained:
            await trained.open()
            theirs = TrainedStep(
                version=2, parent=digest(1), weights=digest(2), members=(), groups=mark(group(4).id)
            )
            trained._ledger.receive([theirs])
            await trained._place_groups(HeldPolicy(2, digest(2), digest(1)))
            assert waiting(trained) == [1, 2] and [kept.group.draw for kept in trained._unread] == [3]

    run(main())


def test_a_learner_rests_at_a_packed_version_that_no_step_of_its_goes_beyond() -> None:
    async def main() -> None:
        async with memory() as network:
            at = [1]
            trained = trained_in(network, None, at)
            assert trained._at_rest() == HeldPolicy(1, digest(1), Digest(""))
            await trained.stepped((), (), {})
            assert trained._at_rest() is None
            at[0] = 2
            assert trained._at_rest() == HeldPolicy(2, digest(2), Digest(""))
            trained._at = lambda: (2, Digest(""))
            assert trained._at_rest() is None

    run(main())


def test_the_groups_of_a_step_that_failed_are_in_no_policy() -> None:
    async def main() -> None:
        async with memory() as network:
            trained = trained_in(network, None, [1])
            for number in (1, 2):
                await trained.stepped((), scored(trained, number), {})
            assert not trained.has([Waiting(group(1), 0.0)])

    run(main())


def test_a_step_that_was_not_taken_did_not_make_what_was_loaded_instead() -> None:
    async def main() -> None:
        async with memory() as network:
            at, other = [1], PeerId("learner-1")
            trained = trained_in(network, None, at)
            trained._host.roster.receive(other, beat(), trained._host.now())
            await trained.stepped({trained._host.ports.me, other}, scored(trained, 1), {})
            at[0] = 2
            trained.loaded(Progress(parent=digest(1)), 1, digest(1))
            told = await trained._answer(other, wire.encode(TrainedQuery(since=0)))
            assert not wire.decode(told, TrainedSteps).steps
            await trained._place_groups(HeldPolicy(2, digest(2), digest(1)))
            assert trained._unsure, "nobody knows whose step made it"
            trained.loaded(Progress(parent=digest(1), stepped=True), 1, digest(1))
            await trained._place_groups(HeldPolicy(2, digest(2), digest(1)))
            assert [step.weights for step in trained._ledger.mine] == [digest(2)] and not trained._unsure

    run(main())


@pytest.mark.parametrize("is_in", [True, False], ids=["in the policy", "lost"])
def test_what_the_disk_had_is_taken_up_once_and_what_its_last_steps_had_when_they_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in: bool
) -> None:
    monkeypatch.setattr(trained_groups, "SEGMENT_BYTES", 100)

    async def main() -> None:
        at = [1]
        async with trained_of(tmp_path, at) as before:
            for number in (1, 2):
                assert await before.keep(group(number), (1.0, 0.0))
            await before.stepped({before._host.ports.me}, scored(before, 2), {})
            at[0] = 2
            await before.stepped((), (), {})
        async with trained_of(tmp_path, at) as trained:
            told = heard(trained, Returned)
            await trained.open()
            assert [(step.version, step.weights) for step in trained._ledger.mine] == [
                (2, digest(2)),
                (3, Digest("")),
            ]
            for _ in range(2 if is_in else 0):
                await trained._place_groups(HeldPolicy(2, digest(2), digest(1)))
                assert waiting(trained) == [1] and trained.has([Waiting(group(2), 0.0)])
            for _ in range(2):
                await trained._place_groups(HeldPolicy(2, Digest("e" * 64), digest(1)))
                assert waiting(trained) == [1, 2]
            back = [(group(1).id,), (group(2).id,)] if is_in else [(group(1).id, group(2).id)]
            assert [event.groups for event in told] == back
            await trained.saved(9)
            assert (trained._groups.segments, trained._steps.segments) == ([1], [1]), "those written to stay"

    run(main())


def test_a_group_is_not_said_to_be_on_a_disk_that_is_not_there() -> None:
    async def main() -> None:
        async with memory() as network:
            assert not await trained_in(network, None, [1]).keep(group(1), (1.0, 0.0))

    run(main())


def test_a_learner_is_asked_from_the_first_step_on_that_it_did_not_tell() -> None:
    async def main() -> None:
        async with memory() as network:
            trained, peer = trained_in(network, None, [9]), PeerId("learner-1")
            line = {version: digest(version) for version in (9, 8, 7, 6)}
            gap, policy = (6, digest(6)), HeldPolicy(9, digest(9), digest(8))
            assert trained._since(peer, policy, line, gap) == 0, "it told nothing"
            trained._reported_lines[peer] = frozenset(point for point in line.items() if point[0] <= 7)
            assert trained._since(peer, policy, line, gap) == trained._since(peer, policy, line, None) == 7
            assert trained._since(peer, policy, line, (8, digest(8))) == 0
            trained._reported_lines[peer] = frozenset(line.items())
            assert trained._since(peer, policy, line, gap) == 8

    run(main())


def test_a_batch_too_large_for_a_round_has_no_marks_there() -> None:
    batch = [Waiting(group(number), 0.0) for number in range(3)]
    assert trained_groups.marks(batch) == b"".join(mark(group(number).id) for number in range(3))
    assert len(trained_groups.marks(batch[:1] * MARKED)) == MARKED * MARK_BYTES
    assert trained_groups.marks(batch[:1] * (MARKED + 1)) == b""


def test_a_learner_that_opens_its_disk_answers_and_knows_its_own_releases(tmp_path: Path) -> None:
    async def main() -> None:
        me, question = PeerId("learner-0"), wire.encode(TrainedQuery(since=0))
        async with trained_of(tmp_path, [1]) as before:
            await before.stepped({me}, scored(before, 1), {})
        async with memory() as network:
            trained, other = trained_in(network, tmp_path, [1]), PeerId("learner-1")
            mine = release(version=2, weights=digest(9), parent=digest(1), publisher=me, learners=1)
            trained._host.releases.announced = lambda: [mine]  # type: ignore[method-assign]
            trained._host.releases.known = lambda *_: [mine]  # type: ignore[method-assign]
            await trained.open()
            assert [step.weights for step in trained._ledger.mine] == [digest(9)]
            trained._host.roster.receive(other, beat(), trained._host.now())
            mail = network.ports(other, lambda _: 0.0).mail
            told = wire.decode(await mail.send(me, Service.TRAINED, question, 3.0), TrainedSteps)
            assert [step.weights for step in told.steps] == [digest(9)]

    run(main())


def test_what_is_not_known_is_asked_for_again_while_nothing_is_loaded() -> None:
    async def main() -> None:
        async with memory() as network:
            trained, asked = trained_in(network, None, [9]), list[Any]()
            host, other = trained._host, PeerId("learner-1")

            async def ask(learner: PeerId, since: int) -> None:
                asked.append((learner, since))

            trained._ask = ask  # type: ignore[method-assign]
            running = network.tasks.create_task(trained.run())
            await host.ports.clock.sleep(1.5 * host.config.run.pace.patience)
            assert not asked
            trained._unread = [KeptGroup(admitted=0.0, rewards=(1.0, 0.0), group=group(1))]
            host.roster.receive(other, beat(), host.now())
            await host.ports.clock.sleep(host.config.run.pace.patience)
            assert asked == [(other, 0)] and waiting(trained) == [1] and not trained._unread
            running.cancel()

    run(main())
