"""Row `memory`: MiB of each role's processes in a training swarm of one learner, one sampler, one evaluator
and the seed.

A peer is its Python process with p2pd, the DHT child and, at a learner, the averager. PSS counts a page that
n processes share as 1/n: forked children share most of their parent's. USS is what a process shares with
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.local_swarm import LocalSwarm
from benchmarks.table import Figure, Unmeasured
from swarm import events
from swarm.protocol import Role

if TYPE_CHECKING:
    from benchmarks import Say

VERSIONS = 10
"""Steps of the learner before it is weighed: buffers have their size by then."""

MIB = 1 << 20


def measure(say: Say, versions: int = VERSIONS) -> list[Figure]:
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        raise Unmeasured("psutil is not installed: `make bench` installs it") from None

    with LocalSwarm() as home:
        for role in (Role.LEARNER, Role.SAMPLER, Role.EVALUATOR):
            home.join(role)
        say(f"waiting for version {versions}")
        home.until("a learner that trains", lambda: _reached(home, "learner-1", versions))
        home.until("an evaluation", lambda: _reached(home, "evaluator-1", 0))
        figures = []
        for peer_folder, process in home.processes.items():
            peer = psutil.Process(process.pid)
            full = [(one.name(), one.memory_full_info()) for one in (peer, *peer.children(recursive=True))]
            parts = ", ".join(
                f"{'p2pd' if 'p2pd' in name else 'python'} {info.pss / MIB:.0f}" for name, info in full
            )
            figures.append(
                Figure(
                    row="memory",
                    what=peer_folder.partition("-")[0],
                    value=sum(info.pss for _, info in full) / MIB,
                    unit="MiB PSS",
                    note=f"USS {sum(info.uss for _, info in full) / MIB:.0f} MiB; PSS by process: {parts}",
                )
            )
    return figures


def _reached(home: LocalSwarm, peer_folder: str, version: int) -> bool:
    done = (
        event.version
        for event in home.events(peer_folder)
        if isinstance(event, events.Trained | events.Evaluated)
    )
    return any(reached >= version for reached in done)
