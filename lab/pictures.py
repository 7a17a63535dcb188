"""Pictures of the swarm's cost; `make bench-plots` draws the first one for docs/benchmarks/.

    scaling  simulated swarms of 100 to 10,000 peers -> peer-hours a CPU second, memory of a peer
    flames   a swarm of a learner and a sampler      -> a flame graph of each

    python -m lab.pictures FOLDER [PICTURE...]

The first is of CPU seconds and of virtual time, so that other load of the machine changes it little. Not
handled here: how they look (peers.commands.journals.drawing, lab.flames).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import flames
from lab.rows.simulated import simulator
from lab.rows.tokens import trains
from lab.swarms.local_swarm import LocalSwarm
from peers.commands.journals.drawing import Curve, Panel, lines
from swarm.protocol import Role

PEERS = (100, 300, 1000, 3000, 10_000)
HOURS = 0.1
"""Of virtual time: 10,000 peers take a minute and a half of a core for it."""

WATCHED = 10
"""Seconds."""


def scaling(out: Path, peers: Sequence[int] = PEERS, hours: float = HOURS) -> list[Path]:
    costs = [simulator.alone(count, hours) for count in peers]
    x = [float(cost.peers) for cost in costs]
    figures = {
        "peer-hours a CPU second": [cost.rate for cost in costs],
        "KiB a peer": [cost.memory / 1024 for cost in costs],
    }
    label = f"paper-delay, {hours:g} virtual hours, the start included"
    panels = [
        Panel("", "peers", name, [Curve(label, x, y)], log_x=True, from_zero=True)
        for name, y in figures.items()
    ]
    return [lines(out / "scaling.svg", panels)]


def flame_graphs(out: Path, seconds: int = WATCHED) -> list[Path]:
    with LocalSwarm() as home, tempfile.TemporaryDirectory() as scratch:
        peers = [home.join(Role.LEARNER), home.join(Role.SAMPLER)]
        home.until("the learner to train", lambda: trains(home, peers[0], learners=1))
        paths = []
        for peer in peers:
            with home.alive():
                found = flames.record(home.processes[peer].pid, seconds, Path(scratch))
            role = peer.partition("-")[0]
            paths.append(flames.draw(out / f"{role}.svg", f"{role} of 1 learner + 1 sampler", found, seconds))
        return paths


PICTURES: dict[str, Callable[[Path], list[Path]]] = {
    "scaling": scaling,
    "flames": flame_graphs,
}


def main(folder: str, *names: str) -> int:
    for name in names or PICTURES:
        for path in PICTURES[name](Path(folder)):
            print(path, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
