"""`swarm bench --compare`: what got worse beyond noise, of two tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab import bench
from lab.figures import comparison, table
from lab.figures.table import Conditions, Figure, Gap, Line, Results
from lab.rows import faults, groups, memory
from lab.rows.simulated import busy
from lab.swarms.fault_trials import Report
from peers.errors import WrongUsage
from swarm.core.group_accounts import JournalAudit

QUIET, BUSY = (Conditions(cores=2, load=load, seconds=9.0) for load in (0.1, 3.0))
STEADY = (99.0, 100.0, 101.0)


def figure(value: float, unit: str = "groups/s", **fields: object) -> Figure:
    return Figure(**({"row": "groups", "what": "admitted", "value": value, "unit": unit} | fields))


def results(*lines: Line, machine: Conditions = QUIET) -> Results:
    return Results(machine=machine, figures=list(lines))


def worse(before: Figure, after: Figure, machine: Conditions = QUIET) -> bool:
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
        ("s", 1.09, False),
        ("of the rate without it", 5.0, False),
        ("of the rate without it", 0.5, True),
        ("kB/s", 1.2, True),
        ("MiB PSS", 1.2, True),
        ("groups", 0.8, True),
        ("of wall time", 0.8, True),
        ("tokens/s", 0.8, True),
        ("% of bf16", 1.2, True),
        ("%", 1.2, False),
        ("%", 0.8, False),
    ],
)
def test_the_unit_says_which_way_is_worse(unit: str, times: float, is_worse: bool) -> None:
    assert worse(turned(1.0, unit), turned(times, unit)) is is_worse


def busy_row(monkeypatch: pytest.MonkeyPatch, overlap: float, turns: float) -> list[Figure]:
    def played(with_overlap: bool, churn: bool, minutes: float) -> busy.Played:
        return busy.Played(
            minutes, overlap if with_overlap else turns, 100.0, sampled={"aa"}, states={"gathering": 1.0}
        )

    monkeypatch.setattr(busy, "played", played)
    return busy.measure(lambda _: None)


def test_learners_that_compute_less_of_their_time_are_worse_and_those_that_compute_more_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    much, little = (results(*busy_row(monkeypatch, share, 95.0)) for share in (90.0, 30.0))
    assert any("of their time" in line.unit for line in much.figures)
    assert comparison.worse(comparison.changes(much, little))
    assert not comparison.worse(comparison.changes(little, much))


def test_the_unit_of_today_says_which_way_is_worse_of_a_table_of_earlier() -> None:
    old = figure(90.0, "% of their time, with overlap", against="without", other=95.0)
    assert worse(old, figure(30.0, "% of their time", against="without", other=95.0))
    assert not worse(figure(90.0, "s"), figure(9000.0, "MiB"))


def test_what_falls_to_nothing_is_worse_whoever_uses_the_machine() -> None:
    for machine in (QUIET, BUSY):
        assert worse(
            figure(20.0, "tokens/s", against="asked", other=20.0),
            figure(0.0, "tokens/s", against="asked", other=20.0),
            machine,
        )
        assert worse(figure(20.0), figure(0.0), machine)
        assert not worse(figure(0.0), figure(20.0), machine)
    assert worse(figure(0.8, "groups"), figure(-0.2, "groups"))


def test_what_should_not_be_and_begins_is_worse() -> None:
    assert worse(figure(0.0, "MiB"), figure(3.0, "MiB"))
    assert not worse(figure(0.0, "MiB"), figure(3.0, "MiB"), BUSY)
    assert not worse(figure(3.0, "MiB"), figure(0.0, "MiB"))


def faults_row(found: Report) -> list[Figure]:
    return list(faults._figures(found, faults.Plan()))


def test_a_swarm_that_stands_still_and_loses_groups_is_worse_than_one_that_does_not() -> None:
    lost = JournalAudit(9, 5, Counter(), 2, ("aa",), {"bb": (3, 4)}, 7, (), ())
    fine = JournalAudit(9, 9, Counter(), 0, (), {}, 7, (), ())
    bad = Report(groups=lost, stuck="no version", left=["p2pd 7"], ended=["seed"], differing={7: {"a", "b"}})
    old, new = faults_row(Report(groups=fine)), faults_row(bad)
    found = comparison.worse(comparison.changes(results(*old), results(*new, machine=BUSY)))
    assert {each.what for each in found} == {
        "swarms stuck",
        "processes left",
        "peers that ended by themselves",
        "versions with two digests at the end",
        "groups trained once",
        "groups lost",
        "groups trained twice",
    } and str(found[0]).endswith("0 -> 1 (too many), there was none")
    assert not comparison.worse(comparison.changes(results(*new), results(*old)))


def test_a_figure_that_its_row_no_longer_has_is_worse_and_says_so() -> None:
    old = results(figure(50.0), figure(9.0, "s", what="admitted, 0.8 KiB a group"))
    (gone,) = comparison.worse(comparison.changes(old, results(figure(50.0))))
    assert (gone.what, gone.kind) == ("admitted, 0.8 KiB a group", "gone")
    assert "9 before, now its row has no such figure, or gives it another name" in str(gone)


class Senders:
    """A partner that seals frames of `size` bytes and has all of them admitted."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0.0

    def tell(self, **_: object) -> None: ...

    def cpu(self) -> float:
        self.used += 1.0
        return self.used


