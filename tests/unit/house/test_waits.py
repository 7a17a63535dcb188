"""Tests of real processes: the limit of each is above the sum of the waits that it writes down."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT
from swarm_processes import LONGEST

FILES = [
    path
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if "from swarm_processes import" in path.read_text()
]


def waits(function: ast.AST) -> Iterator[float]:
    """Seconds of each `wait_until(predicate, seconds, why)`."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "wait_until"
        ):
            yield from (float(word.value) for word in node.args[1:2] if isinstance(word, ast.Constant))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_test_of_real_processes_is_ended_in_the_middle_of_its_waits(path: Path) -> None:
    tests = [one for one in ast.parse(path.read_text()).body if isinstance(one, ast.FunctionDef)]
    longer = {one.name: total for one in tests if (total := sum(waits(one))) > LONGEST}
    assert not longer
