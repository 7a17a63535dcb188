"""The staleness bench: cells that repeat, a search that handicaps nobody, a study that goes on where it
stopped."""

from __future__ import annotations

import csv
import io
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from lab.studies import heat, trainings
from lab.studies.experiments import Row, complete, key
from lab.studies.intervals import chance, holm
from lab.studies.method_names import defined
from lab.studies.staleness import curves, staleness
from lab.studies.staleness.records import FinishedCell, StageResults, StudyResults, pooled, spread
from lab.studies.staleness.report import table, text
from lab.studies.staleness.staleness import Plan, Stage, Study, best, grid, searched
from lab.studies.trainings import Cell, Figures, scenario, train
from peers.commands.journals import drawing
from swarm.core.delays import draw
from swarm.events import Counted, Evaluated, Trained
from swarm.types import PeerId

DOCS = ROOT / "docs" / "staleness"
TINY = Plan(
    (Stage("core", "delay", (0, 64), ("gepo", "grpo"), "toy"),),
    seeds=(1,),
    search=(101,),
    table=10,
    table_rates=(0.1, 0.2),
)


def cell(method: str = "gepo", delay: int = 64, seed: int = 1, lr: float = 0.1, **others: object) -> Cell:
    made = {"domain": "toy", "versions": 10, "defined": defined([method]), **others}
    return Cell(method=method, delay=delay, seed=seed, lr=lr, **made)  # type: ignore[arg-type]


def row(auc: float, last: float = 0.5) -> Row:
    zeros = dict.fromkeys(
        (*trainings.FIGURES, "weight_max", "lag_p95", "admitted", "refused", "reached", "broken"), 0.0
    )
    return {"first": 0.0, "best": 0.8, "last": last, "gap": 0.8 - last, "auc": auc, **zeros, "curve": "0 500"}


def measured_before(cell: Cell) -> Row:
    return row(0.5)


# --- a cell -------------------------------------------------------------------------------------------------


def test_a_cell_gives_the_same_row_twice_and_another_seed_another_one() -> None:
    first = train(cell())
    assert train(cell()) == first
    assert train(cell(seed=2)) != first
    assert first["reached"] == 10 and first["refused"] == 0 and 0 < float(first["lag_versions"]) <= 66


def test_no_delay_is_exactly_on_policy() -> None:
    found = train(cell(delay=0))
    assert found["lag_versions"] == 0 and found["lag_p95"] == 0 and found["reached"] == 10
    assert float(found["kl"]) < 1e-4, "what is left is the rounding of the released weights"


def test_a_late_policy_makes_older_groups_than_a_late_upload() -> None:
    upload, policy = train(cell(versions=15)), train(cell(versions=15, way="policy"))
    assert float(policy["lag_versions"]) > float(upload["lag_versions"]) > 1


def test_a_cell_of_a_method_that_changed_is_another_cell() -> None:
    assert defined(["gspo"]) != defined(["gspo/eps=0.2"])
    assert key(cell()) != key(cell(defined="0" * 8))


@pytest.mark.parametrize("law", list(trainings.LAWS))
def test_all_laws_have_the_papers_median(law: str) -> None:
    rng = random.Random(3)
    delays = sorted(draw(trainings.LAWS[law], rng) for _ in range(20_001))
    assert delays[10_000] == pytest.approx(trainings.MEDIAN, rel=0.03) and delays[-1] <= trainings.LONGEST


@pytest.mark.parametrize("delay", [0, 8, 64, 256])
def test_so_many_versions_pass_within_the_longest_delay(delay: int) -> None:
    made = scenario(cell(delay=delay))
    seconds = made.prices["sample"].seconds
    assert delay == 0 or delay * seconds == pytest.approx(trainings.LONGEST)
    assert made.run.window.versions == (delay + trainings.SLACK if delay else 0)


