"""What README and docs/commands.md say is so: commands parse, all are documented, files and targets exist,
the round's diagram and the learners' votes are those of the code."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest
from places import ROOT

from peers.cli import parser
from peers.errors import WrongUsage
from swarm.core.agreement.electorate import table
from swarm.core.agreement.rounds import diagram

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
INLINE = re.findall(r"`swarm ([a-z]+[^`]*)`", TEXT + TABLE)
BLOCKS = re.findall(r"^swarm ([^#\n]*)", TEXT, re.MULTILINE)
COMMANDS = sorted({*INLINE, *BLOCKS})
README_BYTES = 10_000
"""A README is read in one go; all else has pages of its own."""


def names(of: argparse.ArgumentParser, above: str = "") -> list[str]:
    """All commands, `config show` and the like for those that have commands of their own."""
    found = []
    for action in of._actions:
        for name, inner in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():
            found += names(inner, f"{above}{name} ") or [f"{above}{name}"]
    return found


def test_the_commands_of_the_readme_are_understood() -> None:
    made = parser()
    verbs = {name.split()[0] for name in names(made)} | {"help"}
    for command in COMMANDS:
        words = shlex.split(command)
        if "..." in words or words[0] == "help":
            assert words[0] in verbs, command
            continue
        try:
            made.parse_args(words)
        except (SystemExit, WrongUsage) as refusal:
            pytest.fail(f"swarm {command}: {refusal}")


def test_every_command_is_documented() -> None:
    told = [line.split() for line in INLINE]
    for name in names(parser()):
        words = name.split()
        assert any(line[: len(words)] == words for line in told), name


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len(TEXT.encode()) <= README_BYTES
    assert len(BLOCKS) >= 2


def test_the_diagram_is_drawn_from_the_table() -> None:
    house = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram()}\n```" in house


def test_the_votes_that_are_enough_are_told_as_they_are_counted() -> None:
    assert f"\n{table()}\n" in (ROOT / "docs" / "agreement.md").read_text(encoding="utf-8")


def test_every_file_that_the_readme_names_is_there() -> None:
    quoted = re.findall(r"`((?:swarm|configs|peers|dashboard|tests)/[\w./-]+)`", TEXT + TABLE)
    named = {*quoted, *re.findall(r"configs/[\w./-]+\.toml", TEXT + TABLE)}
    missing = [name for name in named if not (ROOT / name).exists()]
    assert named and not missing


def test_every_make_target_that_the_readme_names_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", TEXT + TABLE))
    assert named and named <= targets


def test_every_page_is_linked_from_the_readme_or_from_a_page_that_is() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r"\(docs/([\w-]+\.md)", TEXT)) == pages
