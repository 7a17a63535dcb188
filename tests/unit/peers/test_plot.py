"""`swarm plot`: curves of runs, read from their journals and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from trained_runs import judged, trained

from peers import cli
from peers.commands.journals import plot
from peers.commands.journals.drawing import Curve, Panel
from peers.errors import WrongUsage
from peers.runtime.watching.run_figures import RunFigures
from swarm.events import Event, SetResult
from swarm.journal import Journal
from swarm.types import Estimate


def journal(folder: Path, *heard: Event) -> Path:
    folder.mkdir(parents=True)
    kept = Journal(folder / "journal.jsonl")
    for event in heard:
        kept(event)
    kept.close()
    return folder


def some(folder: Path) -> Path:
    events = [trained(version, reward=version / 4, kl=0.5, length=8.0) for version in (1, 2, 3)]
    return journal(folder, *events, judged(2, 0.75))


def drawn(monkeypatch: pytest.MonkeyPatch, *paths: Path, axis: str = "version") -> dict[str, list[Curve]]:
    """What is given to be drawn: the curves of each title."""
    panels = list[Panel]()

    def keep(out: Path, those: list[Panel]) -> Path:
        panels.extend(those)
        return out

    monkeypatch.setattr("peers.commands.journals.drawing.lines", keep)
    assert plot.main(paths, axis, Path("runs.png")) == 0
    return {panel.title: list(panel.curves) for panel in panels}


def test_a_run_is_drawn_by_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panels = drawn(monkeypatch, some(tmp_path / "one"))
    assert set(panels) == {"held-out accuracy", "reward", "KL(sampler‖learner)"}, "no lag was told"
    (reward,) = panels["reward"]
    assert (reward.x, reward.y) == ([1.0, 2.0, 3.0], [0.25, 0.5, 0.75])
    (accuracy,) = panels["held-out accuracy"]
    assert (accuracy.x, accuracy.y) == ([2.0], [0.75])


def test_sampled_answers_have_a_panel_for_each_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = {
        "mean@8": Estimate(value=0.25, low=0.2, high=0.3),
        "pass@8": Estimate(value=0.75, low=0.7, high=0.8),
    }
    sets = {"hard": SetResult(accuracy=0.125, tasks=8, sampled=sampled)}
    event = replace(judged(2, 0.5), sampled=sampled, sets=sets)
    panels = drawn(monkeypatch, journal(tmp_path / "one", event))
    names = ["held-out accuracy", "hard, accuracy", "hard, mean@8", "hard, pass@8"]
    assert [*panels] == [*names, "held out, mean@8", "held out, pass@8"]
    assert [panels[title][0].y for title in panels] == [[0.5], [0.125], [0.25], [0.75], [0.25], [0.75]]


def test_over_hours_an_evaluation_stands_where_its_version_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (accuracy,) = drawn(monkeypatch, some(tmp_path / "one"), axis="hours")["held-out accuracy"]
    assert accuracy.x == [pytest.approx(1 / 3600)]


def test_runs_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = drawn(monkeypatch, some(tmp_path / "one"), some(tmp_path / "two"))["reward"]
    assert [Path(curve.label.split("(")[1][:-1]).name for curve in curves] == ["one", "two"]


def test_tokens_are_groups_times_their_completions_times_their_length() -> None:
    figures = RunFigures()
    told = dict(
        one
        for event in (trained(1, groups=4, length=8.0),)
        for one in [*figures.take(event), *figures.rest()]
    )
    by_name = {name: {1: value} for name, value in told[1].items()}
    assert plot.Plotted("demo", by_name, {}, 16).x("tokens") == {0: 0.0, 1: 4 * 16 * 8 / 1e6}
    with pytest.raises(WrongUsage, match="outside of a run's folder"):
        plot.Plotted("demo", by_name, {}, None).x("tokens")


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture_is_written(
    tmp_path: Path, kind: str, begins: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"runs.{kind}"
    assert cli.main(["plot", str(some(tmp_path / "one")), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(begins) and str(out) in capsys.readouterr().err


def test_a_run_that_was_only_judged_is_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (accuracy,) = drawn(monkeypatch, journal(tmp_path / "one", judged(0, 0.5)))["held-out accuracy"]
    assert (accuracy.x, accuracy.y) == ([0.0], [0.5])


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", str(some(tmp_path / "one")), "--out", "runs.gif"]) == 2
    assert "neither a .png nor a .svg" in capsys.readouterr().err
    assert cli.main(["plot", str(tmp_path / "nowhere")]) == 2
