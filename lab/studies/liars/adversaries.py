"""The study `swarm bench adversaries`: the cost of a lying peer to a swarm that defends itself, and to one
that does not.

    Attacked (the lie, the defence) --a simulated swarm of the roles that ship--> row
    rows --> adversaries.csv and a table: last reward, named peers, rounds until then

One of four learners lies from its first round on; the task is `toy`, the policy a table. An attack on rounds
is a function of the liar's gradient and weight, and of the others' gradients where it overhears them. Not
handled here: learners that lie in their releases (lab.studies.liars.false_publishers), samplers that cheat
(lab.studies.liars.cheating); parts that differ for each reducer, since simulated members meet at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import msgspec

from lab.studies.experiments import Row, measured
from lab.studies.liars.false_publishers import ELECTED, MEMBERS, RELEASES, liar
from lab.studies.liars.means import each, mean
from peers.commands import sim
from peers.errors import CannotHere
from swarm.core.agreement import electorate
from swarm.core.gradient_checks import norm_screening
from swarm.events import Averaged, Event, LeftOut, Rejected, Trained
from swarm.net.memory import rounds
from swarm.net.memory.network import MemoryAverager
from swarm.net.memory.rounds import Hands
from swarm.net.ports import Average, Averager, RoundLost
from swarm.protocol import Role
from swarm.settings import config as settings
from swarm.settings.config import DelayLaw, Run
from swarm.sim.scenario import Scenario
from swarm.sim.world import SimPeer, World
from swarm.types import PeerId, Struct

if TYPE_CHECKING:
    import torch

LEARNERS, SAMPLERS = 4, 12

LAST = 16
"""Steps whose mean reward is the last reward: four versions of four learners."""


class OfferedGradient(NamedTuple):
    """A learner's gradient in a round."""

    vector: torch.Tensor
    weight: float


Lie = Callable[[OfferedGradient, "Sequence[torch.Tensor]"], OfferedGradient]
"""The liar's gradient, and those of the others, which it overhears -> the gradient that it sends."""


def _random(mine: OfferedGradient, _: Sequence[torch.Tensor]) -> OfferedGradient:
    noise = _noise(mine.vector)
    return mine._replace(vector=noise * (mine.vector.norm() / noise.norm()))


