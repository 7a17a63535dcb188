"""Peers are not people: messages, help, docstrings and docs do not call them nobody, somebody or whom."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

PEOPLE = re.compile(r"\b(whom|nobody|somebody|everybody)\b", re.IGNORECASE)
MODULES = [path for room in ("swarm", "peers", "dashboard") for path in sorted((ROOT / room).rglob("*.py"))]
SCRIPTS = sorted((ROOT / "dashboard/static").glob("*.js"))
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def texts(path: Path) -> Iterator[str]:
    """Strings and docstrings of a module, a script without its comments, a guide."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py" and PEOPLE.search(content):
        nodes = ast.walk(ast.parse(content))
        yield from (
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
    elif path.suffix == ".js":
        yield re.sub(r"(^|\s)//.*", "", content)
    elif path.suffix == ".md":
        yield content


@pytest.mark.parametrize("files", [MODULES, SCRIPTS, GUIDES], ids=["modules", "scripts", "guides"])
def test_texts_speak_of_peers_as_peers(files: list[Path]) -> None:
    found = [
        (str(path.relative_to(ROOT)), word[0])
        for path in files
        for text in texts(path)
        if (word := PEOPLE.search(text))
    ]
    assert files and found == []