def test_a_training_that_stopped_stays_what_it_was() -> None:
    figures = Figures()
    figures(Evaluated(at=0.0, peer=PeerId("e"), version=0, accuracy=0.2, tasks=4))
    figures(Evaluated(at=0.0, peer=PeerId("e"), version=10, accuracy=0.6, tasks=4))
    peer, spent = PeerId("l"), dict.fromkeys(("gather", "learn", "average", "step"), 0.0)
    figures(Trained(at=0.0, peer=peer, version=12, groups=1, members=1, metrics={"kl": 0.5}, **spent))
    figures(
        Counted(
            at=0.0,
            peer=peer,
            verdicts={"admit": 3, "stale": 1},
            versions={"2": 19, "9": 1},
            seconds={},
            samplers={},
        )
    )
    found = figures.row(cell(versions=30))
    assert found["curve"] == "200 600 600 600" and found["last"] == 0.6 and found["reached"] == 12
    assert found["auc"] == pytest.approx((0.4 + 0.6 + 0.6) / 3)
    assert (found["admitted"], found["refused"], found["lag_p95"]) == (3, 1, 2) and found["kl"] == 0.5
    assert math.isnan(float(found["ess"])), "a figure that no step had is not a number, and not zero"


def test_a_training_without_an_evaluation_is_a_row_that_says_so(tmp_path: Path) -> None:
    found = Figures().row(cell(versions=20))
    assert found["curve"] == "nan nan nan" and found["reached"] == 0
    assert all(math.isnan(float(found[name])) for name in ("first", "best", "last", "gap", "auc"))
    done = [FinishedCell(cell(seed=seed), found) for seed in (1, 2)]
    one = FinishedCell(cell("grpo"), row(0.5) | {"curve": "0 500 500"})
    section = StageResults("core", "delay", "toy", ("gepo", "grpo"), 9, [*done, one])
    whole = StudyResults("", (1, 2), (101,), 64, done, {}, [section])
    assert "| grpo | **0.800** |" in text(whole, {}) and "nan nan nan" in table(whole)
    assert all(path.exists() for path in curves.draw(whole, tmp_path)["core"])


def test_the_best_is_that_of_what_was_evaluated() -> None:
    figures = Figures()
    figures(Evaluated(at=0.0, peer=PeerId("e"), version=10, accuracy=0.6, tasks=4))
    assert figures.row(cell())["best"] == 0.6


# --- the plan -----------------------------------------------------------------------------------------------


def test_every_method_is_searched_on_the_same_rates_and_seeds() -> None:
    cells = searched(TINY, "toy", ("gepo", "grpo"))
    assert len(cells) == len(set(cells)) == 4
    assert {(c.lr, c.seed) for c in cells if c.method == "gepo"} == {
        (c.lr, c.seed) for c in cells if c.method == "grpo"
    }


def test_the_rate_is_that_of_the_largest_area_and_a_half_searched_method_has_none() -> None:
    cells = searched(TINY, "toy", ("gepo", "grpo"))
    rows = {key(c): row(0.9 if c.lr == 0.2 else 0.4) for c in cells if c.method == "gepo" or c.lr == 0.2}
    assert best(TINY, "toy", ("gepo", "grpo"), rows) == {"gepo": 0.2}


def test_a_training_that_was_never_evaluated_counts_as_nothing_learned() -> None:
    rows = {key(c): row(math.nan if c.lr == 0.2 else 0.1) for c in searched(TINY, "toy", ("gepo",))}
    assert best(TINY, "toy", ("gepo",), rows) == {"gepo": 0.1}


def test_seeds_of_the_search_occur_nowhere_else() -> None:
    for plan in (staleness.full(()), staleness.short(())):
        assert not set(plan.seeds) & set(plan.search)
    assert len(staleness.full(()).seeds) >= 5


