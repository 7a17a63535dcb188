"""The study of honest samplers: margins are those of real models, nobody is suspended; who is hotter is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rows import nightly

from lab.studies.experiments import key
from lab.studies.liars import honest
from lab.studies.liars.honest import HOT, TRUSTED, Mixed, audited, honest_table, plan, steered_table


def mixed(sampled: str, replayed: str, temperature: float = 1.0) -> Mixed:
    return Mixed(
        sampled=sampled, replayed=replayed, completions=16, most=150, seed=3, temperature=temperature
    )


@pytest.mark.parametrize(
    ("sampled", "replayed"),
    [
        ("float32", "bfloat16"),
        *nightly([("bfloat16", "float32"), ("float32", "float32"), ("bfloat16", "bfloat16")]),
    ],
)
def test_honest_groups_of_every_pair_of_precisions_are_replayed_and_nobody_is_suspended(
    sampled: str, replayed: str
) -> None:
    row = audited(mixed(sampled, replayed))
    assert (row["groups"], row["off"], row["named"]) == (150, 0, 0)
    same = sampled == replayed == "float32"
    assert (row["differ"] < 1e-3) if same else (0.02 < row["differ"] < 0.06)
    assert same or 0.001 < row["mean"] < 0.006


def test_a_sampler_that_is_hotter_is_suspended_in_the_same_swarm() -> None:
    hot = mixed("bfloat16", "float32", HOT)
    row = audited(hot)
    assert row["named"] == 1 and row["groups"] < 150
    text = honest_table([(hot, row)])
    assert "bfloat16, float32, at temperature 1.1" in text and "| 1 of 1 |" in text


@pytest.mark.parametrize(("sampled", "pays"), [("float32", 0.9), *nightly([("bfloat16", 1.2)])])
def test_a_sampler_that_steers_within_the_tolerance_is_set_aside_and_does_so_in_more_than_one_group(
    sampled: str, pays: float
) -> None:
    steers = next(
        one for one in plan(quick=True) if one.steered and one.sampled == sampled and one.honest == TRUSTED
    )
    steers = replace(steers, steered=pays)
    row = audited(steers)
    assert row["named"] == 1 and steers.honest < row["groups"] < steers.most
    assert row["off"] == 0 and row["largest"] < pays < row["hard"]
    before = audited(replace(steers, steered=0.0))
    assert before["named"] == 0 and row["liked"] > before["liked"]
    text = steered_table([(steers, row)])
    assert f"| {sampled}, float32 | {pays:g} | 30 | {row['liked']:.2f} | 1 of 1 |" in text


@pytest.mark.parametrize("constant", ["LAYERS", "SPREAD", "SIZE"])
def test_a_cell_of_a_table_that_changed_is_another_cell(
    constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(plan(quick=True)[0])
    monkeypatch.setattr(honest, constant, 4)
    assert key(plan(quick=True)[0]) != before


def test_the_whole_study_replays_a_hundred_thousand_groups_of_calls_of_1_to_64_completions() -> None:
    honest = [one for one in plan(quick=False) if one.temperature == 1.0 and not one.steered]
    assert sum(one.most for one in honest) > 100_000
    assert {one.completions for one in honest} >= {1, 64}
