"""Row `rounds`: a round of averaging among lines of which one is slow, with shares by measured lines and with
equal ones: in virtual time, and then of real learners behind lines of this machine.

    MemoryNetwork, links that report their uplinks / that do not       seconds of a round in each
    member x 4 in network namespaces, token buckets                    its first round, without measured
                                                                       lines, and the later ones

Not handled here: the cost of averaging where lines are no limit (row `averaging`).
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from lab.figures.table import Figure, Gap, Line, Say, Unmeasured
from lab.swarms.partner import Partner, ask_all
from lab.swarms.shaped_lines import ShapedLines

SLOW, FAST = 5.0, (20.0, 100.0)
"""Mbit/s up."""

DOWN = 100.0
"""Mbit/s down of every line."""

MEMBERS = (2, 3, 4)
VALUES = 25_000_000
"""Of a simulated round: 50 MB in float16, as the adapter of a model of 3B parameters."""

REAL_VALUES, REAL_ROUNDS = 3_000_000, 4
"""6 MB: a round of equal shares takes 15 seconds, and one without known lines may take 20."""


def measure(
    say: Say, values: int = VALUES, real_values: int = REAL_VALUES, real_rounds: int = REAL_ROUNDS
) -> list[Line]:
    found: list[Line] = []
    for fast in FAST:
        for members in MEMBERS:
            say(f"a line of {SLOW:g} Mbit/s and {members - 1} of {fast:g}, in virtual time")
            found.append(_simulated([SLOW, *[fast] * (members - 1)], values))
    try:
        found.append(_real(say, [SLOW, *[FAST[0]] * 3], real_values, real_rounds))
    except Unmeasured as why:
        found.append(Gap(row="rounds", why=str(why)))
    return found


def _figure(uplinks: Sequence[float], values: int, measured: float, equal: float, note: str) -> Figure:
    least = values * 2 / (min(uplinks) * 1e6 / 8)
    return Figure(
        row="rounds",
        what=f"{values / 1e6:g}M values, {uplinks[0]:g} and {len(uplinks) - 1} x {uplinks[1]:g} Mbit/s up",
        value=measured,
        unit="s/round",
        against="equal shares",
        other=equal,
        note=f"{note}; the slow line alone with its own values: {least:.1f} s",
    )


# --- virtual time -------------------------------------------------------------------------------------------


def _simulated(uplinks: Sequence[float], values: int) -> Figure:
    measured, equal = (_round(uplinks, values, told) for told in (True, False))
    return _figure(uplinks, values, measured, equal, "virtual time")


def _round(uplinks: Sequence[float], values: int, told: bool) -> float:
    """Seconds of a simulated round; where lines are not `told`, all members have equal shares."""
    import torch

    from swarm.net.memory.network import MemoryNetwork
    from swarm.settings.config import Averaging, DelayLaw
    from swarm.sim.clock import run
    from swarm.sim.flows import AccessLine as SimLine
    from swarm.sim.links import SimLinks
    from swarm.types import PeerId

    class Untold(SimLinks):
        def uplink(self, peer: PeerId) -> int:
            return 0

    async def meet() -> float:
        lines = {
            PeerId(f"learner-{k}"): SimLine(up * 1e6 / 8, DOWN * 1e6 / 8) for k, up in enumerate(uplinks)
        }
        links = (SimLinks if told else Untold)(DelayLaw(), 1e9, random.Random(1), lines)
        settings = Averaging(deadline=1e6)
        async with MemoryNetwork(random.Random(2), links, averaging=settings) as network:
            ports = [network.ports(peer, lambda kind: 0.0) for peer in lines]
            calls = [
                one.averager.average(1, [torch.ones(values)], 1.0, [p.me for p in ports if p is not one], 1e6)
                for one in ports
            ]
            outcomes = await asyncio.gather(*calls)
            assert all(outcome and len(outcome.members) == len(ports) for outcome in outcomes)
            return max(outcome.seconds for outcome in outcomes if outcome)

    return float(run(meet()))


# --- real learners ------------------------------------------------------------------------------------------


def _real(say: Say, uplinks: Sequence[float], values: int, rounds: int) -> Figure:
    with ExitStack() as stack:
        lines = stack.enter_context(ShapedLines(uplinks[0], DOWN))
        partners: list[Partner] = []
        hello: list[dict[str, Any]] = []
        for up in uplinks:
            say(f"starting a learner behind a line of {up:g} Mbit/s")
            words, address = lines.line(up)
            setup = {
                "folder": str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarm-bench-")))),
                "bootstrap": hello[0]["addresses"][:1] if hello else [],
                "host": address,
            }
            partners.append(stack.enter_context(Partner("lab.processes.member", setup, words)))
            hello.append(partners[-1].receive())
        ask_all(partners, [{"do": "open", "numel": values, "deadline": 0.0}] * len(partners))
        seconds = []
        for version in range(rounds):
            answers = ask_all(partners, _questions([one["me"] for one in hello], version))
            if any(answer.get("members") != len(partners) for answer in answers):
                raise Unmeasured(f"a round of real learners behind slow lines failed: {answers}")
            seconds.append(max(float(answer["seconds"]) for answer in answers))
            rates = ", ".join(f"{answer['uplink'] * 8 / 1e6:.1f}" for answer in answers)
            say(f"round {version + 1}: {seconds[-1]:.1f} s; Mbit/s measured: {rates}")
    note = f"real learners behind token buckets: the middle one of {rounds - 1} rounds, and the first one"
    return _figure(uplinks, values, median(seconds[1:]), seconds[0], note)


def _questions(names: Sequence[str], version: int) -> list[dict[str, Any]]:
    return [
        {"do": "average", "version": version, "fill": 1.0, "peers": [name for name in names if name != me]}
        for me in names
    ]
