"""A learner that is killed and comes back takes over a state, and is in the rounds of the others from then
on: they wait for nothing but that state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_roles_swarm import EPOCH, Told, scenario, seconds

from peers.roles.gradients import Gradients
from peers.roles.other_learners import OtherLearners
from swarm.config import Averaging, BatchSize
from swarm.core.audit import audit
from swarm.core.batcher import Waiting
from swarm.events import Averaged, Judged, Moved, Released, Stepped, Trained
from swarm.sim.scenario import Fault, SimulatedLinks
from swarm.types import PeerId

LEARN, KILLED, DOWN = 4.0, 30.0, 20.0
WHO = "learner-2"


def returning(
    disks: Path, overlap: bool = True, *others: Fault, learners: int = 3, minutes: float = 1.7
) -> Told:
    """Learners of which one is killed and comes back. A state is here in two seconds."""
    plain = scenario(
        minutes,
        (learners, 14),
        Fault(at=KILLED, fault="bounce", down=DOWN, peer=WHO),
        *others,
        averaging=Averaging(overlap=overlap),
        batch=BatchSize(groups=12, close_after=3.0),
    )
    prices = plain.prices | {"learn": seconds(LEARN), "pack": seconds(0.3), "load": seconds(0.3)}
    links = SimulatedLinks(bandwidth=3000.0)
    return Told(msgspec.structs.replace(plain, prices=prices, links=links), disks)


def falls(told: Told, who: str = WHO) -> list[Any]:
    """When it has the state of the others."""
    return [event for event in told.of(Moved, who, since=KILLED + DOWN) if event.cause == "fell in"]


@pytest.mark.parametrize("overlap", [True, False])
def test_who_falls_in_is_in_the_next_round_without_a_gradient(tmp_path: Path, overlap: bool) -> None:
    told = returning(tmp_path, overlap)
    (fell_in,) = falls(told)
    rounds = told.of(Averaged, "learner-0", since=fell_in.at - EPOCH)
    assert rounds[0].version == fell_in.version and WHO in rounds[0].members
    first, *rest = told.of(Trained, WHO, since=fell_in.at - EPOCH)
    assert first.groups == 0 and first.version == fell_in.version + 1
    assert len(rest) > 3 and all(step.groups > 0 and step.members == 3 for step in rest)
    if overlap:
        assert rounds[0].at - fell_in.at < LEARN
    account = audit(told.all)
    assert account.passed and account.once > 0, (account.lost, account.doubled)


def test_a_state_is_copied_before_the_next_gradient_begins(tmp_path: Path) -> None:
    told = returning(tmp_path)
    (fell_in,) = falls(told)
    released = [event.at for event in told.of(Released) if event.release.version == fell_in.version]
    assert fell_in.at - min(released) < LEARN


def test_who_comes_back_learns_on_no_group_that_others_have_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compute, began = Gradients.compute, list[tuple[float, set[str]]]()

    async def computes(gradients: Gradients, batch: Sequence[Waiting], *others: Any) -> Any:
        if gradients._host.ports.me == WHO:
            began.append((gradients._host.now(), {item.group.id for item in batch}))
        return await compute(gradients, batch, *others)

    monkeypatch.setattr(Gradients, "compute", computes)
    told = returning(tmp_path)
    (fell_in,) = falls(told)
    learnt = set().union(*(groups for at, groups in began if at >= fell_in.at))
    on_its_disk = {event.group for event in told.of(Judged, WHO, until=KILLED) if event.verdict == "admit"}
    steps = [event for event in told.of(Stepped) if event.version <= fell_in.version]
    trained = {group for event in steps for group in event.groups}
    assert on_its_disk & trained and on_its_disk & learnt and not trained & learnt


def test_who_comes_back_takes_what_the_others_have_and_not_what_its_disk_has(tmp_path: Path) -> None:
    told = returning(tmp_path)
    (fell_in,) = falls(told)
    loaded = [event for event in told.of(Moved, WHO, since=KILLED + DOWN) if event.cause == "loaded"]
    newest = max(event.release.version for event in told.of(Released, until=KILLED + DOWN))
    assert newest <= fell_in.version and not loaded


def test_who_is_left_out_of_a_round_waits_for_nobody_who_has_stepped_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = OtherLearners.partners

    def partners(others: OtherLearners) -> list[PeerId]:
        back = others._host.now() - EPOCH > KILLED + DOWN and others._host.ports.me != WHO
        return [peer for peer in real(others) if not (back and peer == WHO)]

    monkeypatch.setattr(OtherLearners, "partners", partners)
    told = returning(tmp_path)
    fell_in, *_ = falls(told)
    leaves = next(event for event in told.of(Moved, WHO) if event.at > fell_in.at)
    stepped = [event.at for event in told.of(Moved) if event.cause == "stepped" and event.at > fell_in.at]
    assert leaves.cause == "ahead seen" and leaves.at - min(stepped) < LEARN


@pytest.mark.parametrize("later", [0.0, 1.0, 2.0])
def test_two_that_come_back_are_in_the_next_round_with_all_others(tmp_path: Path, later: float) -> None:
    other = Fault(at=KILLED, fault="bounce", down=DOWN + later, peer="learner-1")
    told = returning(tmp_path, True, other, learners=4, minutes=1.2)
    (fell_in, *_), (second, *_) = falls(told), falls(told, "learner-1")
    rounds = told.of(Averaged, "learner-0", since=max(fell_in.at, second.at) - EPOCH)
    assert fell_in.version == second.version == rounds[0].version and len(rounds[0].members) == 4


def test_who_meets_nobody_while_all_others_wait_for_one_gives_that_one_its_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It went to its round before it heard that another falls in, and all others heard of that first."""
    early = PeerId("learner-0")

    def met_before(others: OtherLearners) -> bool:
        return others._host.ports.me == early and others._host.now() - EPOCH < KILLED + DOWN + 2.0

    monkeypatch.setattr(OtherLearners, "_met_before", met_before)
    monkeypatch.setattr(OtherLearners, "at_release", lambda *_: early)
    told = returning(tmp_path)
    fell_in, *_ = falls(told)
    steps = told.of(Trained, early, since=KILLED + DOWN + 2.0, until=fell_in.at - EPOCH + LEARN)
    assert [step.members for step in steps] == [3]


def test_learners_that_begin_together_learn_before_their_first_round() -> None:
    told = Told(scenario(0.2, (4, 12)))
    assert not [event for event in told.of(Moved) if event.cause == "fell in" and event.version == 0]
    assert [len(event.members) for event in told.of(Averaged) if event.version == 0] == 4 * [4]
