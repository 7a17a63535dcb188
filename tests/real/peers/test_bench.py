"""The table of figures: its arithmetic and its shape quickly, its rows on real processes slowly (and
small)."""

import contextlib
import importlib
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from rich.console import Console

from lab import bench
from lab.figures import table
from lab.figures.table import Conditions, Figure, Gap, Unmeasured
from lab.processes.baseline_trl import Count
from lab.rows import (
    accuracy,
    averaging,
    faults,
    groups,
    installed,
    joining,
    memory,
    patches,
    real,
    rounds,
    tokens,
)
from lab.swarms.fault_trials import Report, Trial
from lab.swarms.faults import ProcessFault
from peers import cli
from peers.errors import WrongUsage
from swarm import events
from swarm.core.group_accounts import JournalAudit
from swarm.types import PeerId

MACHINE = Conditions(cores=2, load=0.1, seconds=12.0)


def quiet(_: str) -> None:
    pass


def figure(**fields: object) -> Figure:
    return Figure(**({"row": "groups", "what": "admitted", "value": 50.0, "unit": "groups/s"} | fields))


def shown(lines: list[table.Line], machine: Conditions = MACHINE) -> str:
    out = io.StringIO()
    table.show(lines, machine, Console(file=out, width=200))
    return out.getvalue()


def test_a_ratio_is_the_value_over_the_other_side_and_absent_without_one() -> None:
    assert figure(against="bare TCP", other=200.0).ratio == 0.25
    assert figure().ratio is None
    assert figure(against="bare TCP", other=0.0).ratio is None


def test_the_table_shows_both_sides_and_the_reason_of_a_gap() -> None:
    text = shown([figure(against="bare TCP", other=200.0), Gap(row="memory", why="psutil is not installed")])
    assert all(
        word in text for word in ("bare TCP", "50.0 groups/s", "200", "0.25", "psutil is not installed")
    )


def test_the_table_says_when_others_used_the_machine() -> None:
    assert "compare ratios" not in shown([figure()])
    assert "compare ratios" in shown([figure()], Conditions(cores=2, load=3.0, seconds=1.0))


def test_the_table_says_the_energy_or_that_nothing_tells_it() -> None:
    assert "energy not told here" in shown([figure()])
    assert "123 J" in shown([figure()], Conditions(cores=2, load=0.1, seconds=12.0, joules=123.4))


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12346"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123")]
)
def test_numbers_have_three_digits_that_mean_something(value: float, text: str) -> None:
    assert table.number(value) == text


def test_the_table_says_when_it_was_taken_and_by_which_gpus_and_versions() -> None:
    assert "UTC" not in shown([figure()])
    here = Conditions(
        cores=2,
        load=0.1,
        seconds=12.0,
        began="2026-11-30 01:30",
        gpus=("NVIDIA H200 with driver 580.159.03",),
        packages={"torch": "2.13.0"},
    )
    assert ", NVIDIA H200 with driver 580.159.03, torch 2.13.0, 2026-11-30 01:30 UTC" in shown(
        [figure()], here
    )


def test_gpus_are_those_that_nvidia_smi_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bench._gpus() == ()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA A100-SXM4-80GB, 570.86'\necho 'NVIDIA T4, 570.86'\n")
    program.chmod(0o755)
    assert bench._gpus() == ("NVIDIA A100-SXM4-80GB with driver 570.86", "NVIDIA T4 with driver 570.86")


def test_json_holds_every_figure_with_its_ratio() -> None:
    told = json.loads(table.as_json([figure(other=200.0), Gap(row="join", why="no")], MACHINE))
    assert told["machine"]["cores"] == 2
    assert [line.get("ratio") for line in told["figures"]] == [0.25, None]
    assert told["figures"][1]["why"] == "no"


def test_a_row_that_cannot_be_measured_leaves_its_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> list[table.Line]:
        raise Unmeasured("no sampler came")

    monkeypatch.setattr(memory, "measure", fails)
    monkeypatch.setattr(joining, "measure", lambda _: [figure(row="join")])
    assert bench.main(["memory", "join"], True) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [line["type"] for line in told["figures"]] == ["gap", "figure"]
    assert told["machine"]["packages"]["torch"] and told["machine"]["began"]
    assert "no sampler came" in err and "50.0 groups/s" in err, "the table"
    assert bench.main(["memory"], True) == 3


