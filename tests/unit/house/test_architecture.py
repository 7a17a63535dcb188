"""The house stands as the design draws it: who imports whom, how light the command is, and that files say
what is there."""

import ast
import fnmatch
import os
import re
import statistics
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grimp
import msgspec
import pytest
from importlinter.application.use_cases import lint_imports
from importlinter.configuration import configure
from places import ROOT
from uncollected import uncollected

from swarm.settings import loading
from swarm.sim import scenario
from swarm.storage.weights import Weights
from swarm.types import Array, Group

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
SCENARIOS = sorted((ROOT / "configs" / "scenarios").glob("*.toml"))
HELP = [
    sys.executable,
    "-c",
    "import sys; sys.argv = ['swarm', '--help']; from peers.cli import main; sys.exit(main())",
]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
TIERS = {"unit", "sim", "real", "nightly"}
PACKAGES = ("swarm", "peers", "dashboard", "lab")
HALF_A_SECOND = 0.5
"""Longer than this and a command feels slow."""


def test_imports_run_one_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    configure()
    kept = lint_imports(config_filename="pyproject.toml", cache_dir=None, no_logo=True)
    assert kept, capsys.readouterr().out


def test_no_import_leads_back_to_where_it_started() -> None:
    """Imports inside functions count: they put a cycle off until the function runs. Those under TYPE_CHECKING
    count, too: modules that need each other's types are one module."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    back = {
        (module, imported): chain
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if (chain := graph.find_shortest_chain(imported, module)) is not None
    }
    assert not back, "\n".join(" -> ".join((module, *chain)) for (module, _), chain in sorted(back.items()))


class Facts(NamedTuple):
    """About a file. Whole trees of all files would be too many objects to keep."""

    path: str
    packaged: bool
    """Whether it is in one of PACKAGES."""
    functions: tuple[tuple[str, int], ...]
    """Name and lines."""
    classes: tuple[tuple[str, bool], ...]
    """Name, and whether it has a constructor of its own, without `*args`."""
    unpacked: tuple[str, ...]
    """Names that are called with an unpacked tuple."""


@cache
@uncollected()
def facts() -> list[Facts]:
    tops = (*PACKAGES, "docs", "tests", "examples")
    return [facts_of(path, top) for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


def facts_of(path: Path, top: str) -> Facts:
    functions, classes, unpacked = list[tuple[str, int]](), list[tuple[str, bool]](), list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, (node.end_lineno or 0) - node.lineno + 1))
        elif isinstance(node, ast.ClassDef):
            classes.append((node.name, builds_itself(node)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            unpacked += [node.func.id] if any(isinstance(each, ast.Starred) for each in node.args) else []
    name = str(path.relative_to(ROOT))
    return Facts(name, top in PACKAGES, tuple(functions), tuple(classes), tuple(unpacked))


def builds_itself(node: ast.ClassDef) -> bool:
    return any(
        isinstance(each, ast.FunctionDef) and each.name == "__init__" and each.args.vararg is None
        for each in node.body
    )


def test_no_class_name_is_borne_twice() -> None:
    """A name means one thing in the packages of the wheel, and lab uses none of their names for another."""
    bearers: dict[str, list[str]] = {}
    for file in facts():
        for name, _ in file.classes if file.packaged else ():
            bearers.setdefault(name, []).append(file.path)
    twice = {
        name: paths
        for name, paths in bearers.items()
        if len(paths) > 1 and not all(path.startswith("lab/") for path in paths)
    }
    assert not twice


LONGEST = 60
"""Lines of a function: a longer one does several things."""

FULL = 12
"""Files of a folder, its `__init__.py` apart: with more of them a reader looks for a room in vain."""


def test_no_function_is_longer_than_a_page() -> None:
    lengths = [(file.path, *function) for file in facts() for function in file.functions]
    assert not [f"{path}: {name}, {lines} lines" for path, name, lines in lengths if lines > LONGEST]


def test_no_folder_has_more_files_than_a_reader_holds() -> None:
    folders = [folder for top in PACKAGES for folder in [ROOT / top, *(ROOT / top).rglob("*/")]]
    files = {
        folder: [path for path in folder.glob("*.py") if not path.name.startswith("__")] for folder in folders
    }
    assert not [str(folder.relative_to(ROOT)) for folder, held in files.items() if len(held) > FULL]


STILL_UNPACKED = {("swarm/net/memory/rounds.py", "Meeting")}
"""(file, class) of calls that hide what a constructor takes."""


def test_no_constructor_is_called_with_an_unpacked_tuple() -> None:
    """Who builds an object names what it takes. Records of fields and constructors with `*args` take tuples
    as they come."""
    files = [file for file in facts() if file.packaged]
    classes = [each for file in files for each in file.classes]
    built = {name for name, itself in classes if itself} - {name for name, itself in classes if not itself}
    unpacked = {(file.path, name) for file in files for name in file.unpacked if name in built}
    assert unpacked == STILL_UNPACKED


def test_a_test_lies_in_its_tier_and_room_and_imports_no_other_test() -> None:
    tests = [path.relative_to(ROOT / "tests") for path in TESTS]
    assert [path for path in tests if len(path.parts) != 3 or path.parts[0] not in TIERS] == []
    names = {path.stem for path in tests}
    assert len(names) == len(tests), "pytest imports a test by its name"
    imported = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(
            r"^ *(?:from|import) (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if name in names
    }
    assert imported == set(), "put what they share into tests/support"


def test_no_role_touches_the_bytes_of_weights() -> None:
    """What a role reads as `data` is an array of a group; the bytes of weights are for whoever decodes or
    sends them."""
    assert isinstance(Weights.data, property)
    arrays = {field.name for field in msgspec.structs.fields(Group) if field.type is Array}
    read = [
        f"{path.name} line {node.lineno}: {ast.unparse(node)}"
        for room in ("sampler", "learner", "intake", "audits")
        for path in sorted((ROOT / "peers" / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "data"
        if not (isinstance(node.value, ast.Attribute) and node.value.attr in arrays)
    ]
    assert not read


def test_help_imports_neither_torch_nor_hivemind() -> None:
    told = (
        "import atexit; atexit.register(lambda: print(*sorted(m for m in sys.modules if '.' not in m),"
        " file=sys.stderr)); "
    )
    code = HELP[2].replace("sys.argv", told + "sys.argv", 1)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.split())
    assert "usage: swarm" in ran.stdout
    assert "peers" in loaded
    assert not loaded & {
        "torch",
        "hivemind",
        "transformers",
        "numpy",
        "fastapi",
        "pydantic",
        "rich",
        "asyncio",
    }


def test_help_answers_in_under_half_a_second() -> None:
    spent = []
    for _ in range(5):
        before = os.times()
        subprocess.run(HELP, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        # Seconds of processor, not of wall: on an idle machine they are the same, on a busy one only these
        # are the program's.
        spent.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    assert statistics.median(spent) < HALF_A_SECOND


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_loads_and_says_whom_it_is_for(path: Path) -> None:
    assert loading.load(path).config.run.name
    assert path.read_text().startswith("# For ")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.name)
def test_every_scenario_loads(path: Path) -> None:
    assert scenario.load(path).peers


def test_there_are_configs_and_scenarios() -> None:
    assert {path.name for path in CONFIGS} >= {"demo.toml", "private-lab.toml", "paper-delay64.toml"}
    assert SCENARIOS


def test_the_distribution_carries_its_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["license"], project["license-files"]) == (
        "gepo-swarm",
        "Apache-2.0",
        ["LICENSE"],
    )
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_tree_of_the_docs_is_on_the_disk() -> None:
    shown = drawn_tree()
    assert shown[""] == on_disk(ROOT)
    assert shown["swarm/"] == on_disk(ROOT / "swarm")


def drawn_tree() -> dict[str, set[str]]:
    """Folder -> entries of the `tree` block of docs/architecture.md: two spaces a level, a slash after
    folders, a comment after two spaces."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    match = re.search(r"^```tree\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert match, "docs/architecture.md has no ```tree block"
    tree: dict[str, set[str]] = {"": set()}
    above: list[str] = []
    for line in match[1].splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        name = line.strip().split("  ")[0]
        tree.setdefault("".join(above[:level]), set()).add(name)
        above[level:] = [name]
    return tree


