"""A learner that is killed and comes back takes over a state, and is in the rounds of the others from then
on: they wait for nothing but that state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from role_swarms import EPOCH, Told, scenario, seconds, without_rechecks
from rows import nightly

from peers.learner.agreement.common_round import CommonRound
from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.agreement.state_transfer import StateTransfer
from peers.learner.gradients import Gradients
from swarm.core.agreement.state_sync import GOSSIP_SECONDS
from swarm.core.group_accounts import audit
from swarm.core.intake.batcher import Waiting
from swarm.events import Averaged, Judged, Moved, Released, Stepped, Trained
from swarm.learn.learners.base_learner import Gradient
from swarm.settings.config import Averaging, BatchSize
from swarm.sim import disks
from swarm.sim.scenario import Fault, SimulatedLinks
from swarm.types import Digest, PeerId

LEARN, KILLED, DOWN = 4.0, 18.0, 20.0
WHO = "learner-2"


def returning(
    folders: Path,
    overlap: bool = True,
    *others: Fault,
    learners: int = 3,
    samplers: int = 7,
    minutes: float = 1.2,
    down: float = DOWN,
) -> Told:
    """Learners of which one is killed and comes back. A state is here in two seconds."""
    plain = scenario(
        minutes,
        (learners, samplers),
        Fault(at=KILLED, fault="bounce", down=down, peer=WHO),
        *others,
        seed=4,
        averaging=Averaging(overlap=overlap),
        batch=BatchSize(groups=12, close_after=3.0),
    )
    prices = plain.prices | {"learn": seconds(LEARN), "pack": seconds(0.3), "load": seconds(0.3)}
    links = SimulatedLinks(bandwidth=3000.0)
    return Told(msgspec.structs.replace(plain, prices=prices, links=links), folders)


def falls(told: Told, who: str = WHO) -> list[Any]:
    """When it has the state of the others."""
    return [event for event in told.of(Moved, who, since=KILLED + DOWN) if event.cause == "synced"]


class Learnt(NamedTuple):
    """A gradient."""

    peer: str
    began: float
    ended: float
    groups: set[str]


class Watched:
    """What learners did that no event tells."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.learnt, self.others_learnt = list[Learnt](), list[Learnt]()
        """By WHO, and by the others."""
        self.made = dict[int, tuple[str, float]]()
        """Version -> who copied its state last, for another learner, and when."""
        self.loaded = list[float]()
        """When WHO loaded a state."""
        compute, make, load = Gradients.compute, StateTransfer._make, StateTransfer._load_state

        async def computes(gradients: Gradients, batch: Sequence[Waiting], *others: Any) -> Any:
            began = gradients._host.now()
            gradient = await compute(gradients, batch, *others)
            me, groups = gradients._host.ports.me, {item.group.id for item in batch}
            learnt = self.learnt if me == WHO else self.others_learnt
            learnt.append(Learnt(me, began, gradients._host.now(), groups))
            return gradient

        async def makes(transfer: StateTransfer, version: int, weights: Digest) -> Any:
            offer = await make(transfer, version, weights)
            self.made[version] = transfer._host.ports.me, transfer._host.now()
            return offer

        def loads(transfer: StateTransfer, *state: Any) -> None:
            if transfer._host.ports.me == WHO:
                self.loaded.append(transfer._host.now())
            load(transfer, *state)

        patch.setattr(Gradients, "compute", computes)
        patch.setattr(StateTransfer, "_make", makes)
        patch.setattr(StateTransfer, "_load_state", loads)

    def first_learnt(self) -> Learnt:
        """Of its second life."""
        return next(one for one in self.learnt if one.began - EPOCH > KILLED + DOWN)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@cache
def undisturbed() -> tuple[Told, Watched]:
    with pytest.MonkeyPatch.context() as patch, disks.temporary() as folders:
        watched = Watched(patch)
        return returning(folders), watched