def test_without_names_the_long_rows_are_left_out_and_help_lists_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[str]()
    monkeypatch.setattr(bench, "measure", lambda name: asked.append(name) or [])
    bench.main([], True)
    assert [name for name in bench.ROWS if name not in asked] == [
        name for name in bench.ROWS if name in bench.LONG
    ]
    monkeypatch.setenv("COLUMNS", "999")  # no name is broken at its hyphen
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["bench", "--help"])
    short, long = capsys.readouterr().out.split("By name alone")
    listed = [set(re.findall(r"[\w-]+", text)) for text in (short, long)]
    assert listed[0] >= set(asked) and listed[1] >= set(bench.LONG)


def test_every_row_has_what_measures_it() -> None:
    for name, where in bench.ROWS.items():
        module, _, function = where.partition(":")
        assert callable(getattr(importlib.import_module(module), function or "measure")), name


def test_every_row_is_measured_by_its_name_though_it_is_nearly_that_of_a_study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "main", lambda names, *_: bench.DONE if len(names) == 1 else 1)
    for name in bench.ROWS:
        assert cli.main(["bench", name]) == bench.DONE, name
    assert cli.main(["bench", "gradiend", "--quick"]) == WrongUsage.code
    assert "did you mean gradient?" in capsys.readouterr().err


def test_an_unknown_row_is_a_usage_error_that_names_the_known_ones() -> None:
    with pytest.raises(WrongUsage, match="averaging"):
        bench.main(["averages"], False)
    assert cli.parser().parse_args(["bench", "groups", "--json"]).names == ["groups"]


def test_time_in_a_state_is_cut_at_both_ends_of_the_window() -> None:
    moves = [(1.0, "gathering"), (4.0, "learning"), (5.0, "gathering")]
    mine = [events.Moved(at=at, peer=PeerId("a"), version=1, state=state, cause="") for at, state in moves]
    assert tokens._states(mine, 2.0, 8.0) == {"gathering": 2.0 + 3.0, "learning": 1.0}


def test_steps_of_the_warm_up_are_not_counted() -> None:
    count = Count(warm=1, seconds=3600.0)
    for tokens_ in (100, 10, 20):
        count.sampled(tokens_, 0.5)
        count.stepped()
    assert (count.tokens, count.versions) == (30, 2)


def test_faults_of_a_kind_have_a_middle_value_and_a_rare_one() -> None:
    killed = [
        Trial(ProcessFault("kill", f"learner-{number}", "peer"), 10.0, 10.0, 4, next_version, full)
        for number, next_version, full in ((1, 1.0, 20.0), (2, 3.0, None))
    ]
    cut = Trial(ProcessFault("part", "learner-1", "line", 5.0, ("sampler-1",)), 50.0, 55.0, 9, 0.5, 2.0)
    lines = list(faults._figures(Report([*killed, cut], ended=["seed ended"]), faults.Plan(seed=3)))
    said = {line.what: (line.value, line.note) for line in lines}
    assert said["faults"] == (3, "seed 3")
    assert said["swarms stuck"][0] == 0
    assert said["peers that ended by themselves"] == (1, "seed ended")
    assert said["kill -9 of a learner: to the next version"] == (2.0, "p99 3.0 s, 2 of 2")
    assert said["kill -9 of a learner: to full strength"] == (20.0, "p99 20.0 s, 1 of 2")
    assert said["two peers cut off for 5 s: to full strength"][0] == 2.0


def test_groups_of_a_swarm_under_faults_are_counted_by_their_audit() -> None:
    found = JournalAudit(9, 5, Counter(expired=1), 2, ("aa",), {"bb": (3, 4)}, 7, (), ())
    said = {line.what: line for line in faults._figures(Report(groups=found), faults.Plan())}
    once = said["groups trained once"]
    assert (once.value, once.other, once.note) == (5, 9, "2 wait, 1 expired")
    assert (said["groups lost"].value, said["groups lost"].note) == (1, "aa; full disks took no journal")
    assert said["groups trained twice"].value == 1


