"""The row `dashboard`: its arithmetic quickly, its parts on real processes and a real browser slowly (and
small)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.figures.table import Figure, Gap, Line, Unmeasured
from lab.rows import dashboard
from lab.swarms import browser


def quiet(_: str) -> None:
    pass


def figures(lines: Iterator[Line]) -> dict[str, Figure]:
    found = list(lines)
    assert not [line for line in found if isinstance(line, Gap)], found
    return {line.what: line for line in found if isinstance(line, Figure)}


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (19, 19), (20, 19), (100, 95), (200, 190)])
def test_a_twentieth_of_the_values_is_above_the_p95(count: int, expected: int) -> None:
    assert dashboard.p95(list(range(count, 0, -1))) == expected


def test_a_part_that_cannot_be_measured_leaves_its_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> Iterator[Figure]:
        yield Figure(row="dashboard", what="early", value=1.0, unit="s")
        raise Unmeasured("there is no chromium")

    def works(*_: object) -> Iterator[Figure]:
        yield Figure(row="dashboard", what="late", value=1.0, unit="s")

    monkeypatch.setattr(dashboard, "_fold", works)
    monkeypatch.setattr(dashboard, "_load", fails)
    monkeypatch.setattr(dashboard, "_live", works)
    lines = list(dashboard.measure(quiet))
    assert [line.what if isinstance(line, Figure) else line.why for line in lines] == [
        "late",
        "early",
        "there is no chromium",
        "late",
    ]


def test_a_missing_browser_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser.shutil, "which", lambda name: None)
    with pytest.raises(Unmeasured, match="make chromium"), browser.chromium():
        pass


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_row_of_the_dashboard_on_small_swarms() -> None:
    found = figures(dashboard.measure(quiet, peers=20, past=30.0, folded=20_000, look=5.0))
    assert len(found) == 9
    assert all(figure.value > 0 for what, figure in found.items() if "long tasks" not in what)
    assert found["event to pixel on a live swarm, p95"].value < 10.0
