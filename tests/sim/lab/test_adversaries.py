"""`swarm bench adversaries`: what one learner of four that lies costs."""

from __future__ import annotations

import msgspec
import pytest
import torch
from rows import nightly

from lab.studies.liars.adversaries import (
    ROUNDS,
    STALE,
    Attacked,
    OfferedGradient,
    Overheard,
    plan,
    scenario,
    spawn,
    suffer,
    table,
    two_table,
)
from swarm.core.gradient_checks.pair_conflict import FREEZE, OPPOSED, UNEQUAL
from swarm.events import Event, RoundBroke, Trained
from swarm.sim.scenario import Fault
from swarm.sim.world import World

EPOCH = 1_750_000_000.0
"""Of simulated swarms."""


def test_a_learner_with_minus_ten_times_its_gradient_is_named_in_its_first_rounds() -> None:
    one = Attacked(attack="times -10", defended=True, seconds=7.0)
    row = suffer(one)
    assert float(row["versions"]) > 3 and row["rounds"] == 1 and float(row["named"]) > 0.6
    assert float(row["innocent"]) < 0.2
    assert "| times -10 | " in table([(one, row)])
    assert f"| times -10 | {row['reward']:.3f} | nan | {row['versions']} | 0.0 |" in two_table([(one, row)])


def test_one_that_says_it_comes_and_does_not_is_waited_for_in_few_rounds() -> None:
    row = suffer(Attacked(attack="silence", defended=True, seconds=16.0))
    assert float(row["versions"]) > 7, "each of the first three waits two seconds"


def test_each_attack_is_tried_on_peers_that_defend_themselves_and_on_others() -> None:
    cells = plan(quick=True)
    assert {(cell.attack, not cell.defended) for cell in cells} == {
        (cell.attack, cell.defended) for cell in cells
    }


def test_the_liar_overhears_what_it_turns_and_what_it_hides_in() -> None:
    others = [torch.tensor([2.0, 1.0]), torch.tensor([2.0, -1.0]), torch.tensor([2.0, 0.0])]
    mine, mean = OfferedGradient(torch.zeros(2), 1.0), torch.tensor([2.0, 0.0])
    lies = {
        attack: ROUNDS[attack]()(mine, others).vector for attack in ("inner product", "a little is enough")
    }
    assert (sum(others) + lies["inner product"]) @ mean < 0, "the mean of all turns"
    assert lies["a little is enough"].tolist() == [2.0, -1.0], "one standard deviation of them"
    assert ROUNDS["inner product"]()(mine, []) is mine, "nobody came"


def test_a_stale_gradient_is_that_of_so_many_rounds_before() -> None:
    lie, told = ROUNDS["stale"](), [OfferedGradient(torch.tensor([float(k)]), 1.0) for k in range(STALE + 2)]
    assert [lie(one, []).vector.item() for one in told] == [0.0] * STALE + [1.0, 2.0]


def two(attack: str, *faults: Fault, seconds: float = 80.0) -> list[Event]:
    """What is told where one of two learners lies."""
    one, told = Attacked(attack=attack, defended=True, seconds=seconds, learners=2), list[Event]()
    swarm = msgspec.structs.replace(scenario(one), faults=faults)
    World(swarm, lambda peer: spawn(peer, one, Overheard()), sinks=[told.append]).run()
    return told


def frozen(told: list[Event]) -> list[RoundBroke]:
    return [event for event in told if isinstance(event, RoundBroke) and event.until > 0]


@pytest.mark.nightly
def test_of_two_learners_that_oppose_each_other_none_steps_until_one_of_them_goes() -> None:
    """It takes about 67 rounds to find it (swarm.core.gradient_checks.pair_conflict), 0.8 in a second."""
    first, second, *_ = frozen(two("times -1", seconds=160.0))
    assert first.at == second.at and {first.peer, second.peer} == {"learner-0", "learner-1"}
    assert second.until == second.at + FREEZE[0] and OPPOSED in second.reason

    gone = Fault(at=first.at - EPOCH + 5.0, fault="crash", peer="learner-1")
    told = two("times -1", gone, seconds=160.0)
    steps = [event.at - EPOCH for event in told if isinstance(event, Trained) and event.at > first.at]
    assert gone.at < min(steps) < gone.at + 15 and len(steps) > 3


@pytest.mark.parametrize("attack", ["times 10", *nightly(["times 1000"]), "times .001"])
def test_of_two_learners_whose_gradients_differ_grossly_in_length_none_steps(attack: str) -> None:
    told = two(attack, seconds=40.0)
    first, second, *_ = frozen(told)
    assert first.at == second.at and {first.peer, second.peer} == {"learner-0", "learner-1"}
    assert UNEQUAL in first.reason and first.until == first.at + FREEZE[0]
    assert first.version < 25 and not [
        event for event in told if isinstance(event, Trained) and event.at > first.at
    ]


@pytest.mark.nightly
def test_two_honest_learners_are_not_frozen() -> None:
    assert not frozen(two("honest"))