def test_a_swarm_that_stood_still_says_why() -> None:
    lines = list(faults._figures(Report(stuck="waited in vain\n--- seed"), faults.Plan()))
    assert [(line.value, lines[0].note) for line in lines if line.what == "swarms stuck"] == [
        (1.0, "seed 1; waited in vain")
    ]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_groups_are_admitted_over_real_streams_slower_than_over_a_bare_socket() -> None:
    lines = groups.measure(quiet, senders=(2,), sizes={0: 4000}, passes=1)
    figures = {(line.what.split(",")[0], line.against): line for line in lines if isinstance(line, Figure)}
    admitted = figures["admitted", "bare TCP"]
    assert 0 < admitted.value < admitted.other and admitted.cpu_ratio < 1
    assert figures["acknowledged only", "bare TCP"].value > 0
    if find_spec("zmq"):
        assert figures["admitted", "ZMQ push/pull"].other > admitted.value
    else:
        assert any(isinstance(line, Gap) and "pyzmq" in line.why for line in lines)


class FakeKind(averaging.LearnerKind):
    """Each round takes `seconds`, the first one ten times as long, and twice that of CPU."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds, self.rounds, self.used, self.lost = name, seconds, 0, 0.0, 0

    def start(self, _: object) -> NoReturn:
        pytest.fail("a fake starts no member")

    @contextlib.contextmanager
    def opened(self, numel: int, count: int) -> Iterator[None]:
        yield

    def round(self) -> float:
        self.rounds += 1
        took = self.seconds * (10 if self.rounds == 1 else 1)
        self.used += 2 * took
        return took

    def cpu(self) -> float:
        return self.used


def test_a_round_has_its_seconds_and_its_cpu_seconds_on_both_sides_without_the_first() -> None:
    kinds = [FakeKind("ours", 0.5), FakeKind("bare hivemind", 1.0), FakeKind("plain TCP", 0.25)]
    hivemind, tcp = averaging._compare(quiet, "averaging", kinds, 2, 1_000_000, 3)
    assert (hivemind.value, hivemind.other, len(hivemind.turns)) == (0.5, 1.0, 3)
    assert (hivemind.cpu, hivemind.other_cpu, hivemind.cpu_ratio) == pytest.approx((1.0, 2.0, 0.5))
    assert (tcp.against, tcp.other, tcp.cpu_ratio) == ("plain TCP", 0.25, pytest.approx(2.0))


class Lossy(averaging.LearnerKind):
    """One member, of which a round takes a second and a CPU second; those numbered in `lost` come to
    nothing."""

    def __init__(self, name: str, lost: tuple[int, ...]) -> None:
        super().__init__(contextlib.ExitStack())
        self.name, self.active, self.lost_rounds, self.rounds = name, 1, lost, 0

    def start(self, _: object) -> NoReturn:
        pytest.fail("a fake starts no member")

    def cpu(self) -> float:
        return float(self.rounds)

    def questions(self) -> list[dict[str, Any]]:
        self.rounds += 1
        return [{"kind": self}]

    @contextlib.contextmanager
    def opened(self, numel: int, count: int) -> Iterator[None]:
        yield

    def answer(self) -> dict[str, float]:
        return {"members": int(self.rounds not in self.lost_rounds), "mean": 1.0, "seconds": 1.0}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ask_all` of members in this process."""

    def ask_all(_: object, questions: list[dict[str, Any]]) -> list[dict[str, float]]:
        return [question["kind"].answer() for question in questions]

    monkeypatch.setattr(averaging, "ask_all", ask_all)


def test_lost_rounds_are_charged_to_no_round_that_counts(answers: None) -> None:
    kinds = [Lossy("ours", ()), Lossy("bare hivemind", (2, 3, 5))]
    (hivemind,) = averaging._compare(quiet, "averaging", kinds, 1, 1_000_000, 3)
    assert hivemind.cpu_ratio == pytest.approx(1.0) and "rounds repeated: 0, 3" in hivemind.note
    assert kinds[1].rounds == 7


def test_rounds_that_go_on_failing_are_not_measured(answers: None) -> None:
    with pytest.raises(Unmeasured, match=r"3 rounds of ours in a row failed, the last with .*'members': 0"):
        averaging._taken(Lossy("ours", (1, 2, 3)))


