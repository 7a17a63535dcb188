"""The study `swarm bench adversaries`: what a peer that lies costs a swarm that defends itself, and one that
does not.

    Attacked (what the liar does, who defends) --a simulated swarm of the roles that ship--> row
    rows --> adversaries.csv and a table: last reward, who was named, after how many rounds

One of four learners lies from its first round on; the task is `toy`, the policy a table. An attack on rounds
is a function of the liar's gradient and weight, one on releases is what it announces now and then. Not
handled here: attacks of samplers, which are rows of the same table once somebody adds them, and parts that
are not finite, which a simulated averager does not send (tests/net/test_allreduce.py).
"""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import io
import math
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from peers.commands import sim
from peers.roles.learner import LearnerPeer
from peers.runtime import release_doubts
from peers.runtime.host import Host
from peers.studies.experiments import Row, complete, to_stderr
from swarm import config as settings
from swarm.blocks import Blocks
from swarm.config import DelayLaw, Run
from swarm.core import clipping, opposition, standing
from swarm.durable import write_durably
from swarm.events import Averaged, Event, Rejected, Trained
from swarm.net import in_memory_rounds
from swarm.net.ports import Average, Averager, RoundLost
from swarm.protocol import Role
from swarm.sim.scenario import Scenario
from swarm.sim.world import SimPeer, World
from swarm.types import Digest, PeerId, Release, Struct

if TYPE_CHECKING:
    import torch

LIAR = PeerId("learner-3")
LEARNERS, SAMPLERS = 4, 12

LAST = 16
"""Steps whose mean reward is the last reward: four versions of four learners."""

EVERY = 5.0
"""Seconds between two false releases."""


class Gradient(NamedTuple):
    """What a learner brings to a round."""

    vector: torch.Tensor
    weight: float


def _random(mine: Gradient) -> Gradient:
    import torch

    noise = torch.randn(mine.vector.shape, generator=torch.Generator().manual_seed(1))
    return mine._replace(vector=noise * (mine.vector.norm() / noise.norm()))


def _times(factor: float) -> Callable[[Gradient], Gradient]:
    return lambda mine: mine._replace(vector=mine.vector * factor)


ROUNDS: dict[str, Callable[[Gradient], Gradient]] = {
    "honest": lambda mine: mine,
    "times 1000": _times(1000.0),
    "times -1": _times(-1.0),
    "times -4": _times(-4.0),
    "times -10": _times(-10.0),
    "zeros": _times(0.0),
    "random, of the same norm": _random,
    "false weight, times -1": lambda mine: Gradient(-mine.vector, 1e6),
}
"""What the liar brings instead of its gradient."""

SILENCE = "silence"
"""It waits for each round and comes to none."""

RELEASES: dict[str, Callable[[int], tuple[int, Digest]]] = {
    "false version": lambda newest: (newest + 1000, Digest("")),
    "false parent": lambda newest: (newest + 1, Digest("0" * 64)),
}
"""Version and parent of what it announces, by the newest version that it heard of; it does nothing else."""


class Attacked(Struct):
    """A training with one liar."""

    attack: str
    defended: bool
    """The peers are those that ship; else they believe everything."""
    seconds: float
    seed: int = 1


def plan(quick: bool) -> list[Attacked]:
    attacks = [*ROUNDS, SILENCE, *RELEASES]
    seconds = 45.0 if quick else 120.0
    seeds = (1,) if quick else (1, 2, 3)
    return [
        Attacked(attack=attack, defended=defended, seconds=seconds, seed=seed)
        for seed in seeds
        for attack in attacks
        for defended in (True, False)
    ]


def main(quick: bool, out: Path, minutes: float) -> int:
    """Run or resume the study in the folder `out`. Returns an exit code."""
    cells = plan(quick)
    rows = complete(cells, suffer, out / "ledger.jsonl", to_stderr, budget=60 * minutes or math.inf)
    done = [(cell, row) for cell, row in zip(cells, rows, strict=True) if row is not None]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*Attacked.__struct_fields__, *FIGURES], lineterminator="\n")
    writer.writeheader()
    for cell, row in done:
        writer.writerow(msgspec.structs.asdict(cell) | row)
    write_durably(out / "adversaries.csv", text.getvalue().encode())
    print(table(done))
    return 0


FIGURES = ("reward", "versions", "named", "rounds", "innocent")
"""Mean reward of the last steps of honest learners; versions made; share of rounds, or of false releases, in
which the liar was named; rounds, or false releases, until it was; share of rounds that name another one."""


def table(done: Sequence[tuple[Attacked, Row]]) -> str:
    """Markdown: a row an attack, means over seeds."""
    lines = [
        "| attack | reward | undefended | named after | named in | others named |",
        "|---|---|---|---|---|---|",
    ]
    for attack in dict.fromkeys(cell.attack for cell, _ in done):
        with_, without = (
            [row for cell, row in done if cell.attack == attack and cell.defended is defended]
            for defended in (True, False)
        )
        lines.append(
            f"| {attack} | {_mean(with_, 'reward'):.3f} | {_mean(without, 'reward'):.3f} |"
            f" {_mean(with_, 'rounds'):.1f} | {_mean(with_, 'named'):.0%} | {_mean(with_, 'innocent'):.1%} |"
        )
    return "\n".join(lines)