def assert_is_in_the_next_round(told: Told, overlap: bool) -> None:
    (synced,) = falls(told)
    rounds = told.of(Averaged, "learner-0", since=synced.at - EPOCH)
    assert rounds[0].version == synced.version and WHO in rounds[0].members
    first, *rest = told.of(Trained, WHO, since=synced.at - EPOCH)
    assert (first.groups > 0) is overlap and first.version == synced.version + 1
    assert len(rest) > 3 and all(step.groups > 0 and step.members == 3 for step in rest)
    if overlap:
        assert rounds[0].at - synced.at < LEARN
    account = audit(told.all)
    assert account.passed and account.once > 0, (account.lost, account.doubled)


def test_who_falls_in_is_in_the_next_round_with_what_it_learnt_ahead() -> None:
    assert_is_in_the_next_round(undisturbed()[0], overlap=True)


def test_who_learns_nothing_ahead_is_in_the_next_round_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_rechecks(monkeypatch)
    assert_is_in_the_next_round(returning(tmp_path, overlap=False), overlap=False)


def test_a_state_is_copied_before_the_next_gradient_begins() -> None:
    told, watched = undisturbed()
    (synced,) = falls(told)
    moved, released = told.of(Moved, WHO, since=KILLED + DOWN), told.of(Released)
    asked = next(event.at for event in moved if event.cause == "ahead seen")
    since = min(event.at for event in released if event.release.version == synced.version)
    giver, made = watched.made[synced.version]
    began = [one.began for one in watched.others_learnt if one.peer == giver and one.began < made]
    assert max(began) < asked + GOSSIP_SECONDS and made - since < LEARN


def test_who_falls_in_learns_while_its_state_comes_which_is_loaded_after_that() -> None:
    told, watched = undisturbed()
    (synced,), meanwhile = falls(told), watched.first_learnt()
    at = next(at for at in watched.loaded if at - EPOCH > KILLED + DOWN)
    moved = told.of(Moved, WHO, since=KILLED + DOWN)
    heard = next(event.at for event in moved if event.cause == "ahead seen")
    assert meanwhile.began - heard < 3.3 and meanwhile.ended <= at <= synced.at
    stepped = next(event for event in told.of(Stepped, WHO) if event.at > synced.at)
    assert {*stepped.groups} == meanwhile.groups
    assert min(one.began for one in watched.learnt if one.began >= meanwhile.ended) < synced.at + 0.5


