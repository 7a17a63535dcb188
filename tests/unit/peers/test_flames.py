"""Flame graphs: py-spy's stacks and the kernel's CPU seconds, as a picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab import flames
from lab.flames import ProfiledProcess

RAW = """\
process 7:"python -m peers.cli join";thread (7): MainThread;main (peers/cli.py:36);work (a.py:1) 3
process 7:"python -m peers.cli join";thread (7): MainThread;EpollSelector.select (selectors.py:451) 90
process 7:"python -m peers.cli join";process 8:"python -m x";thread (8): MainThread;train (b.py:7) 5
process 7:"python -m peers.cli join";thread (7): MainThread;main (peers/cli.py:36) 1
""".splitlines()


def test_stacks_are_those_of_the_innermost_process_without_threads_that_wait() -> None:
    main = ("MainThread", "main (peers/cli.py)")
    assert flames.read(RAW) == {
        7: {(*main, "work (a.py)"): 3, main: 1},
        8: {("MainThread", "train (b.py)"): 5},
    }


def test_a_process_is_as_wide_as_its_cpu_and_its_stacks_split_that(tmp_path: Path) -> None:
    stacks = flames.read(RAW)
    processes = [
        ProfiledProcess("peers.cli", 4.0, stacks[7]),
        ProfiledProcess("engine", 2.0, stacks[8]),
        ProfiledProcess("p2pd", 2.0, {}),
    ]
    root = flames.tree(processes)
    assert root.seconds == pytest.approx(8.0)
    main = root.calls["peers.cli"].calls["MainThread"].calls["main (peers/cli.py)"]
    assert (main.seconds, main.calls["work (a.py)"].seconds) == pytest.approx((4.0, 3.0))
    picture = ElementTree.parse(flames.draw(tmp_path / "a.svg", "learner", processes, seconds=10.0))
    widths = {
        box[0].text.partition(":")[0]: float(box[1].get("width"))  # type: ignore[union-attr, arg-type]
        for box in picture.iter("{http://www.w3.org/2000/svg}g")
    }
    assert widths["p2pd"] == widths["engine"] == pytest.approx(300.0)
    assert widths["work (a.py)"] == pytest.approx(450.0)
