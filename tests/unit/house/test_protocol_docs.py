"""Names of swarm.protocol stand in its tables alone, and what is made of the tables is up to date."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from places import ROOT
from uncollected import uncollected

from swarm.protocol import KEYS, KINDS, PARTS, PHASES, ROLES, SERVICES, TOPICS, Phase, Role

STATIC = ROOT / "dashboard/static"
ROOMS = ("swarm", "peers", "dashboard", "lab")
DOING = {*map(str, PHASES), *PHASES.values()} - {""}

OTHER_THINGS = {
    **dict.fromkeys(
        (
            ("swarm/learn/objectives.py", "sampler"),
            ("swarm/learn/parts.py", "sampler"),
            ("swarm/learn/trust_region.py", "sampler"),
        ),
        "the policy that sampled, of an objective's ratio",
    ),
    **dict.fromkeys(
        (
            ("swarm/sample/server.py", "seed"),
            ("swarm/tasks/workers/gym_worker.py", "seed"),
            ("swarm/tasks/workers/gym.py", "seed"),
        ),
        "of random numbers",
    ),
    **dict.fromkeys(
        (("peers/commands/fit/probe.py", word) for word in ("sampler", "learner", "evaluator")),
        "what a measurement loads",
    ),
    **dict.fromkeys(
        (("lab/bench.py", "learner"), ("lab/rows/learner.py", "learner")), "a row of the benchmark"
    ),
    **dict.fromkeys(
        (("lab/gpu/row.py", "learner"), ("lab/gpu/parts.py", "learner"), ("lab/gpu/parts.py", "sampler")),
        "what is measured on a GPU",
    ),
    ("lab/studies/liars/band.py", "learner"): "a column of a table",
    **dict.fromkeys(
        (
            ("dashboard/diagnosis/learners.py", "stopped"),
            ("dashboard/diagnosis/samplers.py", "no credit"),
            ("dashboard/diagnosis/samplers.py", "no policy"),
            ("peers/commands/runs/why.py", "no policy"),
        ),
        "the key of a problem",
    ),
    **dict.fromkeys(
        (
            ("dashboard/diagnosis/learners.py", "sampler"),
            ("dashboard/fold/sentences.py", "learner"),
            ("dashboard/serve/terminal.py", "learner"),
        ),
        "a noun that is counted",
    ),
    ("swarm/settings/loading.py", "sampling"): "a table of settings",
}
"""(file, word) -> what the word means there."""


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol_maker", ROOT / "docs/protocol.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_protocol_and_the_words_of_the_dashboard_are_those_of_the_tables() -> None:
    made = maker()
    assert made.page() == made.PAGE.read_text(encoding="utf-8"), "run `make docs-protocol`"
    assert made.words() == made.WORDS.read_text(encoding="utf-8"), "run `make docs-protocol`"


def test_the_page_names_every_row() -> None:
    page = maker().page()
    for table in (SERVICES, TOPICS, KEYS, ROLES, PHASES, KINDS, PARTS):
        assert all(f"| `{name}` |" in page for name in table if name)


@cache
@uncollected()
def spoken() -> tuple[tuple[str, ast.Constant | ast.Call | ast.Compare], ...]:
    """Where words can stand, by the file's name."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    named = [(path.relative_to(ROOT).as_posix(), path) for path in paths]
    return tuple(
        (name, node)
        for name, path in named
        if name != "swarm/protocol.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant | ast.Call | ast.Compare)
    )


def test_roles_and_phases_are_no_literals() -> None:
    banned = {*map(str, Role)} | DOING
    found = {
        (name, node.value)
        for name, node in spoken()
        if isinstance(node, ast.Constant) and node.value in banned
    }
    assert found == {*OTHER_THINGS}, "a word that means something else goes into OTHER_THINGS"


def named(call: ast.Call) -> tuple[str, str]:
    """The function's name, and whose it is."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, ast.unparse(call.func.value)
    return ast.unparse(call.func), ""


def protocol_words(node: ast.Constant | ast.Call | ast.Compare) -> Iterator[object]:
    """Literals that stand where a service, a topic, a key, a kind of work or a part is named."""
    if isinstance(node, ast.Call):
        name, owner = named(node)
        places = {
            "serve": [0],
            "send": [1],
            "topic": [0, 1],
            "FaultReport": [1],
            "_ask": [1],
            "_made": [0],
        }
        if name == "run" and owner.endswith(("work", "engine_calls")):
            places = {"run": [0]}
        if name in ("failed", "_report", "report", "_replace") and not owner.endswith("disk"):  # names files
            places = {name: [0]}
        said = [node.args[place] for place in places.get(name, ()) if place < len(node.args)]
        said += [one.value for one in node.keywords if one.arg in ("part", "service")]
        yield from (one.value for one in said if isinstance(one, ast.Constant))
    elif isinstance(node, ast.Compare) and ast.unparse(node.left).split(".")[-1] in ("part", "service"):
        yield from (one.value for one in node.comparators if isinstance(one, ast.Constant))


def test_services_topics_keys_kinds_and_parts_are_no_literals() -> None:
    banned = {str(word) for table in (SERVICES, TOPICS, KEYS, KINDS, PARTS) for word in table}
    assert [(name, word) for name, node in spoken() for word in protocol_words(node) if word in banned] == []


def test_no_program_compares_the_text_of_a_heartbeat() -> None:
    for name, node in spoken():
        if isinstance(node, ast.Compare):
            assert not re.search(r"\b(beat|peer|claims)\.state\b", ast.unparse(node)), (name, node.lineno)


def test_the_pages_scripts_take_roles_and_phases_from_the_generated_words() -> None:
    banned = {*map(str, Role)} | DOING
    sections = {("app.js", "learning"), ("learning.js", "learning"), ("curve.js", "learning")}
    """Of the page: a heading's id."""
    replays = {("app.js", "paused"), ("store.js", "paused")}
    """Of a replay's time."""
    found = {
        (path.name, word)
        for path in STATIC.glob("*.js")
        if path.name != "protocol.js"
        for text in [re.sub(r"^\s*//.*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)]
        for word in [
            *re.findall(r'["\']([a-z ]+)["\']', text),
            *re.findall(r"^\s*([a-z]+):", text, re.MULTILINE),
        ]
        if word in banned
    }
    assert found <= sections | replays


def test_the_drawer_explains_every_phase_that_it_can_meet() -> None:
    said = {*re.findall(r"\[Phase\.(\w+)\]: ", (STATIC / "drawer.js").read_text(encoding="utf-8"))}
    assert said == {phase.name for phase in Phase} - {"UNKNOWN", "STARTING"}