def test_a_package_of_two_spellings_counts_once_and_its_extras_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = {
        "server": ["typing_extensions", "Web.Kit"],
        "client": ["web-kit[fast]>=1", "Typing-Extensions", "absent; python_version < '3'"],
        "web-kit": ["speedups; extra == 'fast'", "docs; extra == 'doc'"],
        "typing-extensions": [],
        "speedups": ["web_kit[fast]"],
    }

    def distribution(name: str) -> SimpleNamespace:
        if name not in needs:
            raise PackageNotFoundError(name)
        return SimpleNamespace(requires=needs[name])

    monkeypatch.setattr(installed, "distribution", distribution)
    for asked in (["server", "client"], ["client", "server"]):
        assert set(installed.closure(asked)) == set(needs)
    with pytest.raises(Unmeasured, match="missing is not installed"):
        installed.closure(["missing"])


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_round_of_ours_one_of_bare_hivemind_and_one_of_plain_tcp_have_the_right_mean() -> None:
    lines = averaging.measure(quiet, sizes=(10_001,), members=(2, 3), rounds=1)
    assert [line.against for line in lines] == ["bare hivemind", "plain TCP"] * 2
    assert all(line.value > 0 and line.other for line in lines)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_join_says_something_has_joined_and_is_of_use_in_this_order() -> None:
    line, joined, accepted, again, joined_again, mostly_silent = joining.measure(quiet, times=1)
    assert 0 < line.value < joined.value < accepted.value
    assert 0 < joined_again.value < again.value
    assert mostly_silent.other == joined.value


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_swarm_and_one_process_train_on_tokens() -> None:
    lines = tokens.measure(quiet, seconds=3.0, sizes=((1, 1),), reference=False)
    rate, share, cost = [line for line in lines if isinstance(line, Figure)]
    assert rate.value > 0
    assert rate.ratio is not None and cost.ratio is not None
    assert 0 < share.value < 1


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_swarm_and_one_process_come_to_an_accuracy() -> None:
    (figure,) = accuracy.measure(quiet, target=0.4, sizes=((1, 1),), reference=False)
    assert figure.value > 0 and figure.other > 0 and figure.cpu > 0 and figure.other_cpu > 0


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_swarm_and_trl_come_to_an_accuracy_with_a_pretrained_model() -> None:
    pytest.importorskip("trl", reason="TRL is not installed: `make .venv/.bench`")
    (figure,) = real.measure(quiet, target=0.4)
    assert figure.value > 0 and figure.other > 0 and figure.cpu > 0 and figure.other_cpu > 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_every_role_is_weighed() -> None:
    weights = {line.what: line.value for line in memory.measure(quiet, versions=1)}
    roles = {"seed", "learner", "sampler", "evaluator"}
    assert weights.keys() == roles | {f"{role}, at most" for role in roles}
    assert all(50 < weights[role] <= weights[f"{role}, at most"] < 2000 for role in roles)


def test_the_peak_memory_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    held = b"x" * (300 << 20)
    program = "from swarm.processes.allocation import resident; print(resident()[1])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < len(held)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_patch_is_about_half_of_what_others_send() -> None:
    lines = patches.measure(quiet, hidden=192, layers=2, steps=12, versions=4)
    *sizes, encoding, applying, composed = lines
    assert [line.what for line in sizes] == [f"a patch at lr {rate:g}" for rate in patches.RATES]
    assert all(line.ratio is not None and line.ratio < 0.55 for line in sizes)
    assert composed.ratio is not None and composed.ratio < 0.8
    assert encoding.value > 0 and applying.value > 0


def test_a_round_with_a_slow_line_is_over_sooner_than_with_equal_shares() -> None:
    four, two = (rounds._simulated([5.0, *[20.0] * others], 250_000) for others in (3, 1))
    assert four.ratio == pytest.approx(2 / 3, rel=0.01)
    assert two.ratio == pytest.approx(1.0, rel=0.01)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_real_learners_find_out_whose_line_is_slow() -> None:
    try:
        figure = rounds._real(quiet, [5.0, 20.0, 20.0], 2_000_000, 3)
    except Unmeasured as why:
        pytest.skip(str(why))
    assert figure.ratio is not None and figure.ratio < 0.95