def test_whatever_is_done_first_has_all_methods_in_it() -> None:
    plan = staleness.full(())
    stage = plan.stages[0]
    cells = grid(plan, stage, {(label, stage.domain): 1e-3 for label in stage.methods})
    assert len(cells) == len(set(cells)) == len(plan.seeds) * len(stage.values) * len(stage.methods)
    assert Counter(c.method for c in cells[: len(stage.methods)]) == Counter(stage.methods)
    assert {c.seed for c in cells[: len(cells) // len(plan.seeds)]} == {plan.seeds[0]}


def test_a_plan_has_only_methods_that_exist_and_always_gepo() -> None:
    assert staleness.known(("grpo", "no-such", "grpo", "gspo/eps=0.2")) == ("gepo", "grpo", "gspo/eps=0.2")
    assert staleness.known(("my_objectives:MINE",)) == ("gepo", "my_objectives:MINE")


# --- the report ---------------------------------------------------------------------------------------------


def account(**areas: tuple[float, ...]) -> StudyResults:
    done = [
        FinishedCell(cell(method, seed=seed), row(area))
        for method, at in areas.items()
        for seed, area in enumerate(at)
    ]
    section = StageResults("core", "delay", "toy", tuple(areas), 9, done)
    return StudyResults(
        "swarm bench staleness", (0, 1, 2), (101,), 64, done[:1], {("gepo", "toy"): 0.1}, [section]
    )


def test_differences_are_paired_by_seed() -> None:
    shown = text(account(gepo=(0.1, 0.5, 0.9), grpo=(0.2, 0.6, 1.0)), {})
    assert "**+0.100** ± 0.000" in shown, "seeds differ much more than methods, and that drops out"


def test_differences_that_stand_in_spite_of_their_number_are_named() -> None:
    shown = text(account(gepo=(0.1, 0.5, 0.9), grpo=(0.2, 0.6, 1.001), gspo=(0.1, 0.52, 0.88)), {})
    assert "Of 2 comparisons 1 stand at 0.05 after Holm's correction: grpo at 64 (+0.100)." in shown


def test_holms_correction_asks_more_of_the_smallest_the_more_there_are() -> None:
    assert holm([0.04]) == [0] and holm([0.04, 0.9]) == []
    assert holm([0.03, 0.01, 0.02]) == [1, 2, 0], "each step asks for less: 0.05/3, 0.05/2, 0.05"
    assert chance([0.1, 0.1, 0.1]) == 0.0 and chance([0.0, 0.0]) == 1.0 and chance([math.nan, 0.1]) == 1.0


def test_a_rate_at_the_edge_of_its_search_and_the_measured_lag_are_said() -> None:
    shown = text(account(gepo=(0.1, 0.5)), {})
    assert "1 of 1 are at the edge of the grid, a better rate may lie beyond: gepo." in shown
    assert "mean (95 % are below): 64: 0.0 (0)." in shown


def test_what_was_left_out_is_said() -> None:
    shown = text(account(gepo=(0.1, 0.5), grpo=(0.2,)), {})
    assert "core 6 of 9" in shown and "3 of 9 trainings" in shown


def test_a_sections_own_value_comes_from_another_section() -> None:
    one, other = FinishedCell(cell(), row(0.5)), FinishedCell(cell(law="weibull"), row(0.4))
    core, laws = (
        StageResults("core", "delay", "toy", ("gepo",), 1, [one]),
        StageResults("laws", "law", "toy", ("gepo",), 1, [other]),
    )
    both = StudyResults("", (1,), (101,), 64, [], {}, [core, laws])
    assert pooled(both, laws) == [one, other] and pooled(both, core) == [one]


def test_the_table_has_one_line_a_training() -> None:
    lines = list(csv.DictReader(io.StringIO(table(account(gepo=(0.123456, 0.5), grpo=(0.2,))))))
    assert len(lines) == 3 and lines[0]["auc"] == "0.1235" and lines[0]["stage"] == "search"


def test_the_table_has_the_weight_of_the_kl_term_beside_the_distance_that_was_measured() -> None:
    one = FinishedCell(cell(kl=staleness.PAPER_KL), row(0.5) | {"kl": 0.1673})
    other = FinishedCell(cell(), row(0.5) | {"kl": 0.0})
    section = StageResults("kl", "kl", "toy", ("gepo",), 2, [one, other])
    lines = list(csv.DictReader(io.StringIO(table(StudyResults("", (1,), (101,), 64, [], {}, [section])))))
    assert [(line["kl_weight"], line["kl"]) for line in lines] == [("0.005", "0.1673"), ("0", "0")]


def test_the_table_that_ships_has_the_columns_of_todays() -> None:
    ours = csv.reader(io.StringIO(table(account(gepo=(0.1,)))))
    shipped = list(csv.DictReader((DOCS / "cells.csv").read_text().splitlines()))
    assert list(shipped[0]) == next(ours)
    assert {(line["stage"] == "kl", line["kl_weight"]) for line in shipped} == {(True, "0.005"), (False, "0")}


def test_a_count_has_all_its_digits() -> None:
    one = FinishedCell(cell(), row(0.5) | {"refused": 12345})
    section = StageResults("core", "delay", "toy", ("gepo",), 1, [one])
    assert ",12345," in table(StudyResults("", (1,), (101,), 64, [], {}, [section]))


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.floats(-10, 10))
def test_an_interval_moves_with_its_values(values: list[float], shift: float) -> None:
    plain, moved = spread(values), spread([value + shift for value in values])
    assert plain.half >= 0 and moved.mean == pytest.approx(plain.mean + shift, abs=1e-9)
    assert moved.half == pytest.approx(plain.half, rel=1e-6, abs=1e-9)


# --- the pictures -------------------------------------------------------------------------------------------


def heat_map(
    monkeypatch: pytest.MonkeyPatch, done: list[FinishedCell]
) -> tuple[list[str], list[list[float]]]:
    """Methods in their order, and the squares."""
    drawn: list[tuple[list[str], list[list[float]]]] = []
    monkeypatch.setattr(
        curves, "heat", lambda path, title, rows, columns, values: drawn.append((rows, values))
    )
    methods = tuple(dict.fromkeys(one.cell.method for one in done))
    curves._all(StageResults("all", "delay", "toy", methods, 9, done), done, Path("heat.png"))
    return drawn[0]


def test_what_was_not_trained_is_no_bad_result(monkeypatch: pytest.MonkeyPatch) -> None:
    gepo = [FinishedCell(cell("gepo", delay), row(0.5)) for delay in (0, 64)]
    never = FinishedCell(cell("gspo", 0), row(math.nan))
    methods, squares = heat_map(monkeypatch, [*gepo, never, FinishedCell(cell("grpo", 0), row(0.75))])
    assert methods == ["grpo", "gepo", "gspo"]
    assert squares[0][0] == 0.25 and squares[1] == [0.5, 0.5]
    assert all(math.isnan(square) for square in (squares[0][1], *squares[2]))


def test_a_square_without_a_number_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(heat, "save", lambda figure, path: figures.append(figure) or path)
    heat.heat(tmp_path / "heat.png", "", ["a"], ["0", "64"], [[0.25, math.nan]])
    assert [text.get_text() for text in figures[0].axes[0].texts] == ["0.25"]


def test_a_picture_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(path: Path, *content: bytes) -> None:
        raise KeyboardInterrupt

    panel = drawing.Panel("", "", "", [drawing.Curve("gepo", (0.0, 1.0), (0.0, 1.0))])
    for name in ("a.png", "a.svg"):
        before = drawing.lines(tmp_path / name, [panel]).read_bytes()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(drawing, "write_durably", stopped)
            drawing.lines(tmp_path / name, [panel, panel])
        assert (tmp_path / name).read_bytes() == before


# --- the study ----------------------------------------------------------------------------------------------


def run(out: Path, plan: Plan = TINY, minutes: float = 0.0) -> dict[str, bytes]:
    """What a study wrote, but for its ledger."""
    study = Study(plan, out, minutes)
    for stage in plan.stages:
        study.stage(stage)
    return {file.name: file.read_bytes() for file in sorted(out.iterdir()) if file.suffix != ".jsonl"}


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_an_interrupted_study_ends_at_the_same_bytes(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    assert set(whole) == {"cells.csv", "report.md", "curves-core.png", "delay-core.png", "weights-core.png"}
    ledger = tmp_path / "whole" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    assert len(lines) == 8
    half = tmp_path / "half" / "ledger.jsonl"
    half.parent.mkdir()
    half.write_bytes(b"".join(lines[:5]) + lines[5][:40])
    assert run(tmp_path / "half") == whole
    assert half.read_bytes().startswith(b"".join(lines[:5])), "what was done is not done again"


def test_an_incomplete_search_counts_once_whatever_stages_follow(tmp_path: Path) -> None:
    few = ("gepo", "grpo")
    later = Stage("kl", "kl", (staleness.PAPER_KL,), few, "toy")
    plan = TINY._replace(stages=(*TINY.stages, later))
    found = searched(plan, "toy", few)[:3]
    complete(found, measured_before, tmp_path / "ledger.jsonl", lambda text: None, jobs=1)
    report = run(tmp_path, plan, minutes=1e-9)["report.md"]
    assert b"after 3 on" in report


def test_a_study_out_of_minutes_reports_what_it_has(tmp_path: Path) -> None:
    report = run(tmp_path, minutes=1e-9)["report.md"]
    assert b"Left out, for want of time: core 4 of 4." in report


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("domain", ["digit-sums", "sorting", "brackets"])
def test_the_model_learns_on_the_virtual_clock_and_the_same_twice(domain: str) -> None:
    few = cell("gepo", domain=domain, lr=1e-3, versions=10)
    first = train(few)
    assert first["reached"] == 10 and 0.1 < float(first["first"]) < 0.9 and float(first["lag_versions"]) > 0
    assert train(few) == first