def _noise(like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.randn(like.shape, generator=torch.Generator().manual_seed(1))


def _times(factor: float) -> Lie:
    return lambda mine, _: mine._replace(vector=mine.vector * factor)


def _stale() -> Lie:
    """Its gradient of STALE rounds before."""
    kept = deque[OfferedGradient](maxlen=STALE)

    def lie(mine: OfferedGradient, _: Sequence[torch.Tensor]) -> OfferedGradient:
        kept.append(mine)
        return kept[0]

    return lie


def _little_is_enough(mine: OfferedGradient, others: Sequence[torch.Tensor]) -> OfferedGradient:
    """Baruch et al. 2019, arXiv 1902.06156: as far from the others' mean as they are themselves."""
    import torch

    if len(others) < 2:
        return mine
    every = torch.stack([*others])
    return mine._replace(vector=every.mean(0) - every.std(0))


def _inner_product(mine: OfferedGradient, others: Sequence[torch.Tensor]) -> OfferedGradient:
    """Xie et al. 2019, arXiv 1903.03936: minus the others' mean, large enough to turn that of all."""
    import torch

    return mine._replace(vector=torch.stack([*others]).mean(0) * -TURNS) if others else mine


STALE = 16
"""Rounds."""

TURNS = LEARNERS - 0.5
"""Times the mean of the others: more than so many as they are."""

ROUNDS: dict[str, Callable[[], Lie]] = {
    "honest": lambda: _times(1.0),
    "times 1000": lambda: _times(1000.0),
    "times 10": lambda: _times(10.0),
    "times .001": lambda: _times(0.001),
    "times -1": lambda: _times(-1.0),
    "times -4": lambda: _times(-4.0),
    "times -10": lambda: _times(-10.0),
    "zeros": lambda: _times(0.0),
    "not finite": lambda: _times(math.nan),
    "random, of the same norm": lambda: _random,
    "stale": _stale,
    "a little is enough": lambda: _little_is_enough,
    "inner product": lambda: _inner_product,
    "false weight": lambda: lambda mine, _: mine._replace(weight=1e6),
    "false weight, times -1": lambda: lambda mine, _: OfferedGradient(-mine.vector, 1e6),
}
"""The liar's replacement of its gradient."""

OVERHEARING = {attack: ROUNDS[attack] for attack in ("a little is enough", "inner product")}
"""Attacks that need the others' gradients."""

LISTENS = 1.0
"""Seconds that the liar waits for them."""

SILENCE = "silence"
"""It waits for each round and comes to none."""


REDUCERS: dict[str, Hands] = {
    "a reducer of zeros": lambda to, mean: mean * 0,
    "a reducer that turns around": lambda to, mean: -mean,
    "a reducer that adds noise": lambda to, mean: mean + LOUD * _noise(mean),
    "a reducer that turns around for one": lambda to, mean: -mean if to == "learner-1" else mean,
    "the same, for who releases first": lambda to, mean: -mean if to == "learner-0" else mean,
    "the same, and for itself": lambda to, mean: -mean if to in ("learner-0", "learner-3") else mean,
}
"""The liar's replacement, for a member, of the mean that it reduces."""

LOUD = 1e3
"""Beyond every mean: members limit it to the largest norm that a mean can have."""


class Attacked(Struct):
    """A training with one liar."""

    attack: str
    defended: bool
    """The peers are those that ship; else they believe everything."""
    seconds: float
    seed: int = 1
    learners: int = LEARNERS

    @property
    def liar(self) -> PeerId:
        return PeerId(f"learner-{self.learners - 1}")


OF_TWO = (
    *("honest", "zeros", "times -1", "times -4", "random, of the same norm"),
    *("times 10", "times 1000", "times .001"),
)
"""The gradient of one of two learners."""


def plan(quick: bool) -> list[Attacked]:
    attacks = [*ROUNDS, SILENCE, *REDUCERS, *RELEASES, *MEMBERS, ELECTED]
    seconds = 45.0 if quick else 120.0
    seeds = (1,) if quick else (1, 2, 3, 4, 5)
    of_more = [
        Attacked(attack=attack, defended=defended, seconds=seconds, seed=seed, learners=learners)
        for seed in seeds
        for attack in attacks
        for defended, learners in ((True, LEARNERS), (True, 3), (False, LEARNERS))
    ]
    return of_more + [
        Attacked(attack=attack, defended=defended, seconds=2 * seconds, seed=seed, learners=2)
        for seed in seeds
        for attack in OF_TWO
        for defended in (True, False)
    ]


def main(quick: bool, out: Path, minutes: float) -> int:
    """Run or resume the study of learners in the folder `out`. Returns an exit code."""
    done = measured(plan(quick), suffer, out / "adversaries.csv", minutes)
    print(table([(cell, row) for cell, row in done if cell.learners > 2]))
    print("", two_table([(cell, row) for cell, row in done if cell.learners == 2]), sep="\n")
    return 0


FIGURES = ("reward", "versions", "named", "rounds", "innocent", "struck", "proof", "falsely")
"""Mean reward of the last steps of honest learners; versions made; share of rounds in which the liar was
scaled down or doubted; rounds until it was; share of rounds in which another one was; how many learners have
a recomputed gradient against it; rounds until the first of them; how many such proofs honest ones have
against each other."""


# --- one training -------------------------------------------------------------------------------------------


def table(done: Sequence[tuple[Attacked, Row]]) -> str:
    """Markdown: a row an attack of one learner, means over seeds."""
    lines = [
        "| attack | of four | of three | undefended | proof after | named after | named in | others named |",
        "|---|---|---|---|---|---|---|---|",
    ]
    of_three = [(cell, row) for cell, row in done if cell.learners < LEARNERS]
    fewer = {attack: rows for attack, rows, _ in each(of_three, lambda cell: cell.attack)}
    of_four = [(cell, row) for cell, row in done if cell.learners == LEARNERS]
    for attack, with_, without in each(of_four, lambda cell: cell.attack):
        lines.append(
            f"| {attack} | {mean(with_, 'reward'):.3f} | {mean(fewer.get(attack, []), 'reward'):.3f} |"
            f" {mean(without, 'reward'):.3f} | {mean(with_, 'proof'):.1f} | {mean(with_, 'rounds'):.1f} |"
            f" {mean(with_, 'named'):.0%} | {mean(with_, 'innocent'):.1%} |"
        )
    return "\n".join(lines)


def two_table(done: Sequence[tuple[Attacked, Row]]) -> str:
    """Markdown: a row an attack of one of two learners, means over seeds."""
    lines = ["| of two, attack | reward | undefended | versions | proof after |", "|---|---|---|---|---|"]
    for attack, with_, without in each(done, lambda cell: cell.attack):
        lines.append(
            f"| {attack} | {mean(with_, 'reward'):.3f} | {mean(without, 'reward'):.3f} |"
            f" {mean(with_, 'versions'):.0f} | {mean(with_, 'proof'):.1f} |"
        )
    return "\n".join(lines)


def suffer(one: Attacked) -> Row:
    """One training of some learners, of which the last one lies."""
    told: list[Event] = []
    with nullcontext() if one.defended else believing():
        heard = Overheard(one.learners - 1)
        World(scenario(one), lambda peer: spawn(peer, one, heard), sinks=[told.append]).run()
    return figures(told, one.liar)


def scenario(one: Attacked) -> Scenario:
    return Scenario(
        name="adversaries",
        hours=one.seconds / 3600,
        seed=one.seed,
        peers={Role.SEED: 1, Role.LEARNER: one.learners, Role.SAMPLER: SAMPLERS},
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


def spawn(peer: SimPeer, one: Attacked, heard: Overheard) -> Coroutine[Any, Any, None]:
    """A peer as it ships, but for the liar, and for those that believe everything."""
    attack, audit = one.attack, peer.config.peer.audit
    if not one.defended:
        audit = msgspec.structs.replace(audit, share=0.0)
    own = msgspec.structs.replace(peer.config.peer, audit=audit)
    peer = dataclasses.replace(peer, config=msgspec.structs.replace(peer.config, peer=own))
    if peer.name != one.liar:
        listens = attack in OVERHEARING and peer.role is Role.LEARNER
        return sim.spawn(with_averager(peer, OpenAverager(peer.ports.averager, heard)) if listens else peer)
    if attack in RELEASES or attack in MEMBERS or attack == ELECTED:
        return sim.run_peer(
            peer, sim.policy_parts(peer.config), lambda host, parts: liar(host, parts, attack)
        )
    if attack in REDUCERS:
        averager = peer.ports.averager
        assert isinstance(averager, MemoryAverager)
        averager.hand_out(REDUCERS[attack])
        return sim.spawn(peer)
    lies = LyingAverager(peer.ports.averager, heard, ROUNDS.get(attack))
    return _until_it_gives_up(sim.spawn(with_averager(peer, lies)))


async def _until_it_gives_up(peer: Coroutine[Any, Any, None]) -> None:
    """A learner ends where none of its gradients is finite."""
    try:
        await peer
    except* CannotHere:
        pass


def with_averager(peer: SimPeer, averager: Averager) -> SimPeer:
    return dataclasses.replace(peer, ports=dataclasses.replace(peer.ports, averager=averager))


class Overheard:
    """Honest learners' gradients in rounds, for a liar that overhears all of them."""

    def __init__(self, honest: int) -> None:
        self._honest = honest
        self._heard: dict[int, list[torch.Tensor]] = {}
        """Version -> gradients; the newest one alone."""

    def add(self, version: int, vector: torch.Tensor) -> None:
        self._heard = {version: [*self._heard.get(version, ()), vector.clone()]}

    async def of(self, version: int) -> list[torch.Tensor]:
        """Those of all others, or of those that came in LISTENS seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LISTENS
        while len(self._heard.get(version, ())) < self._honest and loop.time() < until:
            await asyncio.sleep(0.05)
        return self._heard.get(version, [])


class OpenAverager:
    """An honest learner's, which a liar overhears."""

    def __init__(self, true: Averager, heard: Overheard) -> None:
        self._true, self._heard, self.check, self.gone = true, heard, true.check, true.gone

    async def average(
        self, version: int, tensors: Sequence[torch.Tensor], *rest: Any, **named: Any
    ) -> Average | None:
        self._heard.add(version, tensors[0])
        return await self._true.average(version, tensors, *rest, **named)


class LyingAverager:
    """Brings something else than its gradient to each round, or nothing."""

    def __init__(self, true: Averager, heard: Overheard, attack: Callable[[], Lie] | None) -> None:
        self._true, self._heard, self._overhears = true, heard, attack in OVERHEARING.values()
        self.check, self.gone = true.check, true.gone
        self._lie = None if attack is None else attack()

    async def average(
        self,
        version: int,
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        deadline: float,
        marks: bytes = b"",
        weights: str = "",
        patience: float = 0.0,
    ) -> Average | None:
        if self._lie is None:
            await asyncio.sleep(deadline)
            raise RoundLost("it came to no round")
        others = await self._heard.of(version) if self._overhears else []
        lie = self._lie(OfferedGradient(tensors[0].clone(), weight), others)
        outcome = await self._true.average(
            version, [lie.vector], lie.weight, peers, deadline, marks, weights, patience
        )
        tensors[0].copy_(lie.vector)
        return outcome


@contextmanager
def believing() -> Iterator[None]:
    """In this process, every gradient, weight and release is believed."""
    with ExitStack() as stack:
        for module, name, value in (
            (norm_screening, "FAR", math.inf),
            (electorate, "PAIR", LEARNERS + 1),
            (rounds, "largest_mean_norm", lambda claims, judged: math.inf),
            (rounds, "screened_weights", _all_stand),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def _all_stand(
    claims: Sequence[norm_screening.AnnouncedNorm], groups: object
) -> list[norm_screening.ScreenedWeight]:
    return [norm_screening.ScreenedWeight(claim.weight, 1.0) for claim in claims]


def figures(told: Sequence[Event], liar: PeerId) -> Row:
    """FIGURES of a training."""
    steps = [event for event in told if isinstance(event, Trained) and event.peer != liar]
    rounds = [event for event in told if isinstance(event, Averaged) and event.peer == "learner-0"]
    accused = [event for event in told if isinstance(event, Rejected) and event.peer == "learner-0"]
    means = [event.at for event in accused if event.kind == "mean" and event.sender == liar]
    struck = [event for event in told if isinstance(event, LeftOut)]
    proofs = [event.at for event in struck if event.learner == liar]
    named = [liar in event.scaled or any(at <= event.at for at in means) for event in rounds]
    last = [event.metrics["reward"] for event in steps if event.groups > 0][-LAST:]
    return {
        "reward": fmean(last) if last else math.nan,
        "versions": max((event.version for event in steps), default=0),
        "named": fmean(named) if named else 0.0,
        "rounds": 1 + named.index(True) if True in named else math.nan,
        "innocent": fmean(bool(event.scaled.keys() - {liar}) for event in rounds) if rounds else 0.0,
        "struck": len({event.peer for event in struck if event.learner == liar}),
        "proof": sum(event.at <= min(proofs) for event in rounds) if proofs else math.nan,
        "falsely": sum(event.learner != liar and event.peer != liar for event in struck),
    }
