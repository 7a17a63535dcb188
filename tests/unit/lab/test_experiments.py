"""A study's cells: done once, written down at once, found again."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from small_cells import Count, Square, area, counted

from lab import command
from lab.studies.experiments import complete, key, measured, read
from lab.studies.liars import adversaries, cheating, honest
from swarm.types import Struct


def hush(text: str) -> None: ...


def test_rows_come_in_the_order_of_the_cells_and_each_is_done_once(tmp_path: Path) -> None:
    ledger, said = tmp_path / "a" / "ledger.jsonl", []
    cells = [Square(side=3.0), Square(side=2.0), Square(side=3.0)]
    rows = complete(cells, area, ledger, said.append)
    assert [row and row["area"] for row in rows] == [9.0, 4.0, 9.0]
    assert len(ledger.read_bytes().splitlines()) == 2 and "2 of 2 cells" in said[-1]
    before = ledger.read_bytes()
    assert complete(cells, area, ledger, hush) == rows and ledger.read_bytes() == before


@pytest.mark.nightly
def test_a_torn_line_is_done_again_and_the_others_are_not(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    cells = [Square(side=float(side)) for side in range(1, 4)]
    complete(cells, area, ledger, hush, jobs=1)
    ledger.write_bytes(ledger.read_bytes()[:-9])
    assert set(read(ledger)) == {key(cell) for cell in cells[:2]}
    assert [row and row["area"] for row in complete(cells, area, ledger, hush)] == [1.0, 4.0, 9.0]
    assert len(read(ledger)) == 3


def test_a_line_that_a_disk_changed_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'{"key": "\xff", "row": {}}\n')
    assert read(tmp_path / "ledger.jsonl") == {}


def test_what_is_not_a_number_comes_back_as_that(tmp_path: Path) -> None:
    complete([Square(side=0.0)], area, tmp_path / "ledger.jsonl", hush)
    (row,) = complete([Square(side=0.0)], area, tmp_path / "ledger.jsonl", hush)
    assert row is not None and math.isnan(float(row["area"])) and row["who"] == "me"


def test_a_resumed_study_ends_at_the_same_bytes(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    rows = [row for _, row in measured([Count(upto=1)], counted, out, 0)]
    first = out.read_bytes()
    again = [row for _, row in measured([Count(upto=1)], counted, out, 0)]
    assert (
        again == rows
        and out.read_bytes() == first == b"upto,n,whole,most,least,half,by\n1,12345,2.0,inf,-inf,0.5,\n"
    )
    assert [type(value) for value in again[0].values()] == [int, float, float, float, float, str]


@pytest.mark.parametrize(
    ("cell", "study"),
    [(adversaries.Attacked, adversaries), (cheating.Cheated, cheating), (honest.Mixed, honest)],
)
def test_no_figure_of_a_study_stands_in_the_column_of_a_setting(
    cell: type[Struct], study: ModuleType
) -> None:
    assert not {*cell.__struct_fields__} & {*study.FIGURES}


def test_cells_beyond_the_budget_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    cells = [Square(side=float(side)) for side in range(1, 6)]
    rows = complete(cells, area, tmp_path / "ledger.jsonl", hush, jobs=1, budget=1e-9)
    assert rows[0] == {"area": 1.0, "who": "me"} and rows[1:] == [None] * 4


def test_a_cell_that_raises_ends_the_study_and_keeps_what_is_done(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(ArithmeticError, match="no negative side"):
        complete([Square(side=1.0), Square(side=-1.0), Square(side=2.0)], area, ledger, hush, jobs=1)
    assert key(Square(side=1.0)) in read(ledger)


def test_cells_of_different_kinds_or_values_have_different_keys() -> None:
    class Cube(Struct):
        side: float

    assert len({key(Square(side=1.0)), key(Square(side=2.0)), key(Cube(side=1.0))}) == 3


@pytest.mark.parametrize(("said", "first"), [(None, 1), (0, 0), (7, 7)])
def test_a_first_seed_is_the_one_that_was_named(
    said: int | None, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(
        "lab.studies.staleness.staleness.main",
        lambda quick, out, methods, minutes, first: begun.append(first) or 0,
    )
    assert command.study("staleness", True, tmp_path, [], 0.0, said) == 0
    assert begun == [first]


@pytest.mark.parametrize(
    ("minutes", "given"),
    [(10.0, [("learners", 10.0), ("samplers", 6.0), ("honest", 2.0)]), (3.0, [("learners", 3.0)])],
)
def test_the_parts_of_a_study_share_its_minutes(
    minutes: float, given: list[tuple[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, begun = [0.0], list[tuple[str, float]]()

    def part(name: str) -> Callable[[bool, Path, float], int]:
        def main(quick: bool, out: Path, minutes: float) -> int:
            begun.append((name, minutes))
            now[0] += 240.0
            return 0

        return main

    monkeypatch.setattr("lab.command.time", SimpleNamespace(monotonic=lambda: now[0]))
    for name, module in (("learners", "adversaries"), ("samplers", "cheating"), ("honest", "honest")):
        monkeypatch.setattr(f"lab.studies.liars.{module}.main", part(name))
    assert command.study("adversaries", True, tmp_path, [], minutes, None) == 0
    assert begun == given


def test_a_study_without_a_limit_gives_its_parts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []
    for module in ("adversaries", "cheating", "honest"):
        monkeypatch.setattr(
            f"lab.studies.liars.{module}.main", lambda quick, out, minutes: begun.append(minutes) or 0
        )
    assert command.study("adversaries", True, tmp_path, [], 0.0, None) == 0
    assert begun == [0.0, 0.0, 0.0]
