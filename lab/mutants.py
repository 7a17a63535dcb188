"""Mutants: small wrong changes of the source, each of which a test has to notice.

    python -m lab.mutants [FILE...]     those of a file or a folder; without one: all of lab/mutants.toml

A mutant is a file, a text that occurs once in it, the text that replaces it, and the test that fails then.
The parent process imports third-party packages and no package of this project but lab. It forks for each
mutant. The child imports one module from the changed text and runs pytest until a test fails: first the
mutant's test, then test files, beginning with those that import the module most directly. Tests marked
`nightly`, `gpu` or `vllm` are left out. No source and no bytecode is written. At the end all tests that
failed run once more without a mutant and have to pass. The status is 1 if they do not, if a mutant survives,
or if one no longer applies. Not handled here: a program that a test starts runs the source on the disk.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

from lab import house

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
PACKAGES = ("swarm", "peers", "dashboard", "lab")
THIRD_PARTY = ("hypothesis", "numpy", "torch", "transformers", "hivemind", "safetensors.torch", "fastapi")
"""Imported once, by the parent."""

LEFT_OUT = "not nightly and not gpu and not vllm"
ENDED = "the process ended"


class Mutant(NamedTuple):
    file: str
    old: str
    """Occurs once in the file."""
    new: str
    test: str = ""
    """The name of a test function that fails, without its file; empty if none is known."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    every = load(options.table)
    chosen = [row for row in every if not options.file or row.file.startswith(tuple(options.file))]
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    for name in THIRD_PARTY:
        importlib.import_module(name)
    suite = Suite(ROOT)
    found: dict[Mutant, str] = {}
    for row in chosen:
        if not applies(row, ROOT):
            print(f"no longer applies  {_line(row)}{_elsewhere(row, ROOT)}", flush=True)
            continue
        began = time.monotonic()
        found[row] = failing(row, suite.known(row), options.seconds)
        found[row] = found[row] or failing(row, suite.nearest(row.file)[: options.files], options.seconds)
        fate = "killed  " if found[row] else "SURVIVES"
        print(f"{fate} {time.monotonic() - began:4.0f} s  {_line(row)}  {found[row]}", flush=True)
    tests = sorted(set(found.values()) - {"", ENDED})
    broken = failing(None, tests, len(tests) * options.seconds)
    alive, lost = sum(not test for test in found.values()), len(chosen) - len(found)
    print(f"{len(found) - alive} killed, {alive} survive, {lost} no longer apply")
    if broken:
        print(f"fails without a mutant, too: {broken}")
    if options.write:
        names = {row: test.rpartition("::")[2] for row, test in found.items() if "::" in test}
        dump(options.table, [row._replace(test=names.get(row, row.test)) for row in every])
    return int(bool(alive or lost or broken))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.mutants", description="Play the mutants.")
    parser.add_argument("file", nargs="*", help="only the mutants of this file or folder")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--files", type=int, default=12, help="test files to try for a mutant (12)")
    parser.add_argument("--seconds", type=int, default=60, help="seconds of processor for a mutant (60)")
    parser.add_argument("--write", action="store_true", help="write the tests that failed to the table")
    return parser


def load(table: Path) -> list[Mutant]:
    read = tomllib.loads(table.read_text(encoding="utf-8"))
    return [Mutant(file, **fields) for file, rows in read.items() for fields in rows]


def dump(table: Path, rows: Iterable[Mutant]) -> None:
    """No text may have a single quote: TOML's literal strings have none."""
    blocks = [
        f"[[\"{row.file}\"]]\nold = '{row.old}'\nnew = '{row.new}'\ntest = '{row.test}'\n" for row in rows
    ]
    table.write_text("\n".join(blocks), encoding="utf-8")


def applies(row: Mutant, root: Path) -> bool:
    path = root / row.file
    return path.is_file() and path.read_text(encoding="utf-8").count(row.old) == 1


