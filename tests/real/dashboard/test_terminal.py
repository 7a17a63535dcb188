"""The live view and the summary say what the state says, at any width, without markup from names."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from dashboard_story import HOSTILE, heard, story, who
from rich.console import Console, RenderableType

from dashboard.fold.folds import fold
from dashboard.fold.parts.series import Series
from dashboard.fold.state import SwarmState
from dashboard.serve.terminal import SPARKS, render, sparkline, summary
from swarm import events as happened
from swarm.types import Estimate


def shown(renderable: RenderableType, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def told(versions: int) -> SwarmState:
    state = SwarmState()
    for event in story(versions, start=1000.0) if versions else ():
        fold(state, event)
    return state


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_live_view_fits_and_has_every_peer(width: int) -> None:
    state = told(60)
    text = shown(render(state, 1036.0, width), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert all(peer.name[:10] in text for peer in state.peers.values())
    assert "version 60" in text and "2 of 3 samplers" in text and "◌ lost" in text and "reward" in text
    assert text.index("silent") < text.index("●"), "what is wrong comes before the peers"


@pytest.mark.parametrize("width", [24, 30, 40, 47, 48])
def test_a_narrow_terminal_shows_the_state_of_every_peer(width: int) -> None:
    state = told(60)
    text = shown(render(state, 1036.0, width), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert all(peer.name[:3] in text for peer in state.peers.values())
    assert "◌ lost" in text and text.count("● sampling") == 2 and text.count("● learning") == 2
    assert "● serving" in text and "● waiting" in text


def test_an_empty_state_renders() -> None:
    assert "version 0" in shown(render(told(0), 0.0, 80), 80)
    assert "no release was seen" in shown(summary(told(0), 0.0), 80)


def test_the_summary_has_what_a_demo_ends_with() -> None:
    state = told(60)
    text = shown(summary(state, 1036.0, Path("out/model"), Path("out/journal.jsonl")), 120)
    assert "60 released" in text and "1,920 trained" in text and "1,920 admitted" in text
    assert "35.2% -> " in text and "the same weights in all 20 compared versions" in text
    assert "out/model" in text and "out/journal.jsonl" in text
    assert "is done" in text and "was stopped" in shown(summary(state, 1036.0, ended="was stopped"), 120)
    assert f"{state.tally.verdicts['stale']} stale" in text
    bars = [int(line.split()[-1].replace(",", "")) for line in text.splitlines() if "█" in line]
    assert sum(bars) <= 1920 <= sum(bars) + 60, (
        "the histogram holds the trained groups; bins too small for a bar are left"
    )


def test_the_summary_has_a_line_for_each_evaluation_set() -> None:
    state = told(3)
    mean = Estimate(value=0.25, low=0.2, high=0.3)
    sets = {
        "hard": happened.SetResult(accuracy=0.5, tasks=16, sampled={"mean@4": mean}),
        "other": happened.SetResult(accuracy=0.0, tasks=0),
    }
    fold(state, happened.Evaluated(at=1.0, peer=who(3), version=3, accuracy=0.5, tasks=256, sets=sets))
    text = shown(summary(state, 1002.0), 120)
    assert "hard      50.0% (28.0% to 72.0%), mean@4 25.0% (20.0% to 30.0%)" in text
    assert "other     0.0% (0.0% to 100.0%)" in text


def test_a_hostile_name_is_no_markup_and_no_escape() -> None:
    state = told(3)
    fold(state, heard(who(9), 3, 1002.0, name="[red]" + HOSTILE))
    text = shown(render(state, 1002.0, 120), 120)
    assert "[red]<img" in text and "\x1b" not in text and "\u202e" not in text


def test_a_sparkline_rises_with_its_curve_and_keeps_its_width() -> None:
    curve = Series()
    for version in range(500):
        curve.add(version, 0.0, version / 500, 1.0, 1)
    line = sparkline(curve, 40)
    assert (
        len(line) == 40
        and list(line) == sorted(line, key=SPARKS.index)
        and line[0] == SPARKS[0]
        and line[-1] == SPARKS[-1]
    )


def test_the_terminal_imports_no_heavy_library() -> None:
    heavy = {"torch", "hivemind", "fastapi", "numpy", "transformers"}
    script = f"import sys, dashboard.serve.terminal; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
