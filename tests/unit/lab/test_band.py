"""The band of honest samplers is measured on what the learner that ships sees, and is reported by lag."""

from __future__ import annotations

import csv
from pathlib import Path

from lab.studies.experiments import key
from lab.studies.liars.band import LAGS, TakenGroup, binned, figures, honest, liars, write
from lab.studies.liars.liars import believing
from swarm.core.intake import claimed_logprobs


def seen(lag: int, drift: float = -0.5, evidence: float = 1.0) -> TakenGroup:
    return TakenGroup(lag=lag, drift=drift, evidence=evidence, lowest=-2.0, highest=1.0)


def test_groups_are_binned_by_lag_up_to_the_window() -> None:
    bins = binned([seen(lag) for lag in (0, 1, 2, 3, 64, 65)])
    assert {last: len(its) for last, its in bins.items()} == {0: 1, 2: 2, 4: 1, 64: 1}


def test_the_figures_of_a_bin_are_its_mean_and_its_extremes() -> None:
    told = figures([seen(1, -0.5, 3.0), seen(1, 0.1, 1.0)])
    assert told == {
        "groups": 2,
        "drift": -0.2,
        "drift_min": -0.5,
        "drift_max": 0.1,
        "evidence_max": 3.0,
        "token_min": -2.0,
        "token_max": 1.0,
    }


def test_a_report_has_a_line_for_every_lag_that_was_seen_and_every_liar(tmp_path: Path) -> None:
    measured = [
        {f"{last} {name}": value for last in LAGS[:3] for name, value in figures([seen(last)]).items()}
    ]
    figure = {
        "first": 0.3,
        "best": 0.5,
        "last": 0.4,
        "admitted": 10.0,
        "refused": 2.0,
        "reached": 40.0,
        "curve": "300 400",
    }
    write(
        tmp_path,
        list(zip(honest(quick=True), measured, strict=True)),
        [(liar, figure) for liar in liars(quick=True)],
    )
    with (tmp_path / "band.csv").open() as file:
        assert [row["lag_to"] for row in csv.DictReader(file)] == ["0", "2", "4"]
    with (tmp_path / "liars.csv").open() as file:
        told = [(row["claims"], row["learner"]) for row in csv.DictReader(file)]
    assert told == [
        (claims, learner)
        for claims in ("nobody lies", "-20 for all")
        for learner in ("doubts", "believes all")
    ]
    assert (tmp_path / "band.png").stat().st_size > 1000


def test_a_count_has_all_its_digits(tmp_path: Path) -> None:
    figure = dict.fromkeys(("first", "best", "last", "reached", "curve"), 0.5) | {
        "admitted": 12345,
        "refused": 0,
    }
    write(tmp_path, [], [(liars(quick=True)[0], figure)])
    assert ",12345,0," in (tmp_path / "liars.csv").read_text()


def test_a_learner_that_believes_all_is_one_for_as_long_as_it_is_asked() -> None:
    with believing():
        assert claimed_logprobs.objection(claimed_logprobs.ClaimCheck(drift=1.0, evidence=1e9), 8.0) is None
    assert claimed_logprobs.objection(claimed_logprobs.ClaimCheck(drift=1.0, evidence=1e9), 8.0)


def test_all_cells_are_different() -> None:
    cells = [*honest(quick=False), *liars(quick=False)]
    assert len({key(cell) for cell in cells}) == len(cells)
