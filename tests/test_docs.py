"""What docs/objectives.md says is so: its code runs, its commands are understood, its links lead
somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.cli import parser
from swarm.learn.objectives import OBJECTIVES, objective
from swarm.learn.trust_region import TRUSTS

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "objectives.md").read_text(encoding="utf-8")


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the page's code goes; what it adds to the house is gone afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    known = dict(TRUSTS)
    yield tmp_path / "my_objectives.py"
    sys.modules.pop("my_objectives", None)
    TRUSTS.clear()
    TRUSTS.update(known)


def test_an_objective_of_ones_own_is_what_the_page_shows(own_module: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 20
    own_module.write_text(code)
    assert objective("my_objectives:MINE").trust.kind == "root"


def test_the_pages_commands_are_understood() -> None:
    commands = re.findall(r"`swarm ([a-z]+ [^`]*)`", TEXT)
    assert len(commands) > 5
    for command in commands:
        parser().parse_args(shlex.split(command.replace(" ...", "")))


def test_the_pages_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", TEXT)
    assert links and not [link for link in links if not (DOCS / link).exists()]


def test_every_method_that_the_page_names_in_a_table_is_one() -> None:
    named = set(re.findall(r"^\| `([a-z0-9_]+)`", TEXT, re.MULTILINE))
    assert named and named <= set(OBJECTIVES)
