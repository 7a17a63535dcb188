"""Row `heads`: what it costs that every group is checked by its own heads (run.sampling.heads), and that some
are replayed.

CPU of the check of a group of the demo beside that of its gradient, bytes of its frame beside one without
heads, CPU of sampling beside sampling without heads; the same check of a group of 8 x 512 tokens of a large
vocabulary. CPU of a replay beside the gradient, and what the replays of a sampler's groups cost at the rates
after 100, 1,000 and 10,000 verified ones, each with the load of its version. All is CPU time of one process,
in turns.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from lab.figures.table import Figure
from lab.swarms.partner import Partner

if TYPE_CHECKING:
    from lab.figures.table import Say

HEADS, GROUPS, TURNS = 4, 32, 7


def measure(say: Say, groups: int = GROUPS, turns: int = TURNS) -> list[Figure]:
    from peers.build.model import base_model
    from swarm.core.audits.auditing import rate_after
    from swarm.settings.config import Run

    setup = {"model": str(base_model.folder(Run())), "heads": HEADS, "groups": groups, "turns": turns}
    say(f"{groups} groups of the demo, {turns} times")
    with Partner("lab.processes.head_cost", setup) as process:
        told = process.hear()

    def figure(what: str, key: str, other: str = "", against: str = "", note: str = "") -> Figure:
        mine, its = ([1e6 * seconds for seconds in told[name]] if name else [] for name in (key, other))
        return Figure.of_turns(mine, its, row="heads", what=what, unit="us", against=against, note=note)

    def size(what: str, key: str, other: str) -> Figure:
        return Figure(
            row="heads", what=what, value=told[key], unit="bytes", against="no heads", other=told[other]
        )

    def audits(verified: int) -> Figure:
        """Each replay loads its version, which is so where versions are faster than draws."""
        rate, each = rate_after(verified), median(told["replay"]) + median(told["load"])
        return Figure(
            row="heads",
            what=f"replays after {verified:,} verified groups of a sampler",
            value=100 * rate * each / median(told["learn"]),
            unit="% of the gradients",
            note=f"{rate:.0%} of the groups, each with its version's load",
        )

    share = 100 * median(told["check"]) / median(told["learn"])
    return [
        figure("check, CPU of a group", "check", "learn", "its gradient", f"{share:.2g} % of the gradient"),
        figure("sampling, CPU of a group", "sample", "sample_plain", "no heads"),
        size("frame of a group", "bytes", "plain"),
        figure("check, CPU of 8 x 512 tokens", "large", note="vocabulary of 151,936"),
        size("frame of 8 x 512 tokens", "large_bytes", "large_plain"),
        figure("replay, CPU of a group", "replay", "learn", "its gradient"),
        *map(audits, (100, 1_000, 10_000)),
    ]
