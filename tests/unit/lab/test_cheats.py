"""`swarm bench adversaries --samplers`: what one sampler of three costs that cheats."""

from __future__ import annotations

import pytest

from lab.studies.experiments import Row
from lab.studies.liars.cheating import HEADS, Cheated, cheats_table, heads_table, plan, suffer
from lab.studies.liars.cheats import CHEATS, LIES
from peers.cli import main


def told(cheat: str, seconds: float, defended: bool = True) -> Row:
    return suffer(Cheated(cheat=cheat, defended=defended, seconds=seconds))


@pytest.mark.parametrize("cheat", ["other text", "its own group again", "claims: tuned"])
def test_who_draws_or_claims_something_else_is_replayed_and_suspend(cheat: str) -> None:
    row = told(cheat, 3.0)
    assert (row["named"], row["by"], row["innocent"]) == (1.0, "a replay", 0)
    assert float(row["groups"]) < 6


@pytest.mark.parametrize("cheat", ["own seeds", "copies of others' groups", "pinned rewards"])
def test_who_draws_what_is_not_due_has_no_group_trained_on(cheat: str) -> None:
    row = told(cheat, 4.0)
    assert (row["refused"], row["poison"], row["by"]) == (1.0, 0.0, "admission")


@pytest.mark.parametrize(
    ("cheat", "by"), [("other text", "its heads"), ("other text, forged heads", "a replay"), ("honest", "")]
)
def test_in_a_run_with_heads_a_group_names_its_sampler_and_a_replay_who_forges_them(
    cheat: str, by: str
) -> None:
    row = suffer(Cheated(cheat=cheat, defended=True, seconds=3.0, heads=HEADS))
    assert (row["by"], row["poison"], row["innocent"]) == (by, 0.0, 0)
    assert not by or float(row["groups"]) < 6


def test_names_that_are_given_up_after_their_first_groups_have_trained_nobody() -> None:
    row = told("30 identities that take turns", 16.0)
    assert row["poison"] == 0.0 < float(row["named"]) and row["innocent"] == 0
    assert float(row["trained"]) > 40


def test_nobody_is_named_where_nobody_cheats_and_poison_is_counted_where_all_is_believed() -> None:
    row = told("honest", 3.0)
    assert (row["named"], row["innocent"], row["poison"], row["refused"]) == (0.0, 0, 0.0, 0.0)
    assert float(row["trained"]) > 0 < float(told("other text", 3.0, defended=False)["poison"])


def test_each_cheat_is_tried_on_a_learner_that_defends_itself_and_on_one_that_believes_all() -> None:
    cells = [cell for cell in plan(quick=True) if not cell.heads]
    assert len({cell.cheat for cell in cells}) == len(CHEATS) + len(LIES) == len(cells) / 2 >= 26
    row: Row = dict.fromkeys(("reward", "poison", "refused", "named", "innocent"), 0.0)
    row |= {"by": "a replay", "after": 1.0, "groups": 2.0}
    assert "| a replay | 2 groups, 1.0 s | 0 |" in cheats_table([(cells[0], row), (cells[1], row)])
    assert "| a replay | 2 groups, 1.0 s | 0 |" in heads_table([(cells[0], row)])


def test_the_halves_of_the_suite_are_no_halves_of_another_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "band", "--samplers"]) != 0
    assert "--learners, --samplers and --honest are for the study adversaries" in capsys.readouterr().err
