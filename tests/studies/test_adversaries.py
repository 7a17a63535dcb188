"""`swarm bench adversaries`: what one learner of four that lies costs."""

from __future__ import annotations

import torch

from peers.studies.adversaries import Attacked, plan, suffer, table

torch.set_num_threads(1)


def test_a_learner_with_minus_ten_times_its_gradient_is_named_in_its_first_rounds() -> None:
    one = Attacked(attack="times -10", defended=True, seconds=7.0)
    row = suffer(one)
    assert float(row["versions"]) > 3 and row["rounds"] == 1 and float(row["named"]) > 0.6
    assert float(row["innocent"]) < 0.2
    assert "| times -10 | " in table([(one, row)])


def test_one_that_says_it_comes_and_does_not_is_waited_for_in_few_rounds() -> None:
    row = suffer(Attacked(attack="silence", defended=True, seconds=16.0))
    assert float(row["versions"]) > 7, "each of the first three waits two seconds"


def test_each_attack_is_tried_on_peers_that_defend_themselves_and_on_others() -> None:
    cells = plan(quick=True)
    assert {(cell.attack, not cell.defended) for cell in cells} == {
        (cell.attack, cell.defended) for cell in cells
    }
