"""The size and complexity of a checkout, as a table in Markdown: a column a checkout.

    python -m lab.house [CHECKOUT...]      without one: this checkout

Only files in git are read, and nothing is imported. The packages of the wheel are those that pyproject.toml
names; lab are the other root packages of the import contracts. All but lab's lines and the folders is of the
wheel's packages. An import counts wherever it stands, in a function and under TYPE_CHECKING too. Docs are the
pages of docs/, without the reports of studies. Not handled here: whether the figures are good.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

CONSTANT = re.compile(r"[A-Z][A-Z0-9_]+")
SHORT = 150
"""Lines: a module below that with one importer could be a part of it."""

FULL = 12
"""Files of a folder, its `__init__.py` apart."""

Graph = Mapping[str, set[str]]
"""Module -> the modules that it imports."""


def main(checkouts: Iterable[str]) -> int:
    roots = [Path(each) for each in checkouts] or [Path(__file__).parents[1]]
    columns = [figures(root) for root in roots]
    print("| |", " | ".join(root.resolve().name for root in roots), "|")
    print("|---|", "--:|" * len(roots), sep="")
    for name in columns[0]:
        print(f"| {name} |", " | ".join(column[name] for column in columns), "|")
    return 0


def figures(root: Path) -> dict[str, str]:
    """Name of a figure -> its value in the checkout at `root`."""
    tools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    wheel = tools["hatch"]["build"]["targets"]["wheel"]["packages"]
    beside = [name for name in tools["importlinter"]["root_packages"] if name not in wheel]
    files = {name: (root / name).read_text(encoding="utf-8") for name in _files(root, wheel + beside)}
    product = {name: text for name, text in files.items() if name.split("/")[0] in wheel}
    trees = {name: ast.parse(text) for name, text in product.items()}
    classes = Counter(_classes(trees.values()))
    graph = imports(trees)
    found = circles(graph)
    lines = {module_of(name): _lines(text) for name, text in product.items()}
    single = [module for module in graph if sum(module in used for used in graph.values()) == 1]
    folders = Counter(
        str(Path(name).parent) for name in files if not name.endswith(("__init__.py", "__main__.py"))
    )
    full = [f"{folder} {count}" for folder, count in sorted(folders.items()) if count > FULL]
    return {
        "lines in the wheel": f"{sum(lines.values()):,}",
        "lines of lab": f"{sum(map(_lines, files.values())) - sum(lines.values()):,}",
        "module constants": f"{sum(map(_constants, trees.values())):,}",
        "classes; names borne by two or more": (
            f"{classes.total()}; {sum(count > 1 for count in classes.values())}"
        ),
        "circles of imports, TYPE_CHECKING included; files in them": f"{len(found)}; {sum(map(len, found))}",
        f"modules with one importer; below {SHORT} lines": (
            f"{len(single)}; {sum(lines[module] < SHORT for module in single)}"
        ),
        "README, docs, CHANGELOG in kB": ", ".join(
            f"{sum((root / name).stat().st_size for name in _files(root, [part], '.md')) / 1000:.0f}"
            for part in ("README.md", ":(glob)docs/*.md", "CHANGELOG.md")
        ),
        f"folders of more than {FULL} files": "<br>".join([str(len(full)), *full]),
    }


def imports(trees: Mapping[str, ast.Module]) -> Graph:
    """Module -> the modules that it imports, among these files. `from package import name` leads to the
    module `package.name` where there is one, and else to the package."""
    modules = {module_of(name): tree for name, tree in trees.items()}
    graph: dict[str, set[str]] = {}
    for module, tree in modules.items():
        named = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                named |= {full if full in modules else node.module for full in whole.values()}
        graph[module] = named & modules.keys() - {module}
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """Groups of modules that all lead to each other."""
    reached = {module: _reached(graph, module) for module in graph}
    found: list[set[str]] = []
    for module, onward in reached.items():
        if module in onward and not any(module in circle for circle in found):
            found.append({other for other in onward if module in reached[other]})
    return found


def _reached(graph: Graph, start: str) -> set[str]:
    seen, left = set[str](), [start]
    while left:
        new = graph[left.pop()] - seen
        seen |= new
        left += new
    return seen


def _files(root: Path, paths: list[str], suffix: str = ".py") -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--", *paths], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [name for name in listed if name.endswith(suffix) and (root / name).is_file()]


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _lines(text: str) -> int:
    return text.count("\n")


def _classes(trees: Iterable[ast.Module]) -> Iterable[str]:
    return (node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _constants(tree: ast.Module) -> int:
    names = set[str]()
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            named = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            names |= {node.id for node in named if CONSTANT.fullmatch(node.id)}
    return len(names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