def no_state(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Whoever asks for one after the kill waits in vain."""
    take = StateTransfer.take

    async def takes(transfer: StateTransfer, *args: Any) -> Any:
        if transfer._host.now() - EPOCH < KILLED + DOWN:
            return await take(transfer, *args)
        await transfer._host.ports.clock.sleep(seconds)
        return None

    patch.setattr(StateTransfer, "take", takes)


def test_without_a_state_what_was_learnt_meanwhile_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, watched: Watched
) -> None:
    no_state(monkeypatch, 3.0)  # the gradient begins some 2 s after the question for a state
    told, meanwhile = returning(tmp_path), watched.first_learnt()
    moved = told.of(Moved, WHO, since=KILLED + DOWN)
    loaded = next(event for event in moved if event.cause == "loaded")
    assert "fetch failed" not in {event.cause for event in moved} and meanwhile.ended <= loaded.at
    ready = next(event for event in moved if event.cause == "gradient ready" and event.at >= loaded.at)
    assert ready.at - loaded.at < LEARN / 4, "it is there"
    averaged = next(event for event in told.of(Averaged, "learner-0") if event.at > ready.at)
    stepped = [{*event.groups} for event in told.of(Stepped, WHO) if event.version == averaged.version + 1]
    assert stepped == ([meanwhile.groups] if WHO in averaged.members else [])
    assert audit(told.all).passed


def test_no_gradient_is_brought_to_a_round_two_versions_after_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, watched: Watched
) -> None:
    """The others do not wait, and have made two when it goes on without a state."""

    average, behind = CommonRound.average, set[int]()

    async def nobody(*_: Any) -> None:
        pass

    async def averages(common: CommonRound, gradient: Gradient, batch: Sequence[Waiting]) -> Any:
        behind.add(common._version() - gradient.version)
        return await average(common, gradient, batch)

    no_state(monkeypatch, 2.5 * LEARN)
    monkeypatch.setattr(OtherLearners, "all_here", nobody)
    monkeypatch.setattr(CommonRound, "average", averages)
    told, meanwhile = returning(tmp_path), watched.first_learnt()
    moved = told.of(Moved, WHO, since=KILLED + DOWN)
    loaded = next(event for event in moved if event.cause == "loaded")
    assert meanwhile.ended < loaded.at - LEARN
    assert behind == {0, 1}
    assert [one for one in watched.learnt if one.began >= loaded.at and one.groups & meanwhile.groups]
    assert audit(told.all).passed


def test_who_comes_back_learns_on_no_group_that_others_have_trained() -> None:
    told, watched = undisturbed()
    (synced,) = falls(told)
    groups = set().union(*(one.groups for one in watched.learnt if one.began - EPOCH > KILLED + DOWN))
    on_its_disk = {event.group for event in told.of(Judged, WHO, until=KILLED) if event.verdict == "admit"}
    steps = [event for event in told.of(Stepped) if event.version <= synced.version]
    trained = {group for event in steps for group in event.groups}
    assert on_its_disk & trained and on_its_disk & groups and not trained & groups


def test_who_comes_back_takes_what_the_others_have_and_not_what_its_disk_has() -> None:
    told, _ = undisturbed()
    (synced,) = falls(told)
    loaded = [event for event in told.of(Moved, WHO, since=KILLED + DOWN) if event.cause == "loaded"]
    newest = max(event.release.version for event in told.of(Released, until=KILLED + DOWN))
    assert newest <= synced.version and not loaded


def test_who_is_left_out_of_a_round_waits_for_nobody_who_has_stepped_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def without_who(real: Callable[[OtherLearners], list[PeerId]]) -> Callable[[OtherLearners], list[PeerId]]:
        def found(others: OtherLearners) -> list[PeerId]:
            back = others._host.now() - EPOCH > KILLED + DOWN and others._host.ports.me != WHO
            return [peer for peer in real(others) if not (back and peer == WHO)]

        return found

    monkeypatch.setattr(OtherLearners, "partners", without_who(OtherLearners.partners))
    monkeypatch.setattr(OtherLearners, "to_meet", without_who(OtherLearners.to_meet))
    told = returning(tmp_path)
    synced, *_ = falls(told)
    leaves = next(event for event in told.of(Moved, WHO) if event.at > synced.at)
    stepped = [event.at for event in told.of(Moved) if event.cause == "stepped" and event.at > synced.at]
    assert leaves.cause == "ahead seen" and leaves.at - min(stepped) < LEARN


@pytest.mark.parametrize("later", [0.0, *nightly([1.0]), 2.0])
def test_two_that_come_back_are_in_the_next_round_with_all_others(tmp_path: Path, later: float) -> None:
    other = Fault(at=KILLED, fault="bounce", down=DOWN + later, peer="learner-1")
    told = returning(tmp_path, True, other, learners=4, minutes=1.0)
    (synced, *_), (second, *_) = falls(told), falls(told, "learner-1")
    rounds = told.of(Averaged, "learner-0", since=max(synced.at, second.at) - EPOCH)
    assert synced.version == second.version == rounds[0].version and len(rounds[0].members) == 4


def test_who_meets_nobody_while_all_others_wait_for_one_gives_that_one_its_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It went to its round before it heard that another falls in, and all others heard of that first."""
    early, back = PeerId("learner-0"), 37.2  # when the others are about to end their gradients

    def met_before(others: OtherLearners) -> bool:
        return others._host.ports.me == early and others._host.now() - EPOCH < back + 2.0

    monkeypatch.setattr(OtherLearners, "_met_before", met_before)
    monkeypatch.setattr(OtherLearners, "at_release", lambda *_: early)
    told = returning(tmp_path, down=back - KILLED, samplers=14, minutes=0.9)
    synced, *_ = falls(told)
    steps = told.of(Trained, early, since=back + 2.0, until=synced.at - EPOCH + LEARN)
    assert [step.members for step in steps] == [3]


def test_learners_that_begin_together_learn_before_their_first_round() -> None:
    told = Told(scenario(0.15, (4, 8)))
    assert not [event for event in told.of(Moved) if event.cause == "synced" and event.version == 0]
    assert [len(event.members) for event in told.of(Averaged) if event.version == 0] == 4 * [4]
