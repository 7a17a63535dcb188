"""The table of what one has to know of a checkout: imports are followed wherever they stand."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

from lab import house

SOURCES = {
    "one/__init__.py": "",
    "one/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from one.b import B\nLIMIT = 3\n",
    "one/b.py": "def f():\n    from one import c\nclass B: ...\n",
    "one/c.py": "import one.a\nclass B: ...\n",
    "one/d.py": "from one.a import LIMIT, one\n",
}


def test_imports_of_modules_in_functions_and_for_types_make_a_circle() -> None:
    graph = house.imports({name: ast.parse(text) for name, text in SOURCES.items()})
    assert graph == {
        "one": set(),
        "one.a": {"one.b"},
        "one.b": {"one.c"},
        "one.c": {"one.a"},
        "one.d": {"one.a"},
    }
    assert house.circles(graph) == [{"one.a", "one.b", "one.c"}]


def test_a_checkout_has_a_figure_of_each_kind(tmp_path: Path) -> None:
    (tmp_path / "docs" / "study").mkdir(parents=True)
    texts = SOURCES | {
        "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["one"]\n'
        '[tool.importlinter]\nroot_packages = ["one", "two"]\n',
        **{f"two/m{number}.py": "x = 1\n" for number in range(13)},
        "README.md": "a" * 2000,
        "CHANGELOG.md": "a" * 1000,
        "docs/page.md": "a" * 3000,
        "docs/study/report.md": "a" * 9000,
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for words in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert list(house.figures(tmp_path).values()) == [
        "10",
        "13",
        "1",
        "2; 1",
        "1; 3",
        "2; 2",
        "2, 3, 1",
        "1<br>two 13",
    ]