def on_disk(folder: Path) -> set[str]:
    """Entries that git would keep."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()] + [".git"]
    entries = [
        entry
        for entry in folder.iterdir()
        if not any(fnmatch.fnmatch(entry.name, pattern) for pattern in ignored)
    ]
    return {entry.name + ("/" if entry.is_dir() else "") for entry in entries}


def test_no_unit_test_of_a_decision_starts_a_process() -> None:
    starts = re.compile(r"subprocess|multiprocessing|os\.fork|swarm\.process")
    decided = [path for path in TESTS if path.parts[-3:-1] == ("unit", "core")]
    assert decided and not [path for path in decided if starts.search(path.read_text(encoding="utf-8"))]


def test_make_and_ci_run_the_same_checks() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = {line.split()[1] for line in listed.splitlines()}
    checks = {
        "lint",
        "check-types",
        "test",
        "test-fast",
        "test-mission",
        "test-nightly",
        "test-faults",
        "test-vllm",
        "test-release",
        "test-wheel",
        "test-install",
    }
    benches = {f"bench-{what}" for what in ("objectives", "plots")}
    others = {"demo", "demo-real", "docs-protocol", "bench", "gpu-check", "lock", "check-deps", *benches}
    assert checks | others | {"chromium", "namespaces", "sandbox", "clean", "help"} == targets
    run = (ROOT / ".ci" / "run").read_text()
    ran = set(re.findall(r"^make ([a-z-]+)$", run, re.MULTILINE))
    assert ran == {"lint", "check-types", "test", "test-mission"} <= targets
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
