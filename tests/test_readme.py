"""What the README says is so: its diagram is the table's, its commands exist, its files are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from peers.cli import parser
from swarm.core.agreement.rounds import diagram

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
INLINE = re.findall(r"`swarm ([a-z]+ [^`]*)`", TEXT)
BLOCKS = re.findall(r"^\.venv/bin/swarm ([^#\n]*)", TEXT, re.MULTILINE)
COMMANDS = sorted({*INLINE, *BLOCKS})


def test_the_diagram_is_drawn_from_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in TEXT


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_is_understood(command: str) -> None:
    for line in command.split("| .venv/bin/swarm"):
        parser().parse_args(shlex.split(line))


def test_the_readme_has_commands_to_check() -> None:
    assert len(COMMANDS) > 8


def test_every_file_that_the_readme_names_is_there() -> None:
    quoted = re.findall(r"`((?:swarm|configs|peers|dashboard|tests)/[\w./-]+)`", TEXT)
    named = {*quoted, *re.findall(r"configs/[\w./-]+\.toml", TEXT)}
    missing = [name for name in named if not (ROOT / name).exists()]
    assert named and not missing


def test_every_make_target_that_the_readme_names_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) <= targets
