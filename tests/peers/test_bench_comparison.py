"""`swarm bench --compare`: what got worse beyond noise, of two tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import benchmarks
from benchmarks import comparison, table
from benchmarks.rows import groups, memory
from benchmarks.table import Figure, Gap, Line, Machine, Results
from peers.errors import WrongUsage

QUIET, BUSY = (Machine(cores=2, load=load, seconds=9.0) for load in (0.1, 3.0))
STEADY = (99.0, 100.0, 101.0)


def figure(value: float, unit: str = "groups/s", **fields: object) -> Figure:
    return Figure(**({"row": "groups", "what": "admitted", "value": value, "unit": unit} | fields))


def results(*lines: Line, machine: Machine = QUIET) -> Results:
    return Results(machine=machine, figures=list(lines))


def worse(before: Figure, after: Figure, machine: Machine = QUIET) -> bool:
    return bool(comparison.worse(comparison.changes(results(before), results(after, machine=machine))))


def turned(times: float, unit: str, scatter: float = 0.01) -> Figure:
    turns = tuple(100.0 * times * (1 + scatter * off) for off in (-1, 0, 1))
    return figure(turns[1], unit, turns=turns)


@pytest.mark.parametrize(
    ("unit", "times", "is_worse"),
    [
        ("groups/s", 0.8, True),
        ("groups/s", 1.2, False),
        ("s/round", 1.2, True),
        ("s/round", 0.8, False),
        ("GB of bf16 a CPU second", 0.8, True),
        ("us", 1.09, False),
        ("thousandths of a nat", 5.0, False),
    ],
)
def test_the_unit_says_which_way_is_worse(unit: str, times: float, is_worse: bool) -> None:
    assert worse(turned(1.0, unit), turned(times, unit)) is is_worse


def test_turns_that_scatter_explain_more() -> None:
    assert worse(turned(1.0, "us"), turned(1.4, "us"))
    assert not worse(turned(1.0, "us", 0.3), turned(1.4, "us", 0.3))


def test_two_of_three_turns_that_are_alike_do_not_hide_the_third() -> None:
    assert not worse(figure(0.52, "s", turns=(0.5, 0.52, 0.6)), figure(0.74, "s", turns=(0.22, 0.74, 0.76)))


def test_a_figure_that_was_measured_once_has_to_be_half_as_bad_again() -> None:
    assert not worse(figure(100.0, "MiB PSS"), figure(140.0, "MiB PSS"))
    assert worse(figure(100.0, "MiB PSS"), figure(160.0, "MiB PSS"))


def test_where_others_used_the_machine_ratios_alone_are_judged() -> None:
    assert not worse(turned(1.0, "us"), turned(9.0, "us"), BUSY)
    against = {"against": "bare TCP", "turns": STEADY, "other_turns": STEADY}
    assert worse(figure(50.0, other=100.0, **against), figure(50.0, other=200.0, **against), BUSY)
    assert not worse(figure(50.0, other=100.0, **against), figure(10.0, other=20.0, **against), BUSY)


def test_where_others_used_the_machine_cpu_seconds_are_judged_of_figures_that_have_them() -> None:
    def climb(seconds: float, cpu: float) -> Figure:
        return figure(seconds, "s", against="one process", other=10.0, cpu=cpu, other_cpu=10.0)

    assert not worse(climb(9.0, 30.0), climb(19.0, 29.0), BUSY)
    assert worse(climb(9.0, 30.0), climb(19.0, 29.0))
    assert worse(climb(9.0, 30.0), climb(9.0, 60.0), BUSY)


def test_a_figure_that_stands_against_two_others_is_compared_with_each() -> None:
    def against(name: str, other: float) -> Figure:
        return figure(50.0, against=name, other=other, turns=STEADY, other_turns=STEADY)

    old, new = (results(against("TCP", 100.0), against("ZMQ", zmq)) for zmq in (200.0, 400.0))
    assert [each.before for each in comparison.worse(comparison.changes(old, new))] == [0.25]


def test_a_row_that_can_no_longer_be_measured_is_worse_and_one_that_was_not_asked_for_is_not() -> None:
    old = results(figure(50.0), figure(9.0, "MiB", row="memory", what="seed"))
    found = comparison.changes(old, results(Gap(row="memory", why="it died")))
    assert [(each.row, each.kind) for each in comparison.worse(found)] == [("memory", "gap")]
    assert len(found) == 1


def test_a_table_that_was_printed_is_read_again_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    told = [figure(50.0, other=100.0, turns=STEADY, cpu=3.0), Gap(row="memory", why="no")]
    path.write_text(table.as_json(told, QUIET))
    assert comparison.read(path) == results(*told)
    path.write_text("{}")
    with pytest.raises(WrongUsage, match=r"old\.json"):
        comparison.read(path)
    with pytest.raises(WrongUsage, match=r"no\.json"):
        comparison.read(tmp_path / "no.json")


def test_the_rows_of_the_old_table_are_measured_again_and_what_got_worse_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.json"
    path.write_text(table.as_json([figure(100.0, turns=STEADY, against="TCP", other=200.0)], QUIET))
    monkeypatch.setattr(memory, "measure", lambda _: pytest.fail("it was not in the old table"))
    for value, code in ((100.0, benchmarks.DONE), (10.0, benchmarks.WORSE)):
        now = figure(value, turns=STEADY, against="TCP", other=200.0)
        monkeypatch.setattr(groups, "measure", lambda _, now=now: [now])
        assert benchmarks.main([], True, path) == code
    assert "worse: groups: admitted: 0.5 -> 0.05 (ratio), 10.00 times as bad" in capsys.readouterr().err


def test_p95_is_of_the_bad_end_and_a_side_with_more_cores_gains_nothing_by_cpu_seconds() -> None:
    turns = tuple(float(turn) for turn in range(1, 22))
    assert figure(11.0, "s", turns=turns).p95 == 20.0
    assert figure(11.0, "groups/s", turns=turns).p95 == 2.0
    assert figure(11.0, "groups/s", turns=turns[:2]).p95 is None
    two_cores = figure(100.0, other=100.0, cpu=50.0, other_cpu=100.0)
    assert (two_cores.ratio, two_cores.cpu_ratio) == (1.0, 0.5)
