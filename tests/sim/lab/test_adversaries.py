"""`swarm bench adversaries`: what one learner of four that lies costs."""

from __future__ import annotations

import torch

from lab.studies.liars.adversaries import (
    ROUNDS,
    STALE,
    Attacked,
    OfferedGradient,
    plan,
    suffer,
    table,
    two_table,
)


def test_a_learner_with_minus_ten_times_its_gradient_is_named_in_its_first_rounds() -> None:
    one = Attacked(attack="times -10", defended=True, seconds=7.0)
    row = suffer(one)
    assert float(row["versions"]) >= 3 and row["rounds"] == 1 and float(row["named"]) > 0.2
    assert float(row["proof"]) <= 2 and float(row["innocent"]) < 0.2
    assert "| times -10 | " in table([(one, row)])
    assert f"| times -10 | {row['reward']:.3f} | nan | {row['versions']} | {row['proof']}.0 |" in two_table(
        [(one, row)]
    )


def test_one_that_says_it_comes_and_does_not_is_waited_for_in_few_rounds() -> None:
    row = suffer(Attacked(attack="silence", defended=True, seconds=16.0))
    assert float(row["versions"]) > 5, "each of the first three waits two seconds"


def test_the_others_do_not_wait_for_the_step_of_a_learner_whose_gradients_are_not_finite() -> None:
    row = suffer(Attacked(attack="not finite", defended=True, seconds=16.0))
    assert float(row["versions"]) > 5, "with such steps three"


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
