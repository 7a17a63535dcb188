"""What the documents say is so: the code of docs/objectives.md runs, its commands are understood; the house
stands as docs/architecture.md draws it; files and links of both and of CONTRIBUTING.md are there."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from places import ROOT

from lab.bench import LONG
from peers.cli import parser
from swarm.learn.objectives import OBJECTIVES, objective
from swarm.learn.trust_region import TRUSTS

DOCS = ROOT / "docs"
HOUSE, _, TREE = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("```tree\n")
GUIDES = [DOCS / "architecture.md", DOCS / "labs.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page not in GUIDES)]
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
    made = parser()
    for command in commands:
        made.parse_args(shlex.split(command.replace(" ...", "")))


def test_the_pages_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", TEXT)
    assert links and not [link for link in links if not (DOCS / link).exists()]


def test_every_method_that_the_page_names_in_a_table_is_one() -> None:
    named = set(re.findall(r"^\| `([a-z0-9_]+)`", TEXT, re.MULTILINE))
    assert named and named <= set(OBJECTIVES)


def named_files(text: str) -> list[str]:
    """Paths of Python files; one without a folder lies in that of the one named before it."""
    found: list[str] = []
    for name in re.findall(r"(?<![\w./])(?:[a-z_]+/)*[a-z_0-9]+\.py\b", text):
        folder = found[-1].rpartition("/")[0] if found and "/" not in name else ""
        found.append(f"{folder}/{name}" if folder else name)
    return found


def test_every_file_that_the_drawing_of_the_house_names_is_there() -> None:
    named = named_files(HOUSE)
    assert len(set(named)) > 40
    assert not [name for name in named if not (ROOT / name).is_file()]


def test_the_layers_of_the_drawing_are_those_of_the_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    drawing = " ".join(HOUSE.split())
    for contract in ("house", "rooms", "library"):
        (layers,) = [each["layers"] for each in contracts if each["id"] == contract]
        assert " -> ".join(layers) in drawing, contract


@cache
def anchors(page: Path) -> set[str]:
    """What links to the headings of a page end with, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def dead_links(page: Path) -> tuple[list[str], list[str]]:
    """All links of a page to files and headings, and those that lead nowhere."""
    links = re.findall(r"\]\(([\w./-]*(?:#[\w-]*)?)\)", page.read_text(encoding="utf-8"))
    return links, [link for link in links if not leads(page, link)]


def leads(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    to = page.parent / name if name else page
    return to.exists() and (not anchor or anchor in anchors(to))


def test_the_links_of_every_page_lead_somewhere() -> None:
    found = {page: dead_links(page) for page in (*GUIDES, *PAGES)}
    assert {str(page.relative_to(ROOT)): dead for page, (_, dead) in found.items() if dead} == {}
    assert all(found[page][0] for page in GUIDES)


def test_the_rows_that_are_measured_by_name_alone_are_those_that_the_page_names() -> None:
    text = " ".join((DOCS / "benchmarks.md").read_text(encoding="utf-8").split())
    (told,) = re.findall(r"measured by name alone \(([^)]*)\)", text)
    assert set(re.findall(r"`([\w-]+)`", told)) == set(LONG)


def test_every_file_that_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:swarm|configs|peers|dashboard|tests|docs|examples)/[\w./-]+)`", text))
    assert len(named) > 15 and not [name for name in named if not (ROOT / name).exists()]


def test_the_joiner_that_docs_join_shows_was_told_all_from_the_first_second_to_the_leave() -> None:
    shown = (DOCS / "join.md").read_text(encoding="utf-8")
    said = (
        "loading the program",
        "dialled",
        "joined run",
        "loading the engine",
        "admitted",
        "leaving:",
        "gave",
    )
    places = [shown.find(words) for words in said]
    assert -1 not in places and places == sorted(places)
    seconds = [float(at) for at in re.findall(r"^ *([0-9.]+) [ >] ", shown, re.MULTILINE)]
    assert len(seconds) > 10 and seconds == sorted(seconds)
