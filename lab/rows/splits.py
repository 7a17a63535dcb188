"""Row `splits`: a swarm cut in two halves that both train on, once with run.release.fork = "merge" and once
with "longest".

    the same cut -> World -> events -> groups trained once, learnt on in vain, rewards after the halves met

The roles that ship, in virtual time, with the toy task's table: prices of work are made up. Rewards are those
of groups as samplers took them, so that they are of the policies that they had. Not handled here: what a mean
of two policies is worth for a language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from lab.figures.table import TOO_MANY, Figure, number
from peers.commands import sim
from swarm.core.group_accounts import audit
from swarm.events import AnyEvent, Event, Forked, Released, Sampled, Started, Trained
from swarm.protocol import Kind, Role
from swarm.settings.config import (
    Averaging,
    BatchSize,
    DelayLaw,
    Optimizer,
    Releasing,
    Run,
    Sampling,
    TaskSettings,
)
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import World

if TYPE_CHECKING:
    from lab.figures.table import Say

SEEDS = (1, 2, 3)

CUTS = (30.0, 120.0)
"""Seconds for which the halves do not hear each other: some 8 and 30 versions of each."""

BEFORE, AFTER = 40.0, 60.0
"""Seconds before the cut and after its end."""

HALVES = (
    ("seed-0", "learner-0", "sampler-0", "sampler-1", "sampler-2"),
    ("learner-1", "sampler-3", "sampler-4", "sampler-5"),
)

SLOTS = ((10.0, 30.0), (30.0, 60.0))
"""Seconds after the halves met, over which rewards are averaged."""

Rule = Literal["merge", "longest"]
RULES: tuple[Rule, Rule] = ("merge", "longest")


class Played(NamedTuple):
    """What became of one cut."""

    trained: int
    """Acknowledged groups that the policy at the end was trained on, each once."""
    vain: int
    """Groups that were learnt on beyond these: their step did not count, and most were learnt on again."""
    wrong: int
    """Groups lost or trained twice, and versions with two digests after the halves met."""
    merges: int
    rewards: tuple[float, ...]
    """Mean of the groups sampled in each of SLOTS."""


def measure(say: Say, seeds: Sequence[int] = SEEDS, cuts: Sequence[float] = CUTS) -> list[Figure]:
    import torch

    torch.set_num_threads(1)
    found: list[Figure] = []
    for cut in cuts:
        say(f"{len(seeds)} swarms cut for {cut:g} virtual s, twice each")
        merge, longest = ([played(cut, rule, seed) for seed in seeds] for rule in RULES)
        found += _figures(cut, merge, longest)
    return found


def scene(cut: float, rule: Rule, seed: int) -> Scenario:
    return Scenario(
        name="splits",
        hours=(BEFORE + cut + AFTER) / 3600,
        peers={Role.SEED: 1, Role.LEARNER: 2, Role.SAMPLER: 6},
        seed=seed,
        prices={
            Kind.SAMPLE: DelayLaw(law="lognormal", seconds=2.0, shape=0.3),
            Kind.LEARN: DelayLaw(law="constant", seconds=0.5),
        },
        run=Run(
            name="splits",
            task=TaskSettings(name="toy"),
            sampling=Sampling(group_size=4, max_tokens=4),
            optimizer=Optimizer(lr=0.1),
            batch=BatchSize(groups=8, close_after=3.0),
            averaging=Averaging(match=2.0, deadline=6.0, chunk=3.0),
            release=Releasing(fork=rule),
        ),
        faults=(
            Fault(at=BEFORE, fault="partition", between=HALVES),
            Fault(at=BEFORE + cut, fault="repair", between=HALVES),
        ),
    )


def played(cut: float, rule: Rule, seed: int) -> Played:
    told: list[Event] = []
    World(scene(cut, rule, seed), sim.spawn, sinks=[told.append]).run()
    found = audit(cast(list[AnyEvent], told))
    met = min(event.at for event in told if isinstance(event, Started)) + BEFORE + cut
    learnt = sum(event.groups for event in told if isinstance(event, Trained))
    settled = met + SLOTS[0][0]
    late = {
        (event.release.version, event.release.weights)
        for event in told
        if isinstance(event, Released) and event.at > settled
    }
    two = len(late) - len({version for version, _ in late})
    rewards = (
        mean(event.reward for event in told if isinstance(event, Sampled) and start <= event.at - met < end)
        for start, end in SLOTS
    )
    return Played(
        trained=found.once,
        vain=learnt - found.once,
        wrong=len(found.lost) + len(found.doubled) + two,
        merges=sum(isinstance(event, Forked) and event.share > 0 for event in told),
        rewards=tuple(rewards),
    )


def _figures(cut: float, merge: Sequence[Played], longest: Sequence[Played]) -> list[Figure]:
    def figure(what: str, unit: str, of: Sequence[float], other: Sequence[float], note: str = "") -> Figure:
        return Figure(
            row="splits",
            what=f"cut for {cut:g} s: {what}",
            value=mean(of),
            unit=unit,
            against="longest",
            other=mean(other),
            note=note,
        )

    def both(name: str) -> tuple[list[float], list[float]]:
        of, other = ([float(getattr(one, name)) for one in each] for each in (merge, longest))
        return of, other

    spans = [f"{start:g} to {end:g} s after" for start, end in SLOTS]
    rewards = [
        figure(
            f"reward {span}",
            "of reward",
            [one.rewards[k] for one in merge],
            [one.rewards[k] for one in longest],
            "per seed "
            + ", ".join(
                f"{number(a.rewards[k])} / {number(b.rewards[k])}"
                for a, b in zip(merge, longest, strict=True)
            ),
        )
        for k, span in enumerate(spans)
    ]
    return [
        figure("groups trained that count", "groups", *both("trained")),
        figure(
            "groups learnt on in vain",
            TOO_MANY,
            *both("vain"),
            note=f"merges: {[one.merges for one in merge]}",
        ),
        figure("lost, doubled, two digests after", TOO_MANY, *both("wrong")),
        *rewards,
    ]