def groups_row(size: int, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    def ask_all(
        partners: Sequence[Senders], questions: Sequence[dict[str, object]]
    ) -> list[dict[str, object]]:
        sent = 100 * int(questions[0].get("repeat", 1))
        return [{"frames": 100, "bytes": 100 * one.size, "admitted": sent, "refused": []} for one in partners]

    monkeypatch.setattr(groups, "ask_all", ask_all)
    ways = [way for way in groups.REPEAT if way != "zmq"]
    senders = Senders(size)
    return list(groups._figures(senders, [senders, senders], ways, 1, 100, 0, 3))


def test_groups_of_other_bytes_do_not_rename_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (groups_row(size, monkeypatch) for size in (860, 890))
    assert [one.what for one in small] == [one.what for one in large]
    assert "0.9 KiB a group" in large[0].note


def test_turns_that_scatter_explain_more() -> None:
    assert worse(turned(1.0, "s"), turned(1.4, "s"))
    assert not worse(turned(1.0, "s", 0.3), turned(1.4, "s", 0.3))


def test_two_of_three_turns_that_are_alike_do_not_hide_the_third() -> None:
    assert not worse(figure(0.52, "s", turns=(0.5, 0.52, 0.6)), figure(0.74, "s", turns=(0.22, 0.74, 0.76)))


def test_a_figure_that_was_measured_once_has_to_be_half_as_bad_again() -> None:
    assert not worse(figure(100.0, "MiB PSS"), figure(140.0, "MiB PSS"))
    assert worse(figure(100.0, "MiB PSS"), figure(160.0, "MiB PSS"))


def test_where_others_used_the_machine_ratios_alone_are_judged() -> None:
    assert not worse(turned(1.0, "s"), turned(9.0, "s"), BUSY)
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
    for strange in (b"{}", b'{"\xff": 1}'):
        path.write_bytes(strange)
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
    for value, code in ((100.0, bench.DONE), (10.0, bench.WORSE)):
        now = figure(value, turns=STEADY, against="TCP", other=200.0)
        monkeypatch.setattr(groups, "measure", lambda _, now=now: [now])
        assert bench.main([], True, path) == code
    assert "worse: groups: admitted: 0.5 -> 0.05 (ratio), 10.00 times as bad" in capsys.readouterr().err


def test_a_table_of_which_nothing_can_be_compared_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.json"
    monkeypatch.setattr(bench, "measure", lambda name: pytest.fail(f"{name} was measured"))
    for names, lines in (
        ([], [figure(1.0, row="codec")]),
        ([], [Gap(row="memory", why="torch is missing")]),
        ([], []),
        (["memory"], [figure(1.0)]),
    ):
        path.write_text(table.as_json(lines, QUIET))
        with pytest.raises(WrongUsage, match=r"old\.json has no figure of .*nothing can be compared"):
            bench.main(names, True, path)
    assert "no longer has codec" in capsys.readouterr().err


def test_rows_of_the_old_table_that_are_no_more_are_named_and_the_others_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.json"
    path.write_text(table.as_json([figure(1.0, row="codec"), figure(1.0)], QUIET))
    monkeypatch.setattr(groups, "measure", lambda _: [figure(1.0)])
    assert bench.main([], True, path) == bench.DONE
    assert "not compared: `swarm bench` no longer has codec" in capsys.readouterr().err


def test_p95_is_of_the_bad_end_and_a_side_with_more_cores_gains_nothing_by_cpu_seconds() -> None:
    turns = tuple(float(turn) for turn in range(1, 22))
    assert figure(11.0, "s", turns=turns).p95 == 20.0
    assert figure(11.0, "groups/s", turns=turns).p95 == 2.0
    assert figure(11.0, "groups/s", turns=turns[:2]).p95 is None
    two_cores = figure(100.0, other=100.0, cpu=50.0, other_cpu=100.0)
    assert (two_cores.ratio, two_cores.cpu_ratio) == (1.0, 0.5)
