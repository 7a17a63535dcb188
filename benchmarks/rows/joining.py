"""Row `join`: seconds from the start of `swarm join` to the joiner's first group that a learner admitted.

The swarm that is joined runs and trains (1 seed, 1 learner, 1 sampler), the joiner comes with an empty
folder. Stages end when:

    imports        all of them (benchmarks.processes.joiner), taken out of the stages in which they happen
    node up        the file `port` is there: key, p2pd, a bootstrap peer reached, DHT
    spec + model   the joiner emits Started: specification and files fetched and checked, engine built
    policy         it emits Adopted: newest release heard of, fetched, loaded
    first group    the learner admits a group of the joiner
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.local_swarm import LocalSwarm, end, start
from benchmarks.table import Figure
from swarm import events
from swarm.identity import open_key
from swarm.journal import read_journal
from swarm.protocol import Role
from swarm.types import Verdict

if TYPE_CHECKING:
    from benchmarks import Say

TIMES = 3
STAGES = ("imports", "node up", "spec + model", "policy", "first group")


def measure(say: Say, times: int = TIMES) -> list[Figure]:
    joins: list[dict[str, float]] = []
    with LocalSwarm() as home:
        home.join(Role.LEARNER)
        home.join(Role.SAMPLER)
        home.until(
            "the first step",
            lambda: any(isinstance(event, events.Trained) for event in home.events("learner-1")),
        )
        for _ in range(times):
            joins.append(_join(home))
            say(
                f"{sum(joins[-1].values()):.2f} s: "
                + ", ".join(f"{stage} {joins[-1][stage]:.2f}" for stage in STAGES)
            )
    total = median(sum(join.values()) for join in joins)
    first = Figure(
        row="join",
        what="`swarm join` to its first accepted group",
        value=total,
        unit="s",
        note=f"median of {times}; a training swarm of 1 learner and 1 sampler",
    )
    parts = [
        Figure(row="join", what=f"  of it {stage}", value=median(join[stage] for join in joins), unit="s")
        for stage in STAGES
    ]
    return [first, *parts]


def _join(home: LocalSwarm) -> dict[str, float]:
    """Stage -> seconds of one join; the joiner leaves again."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        path = Path(folder) / "run"
        peer_folder = path / "peers" / "sampler-1"
        began = time.time()
        imports = Path(folder) / "imports"
        process = start(
            [str(imports), *home.words(Role.SAMPLER, path)], subprocess.DEVNULL, "benchmarks.processes.joiner"
        )
        try:
            home.until("the joiner's key", (peer_folder / "key").exists)
            me = open_key(peer_folder / "key").me
            home.until("the joiner's first accepted group", lambda: _admitted(home, me) is not None)
            accepted = _admitted(home, me)
        finally:
            end([process])
        assert accepted is not None
        mine = list(read_journal(peer_folder / "journal.jsonl"))
        moments = {
            "node up": (peer_folder / "port").stat().st_mtime,
            "spec + model": next(event.at for event in mine if isinstance(event, events.Started)),
            "policy": next(event.at for event in mine if isinstance(event, events.Adopted)),
            "first group": accepted,
        }
        return _stages(began, moments, _read_imports(imports))


def _stages(began: float, moments: dict[str, float], imports: list[tuple[float, float]]) -> dict[str, float]:
    def imported(until: float) -> float:
        return sum(seconds for at, seconds in imports if at <= until)

    spent = {"imports": imported(moments["first group"])}
    before = began
    for stage, moment in moments.items():
        spent[stage] = max(0.0, moment - before - (imported(moment) - imported(before)))
        before = moment
    return spent


def _read_imports(path: Path) -> list[tuple[float, float]]:
    """(when it ended, seconds) of each outermost import."""
    rows = (line.split() for line in path.read_text().splitlines())
    return [(float(at), float(seconds)) for at, seconds in rows]


def _admitted(home: LocalSwarm, sampler: str) -> float | None:
    for event in home.events("learner-1"):
        if isinstance(event, events.Judged) and event.sampler == sampler and event.verdict is Verdict.ADMIT:
            return event.at
    return None