def _elsewhere(row: Mutant, root: Path) -> str:
    """The files that have the text now."""
    files = (str(path.relative_to(root)) for top in PACKAGES for path in (root / top).rglob("*.py"))
    found = [file for file in files if applies(row._replace(file=file), root)]
    return f"  now in {', '.join(found)}" if found else ""


def _line(row: Mutant) -> str:
    return f"{row.file}: {row.old} -> {row.new}"


class Suite:
    """The test files of a checkout, and which modules they import."""

    def __init__(self, root: Path) -> None:
        words = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "--"]
        listed = subprocess.run([*words, *PACKAGES, "tests"], capture_output=True, text=True, check=True)
        files = [name for name in listed.stdout.splitlines() if name.endswith(".py")]
        self._texts = {name: (root / name).read_text(encoding="utf-8") for name in files}
        self._files = [
            name for name in files if name.startswith("tests/") and Path(name).name.startswith("test_")
        ]

    @cached_property
    def _graph(self) -> house.Graph:
        trees = {name: ast.parse(text) for name, text in self._texts.items()}
        # pytest puts folders of tests on the path: files there are imported by their bare names
        tests = {Path(name).name: tree for name, tree in trees.items() if name.startswith("tests/")}
        return house.imports(trees | tests)

    def known(self, row: Mutant) -> list[str]:
        """The test of a row, wherever it stands now."""
        named = f"def {row.test}("
        return [f"{name}::{row.test}" for name in self._files if row.test and named in self._texts[name]]

    def nearest(self, file: str) -> list[str]:
        """The test files that import a file's module: the most direct first, of these the namesakes, then
        those that import little else."""
        module = house.module_of(file)
        steps = _steps(self._graph, module)
        reached = [name for name in self._files if Path(name).stem in steps]

        def rank(name: str) -> tuple[int, bool, int]:
            stem = Path(name).stem
            return steps[stem], module.rpartition(".")[2] not in stem, len(self._graph[stem])

        return sorted(reached, key=rank)


def _steps(graph: house.Graph, module: str) -> dict[str, int]:
    """Module -> how many imports lead from it to `module`, for those that reach it."""
    importers: dict[str, set[str]] = {}
    for importer, imported in graph.items():
        for name in imported:
            importers.setdefault(name, set()).add(importer)
    steps, new = {module: 0}, {module}
    while new:
        distance = steps[next(iter(new))] + 1
        new = {importer for name in new for importer in importers.get(name, ())} - steps.keys()
        steps |= dict.fromkeys(new, distance)
    return steps


class _Changed(SourceFileLoader):
    """Loads a module from a text that is not on the disk."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class _ChangedFinder(MetaPathFinder):
    def __init__(self, row: Mutant) -> None:
        path = ROOT / row.file
        self._name = house.module_of(row.file)
        text = path.read_text(encoding="utf-8").replace(row.old, row.new)
        self._loader = _Changed(self._name, str(path), text)

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        return spec_from_file_location(name, self._loader.path, loader=self._loader)


class _First:
    """Notes the first test that fails in a run of pytest."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid.partition("[")[0]


def failing(row: Mutant | None, targets: Sequence[str], seconds: int) -> str:
    """The first of these tests that fails in a fork with this mutant, or without one; ENDED if the fork died.
    Empty: none failed, or the fork has used so many seconds of processor."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.write(write, f"{_run(row, targets)}\n".encode())
        os._exit(0)
    os.close(write)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    os.killpg(child, signal.SIGKILL)  # all that its tests left behind
    _, status = os.waitpid(child, 0)
    said = os.read(read, 4096).decode() if select.select([read], [], [], 0)[0] else ""
    os.close(read)
    if said:
        return said.removesuffix("\n")
    return "" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else ENDED


def _run(row: Mutant | None, targets: Sequence[str]) -> str:
    if row is not None:
        sys.meta_path.insert(0, _ChangedFinder(row))
    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-m", LEFT_OUT]
    for target in targets:
        first = _First()
        pytest.main([*options, target], plugins=[first])
        if first.failed:
            return first.failed
    return ""


if __name__ == "__main__":
    sys.exit(main())