def _mean(rows: Sequence[Row], figure: str) -> float:
    return fmean(float(row[figure]) for row in rows) if rows else math.nan


# --- one training -------------------------------------------------------------------------------------------


def suffer(one: Attacked) -> Row:
    """One training of four learners, of which the last one lies."""
    told: list[Event] = []
    with nullcontext() if one.defended else believing():
        World(scenario(one), lambda peer: spawn(peer, one.attack), sinks=[told.append]).run()
    return figures(told)


def scenario(one: Attacked) -> Scenario:
    return Scenario(
        name="adversaries",
        hours=one.seconds / 3600,
        seed=one.seed,
        peers={Role.SEED: 1, Role.LEARNER: LEARNERS, Role.SAMPLER: SAMPLERS},
        run=Run(
            name="adversaries",
            task=settings.TaskSettings(name="toy"),
            sampling=settings.Sampling(group_size=4, max_tokens=4),
            optimizer=settings.Optimizer(lr=0.3),
            batch=settings.BatchSize(groups=16, close_after=3.0),
            averaging=settings.Averaging(match=2.0, deadline=6.0, chunk=3.0),
        ),
        prices={
            "sample": DelayLaw(law="lognormal", seconds=1.0, shape=0.3),
            "learn": DelayLaw(law="constant", seconds=0.3),
        },
    )


def spawn(peer: SimPeer, attack: str) -> Coroutine[Any, Any, None]:
    """A peer as it ships, but for the liar."""
    if peer.name != LIAR:
        return sim.spawn(peer)
    if attack in RELEASES:
        return sim.run_peer(
            peer, sim.policy_parts(peer.config), lambda host, parts: _publisher(host, parts, attack)
        )
    lying = LyingAverager(peer.ports.averager, ROUNDS.get(attack))
    return sim.spawn(dataclasses.replace(peer, ports=dataclasses.replace(peer.ports, averager=lying)))


class LyingAverager:
    """Brings something else than its gradient to each round, or nothing."""

    def __init__(self, true: Averager, attack: Callable[[Gradient], Gradient] | None) -> None:
        self._true, self._attack = true, attack

    async def average(
        self,
        version: int,
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        deadline: float,
        marks: bytes = b"",
        weights: str = "",
    ) -> Average | None:
        if self._attack is None:
            await asyncio.sleep(deadline)
            raise RoundLost("it came to no round")
        lie = self._attack(Gradient(tensors[0].clone(), weight))
        outcome = await self._true.average(version, [lie.vector], lie.weight, peers, deadline, marks, weights)
        tensors[0].copy_(lie.vector)
        return outcome


class Publisher(LearnerPeer):
    """A learner that does nothing but announce."""

    attack: Callable[[int], tuple[int, Digest]]

    async def run(self) -> None:
        host, data = self.host, self.learner.weights().data
        while not host.stop.is_set():
            await host.ports.clock.sleep(EVERY)
            version, parent = self.attack(max((beat.version for _, beat in host.roster), default=0))
            host.releases.blobs.hold(version, Blocks.of(data))
            release = Release(
                version=version,
                weights=Blocks.of(data).root,
                size=len(data),
                parent=parent,
                publisher=host.ports.me,
                learners=LEARNERS,
                groups=10**6,
                released=host.now(),
            )
            await host.releases.announce(release)


def _publisher(host: Host, parts: sim.PolicyParts, attack: str) -> Publisher:
    learner, decoder = parts.learner()
    made = Publisher(
        host, learner, sim.tasks.source(host.config.run.task, host.config.run.seed), decoder, None
    )
    made.attack = RELEASES[attack]
    return made


@contextmanager
def believing() -> Iterator[None]:
    """In this process, every gradient, weight and release is believed."""
    kept = clipping.FAR, standing.FAR, opposition.SURE, release_doubts.LEAD, in_memory_rounds.standings
    clipping.FAR = standing.FAR = opposition.SURE = math.inf
    release_doubts.LEAD = math.inf  # type: ignore[assignment]
    in_memory_rounds.standings = lambda claims, groups: [  # type: ignore[assignment]
        standing.Standing(claim.weight, 1.0) for claim in claims
    ]
    try:
        yield
    finally:
        clipping.FAR, standing.FAR, opposition.SURE, release_doubts.LEAD, in_memory_rounds.standings = kept


def figures(told: Sequence[Event]) -> Row:
    """FIGURES of a training."""
    steps = [event for event in told if isinstance(event, Trained) and event.peer != LIAR]
    rounds = [event for event in told if isinstance(event, Averaged) and event.peer == "learner-0"]
    refused = [event for event in told if isinstance(event, Rejected) and event.peer == "learner-0"]
    named = [LIAR in event.scaled for event in rounds]
    if refused:
        named = [event.sender == LIAR for event in refused]
    last = [event.metrics["reward"] for event in steps[-LAST:]]
    return {
        "reward": fmean(last) if last else math.nan,
        "versions": max((event.version for event in steps), default=0),
        "named": fmean(named) if named else 0.0,
        "rounds": 1 + named.index(True) if True in named else math.nan,
        "innocent": fmean(bool(event.scaled.keys() - {LIAR}) for event in rounds) if rounds else 0.0,
    }
