"""The samplers' half of `swarm bench adversaries`: the cost of a third of the samplers that cheats.

    Cheated (the cheat, the defence) --a simulated swarm of the roles that ship--> row
    rows --> cheats.csv and a table: poison that was trained on, named peers, by what and when, last reward

One learner, two honest samplers, and one that cheats from its first group on (lab.studies.liars.cheats); task
`toy`, the policy a table, whose groups any learner replays. Poison is every group that differs from an honest
sampler's for its draw; the suite makes that group itself, and asks no learner. The learner audits samplers
with an invite, too. Not handled here: tolerances of language models, which are wider than a table's
(docs/trust.md).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from lab.studies.experiments import Row, measured
from lab.studies.liars import liars
from lab.studies.liars.cheats import (
    BUCKETS,
    CHEATS,
    FIRST,
    FORGERIES,
    HEADED,
    IDENTITIES,
    LIES,
    PARTNERS,
    drawn_again,
    draws_of,
)
from lab.studies.liars.means import each, mean
from peers.commands import sim
from peers.runtime.host import Host
from peers.sampler.new_group import Drawn, make_group
from peers.sampler.sampler import Sampler
from swarm.core.intake.admission import Admission
from swarm.core.intake.curriculum import Draw
from swarm.events import Audited, Event, Judged, Rejected, Stepped, Trained
from swarm.learn.files.weights import from_bytes
from swarm.protocol import Role
from swarm.sample.toy import ToyEngine
from swarm.settings import config as settings
from swarm.settings.config import DelayLaw, Run
from swarm.settings.peer_limits import Auditing
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import SimPeer, World
from swarm.storage.weights import Weights
from swarm.tasks.base import TaskSource
from swarm.tasks.catalog import source
from swarm.types import Group, PeerId, Struct, Verdict

COMPARED = 16
"""Version whose reward is reported: where a cheat's groups are refused, later ones take longer."""

HEADS = 4
"""Of eight tokens: of the others learners know the mass alone."""

AUDIT = 0.006
"""Virtual seconds of a replay; a gradient of 16 groups takes fifty times as long."""


class Cheated(Struct):
    """A training of which a third of the samplers cheats."""

    cheat: str
    defended: bool
    """The learner is the one that ships; else it trusts everything but rewards, which it computes."""
    seconds: float
    seed: int = 1
    heads: int = 0
    """As run.sampling.heads."""


def plan(quick: bool) -> list[Cheated]:
    seconds, seeds = (24.0, (1,)) if quick else (60.0, (1, 2, 3))
    without = [
        Cheated(cheat=cheat, defended=defended, seconds=seconds, seed=seed)
        for seed in seeds
        for cheat in (*CHEATS, *LIES)
        for defended in (True, False)
    ]
    return without + [
        Cheated(cheat=cheat, defended=True, seconds=seconds, seed=seed, heads=HEADS)
        for seed in seeds
        for cheat in HEADED
    ]


def main(quick: bool, out: Path, minutes: float) -> int:
    """Run or resume the study of samplers in the folder `out`. Returns an exit code."""
    done = measured(plan(quick), suffer, out / "cheats.csv", minutes)
    print(cheats_table([(cell, row) for cell, row in done if not cell.heads]))
    print("", heads_table([(cell, row) for cell, row in done if cell.heads]), sep="\n")
    return 0


FIGURES = ("reward", "poison", "trained", "refused", "named", "by", "after", "groups", "innocent", "versions")
"""Expected reward of version COMPARED, or of the last one; share of the groups trained on that are poison;
groups trained on; share of the cheats' groups that was refused; share of cheats that were named, by what,
seconds and groups after the first false one (of the first that was named); honest samplers that were named or
refused for their groups; versions made."""


def cheats_table(done: Sequence[tuple[Cheated, Row]]) -> str:
    """Markdown: a row a cheat of samplers, means over seeds; the first naming is that of the first seed."""
    lines = [
        "| the cheats | reward | believes all | poison | believes all | refused | named | by | after |"
        " honest named |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cheat, with_, without in each(done, lambda cell: cell.cheat):
        lines.append(
            f"| {cheat} | {mean(with_, 'reward'):.3f} | {mean(without, 'reward'):.3f} |"
            f" {mean(with_, 'poison'):.1%} | {mean(without, 'poison'):.1%} |"
            f" {mean(with_, 'refused'):.0%} | {mean(with_, 'named'):.0%} | {_by(with_)} |"
            f" {_after(with_)} | {sum(float(row['innocent']) for row in with_):.0f} |"
        )
    return "\n".join(lines)


def heads_table(done: Sequence[tuple[Cheated, Row]]) -> str:
    """Markdown: the same of runs with heads, without learners that trust everything."""
    lines = [
        "| with heads, the cheats | reward | poison | refused | named | by | after | honest named |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cheat, rows, _ in each(done, lambda cell: cell.cheat):
        lines.append(
            f"| {cheat} | {mean(rows, 'reward'):.3f} | {mean(rows, 'poison'):.1%} |"
            f" {mean(rows, 'refused'):.0%} | {mean(rows, 'named'):.0%} | {_by(rows)} | {_after(rows)} |"
            f" {sum(float(row['innocent']) for row in rows):.0f} |"
        )
    return "\n".join(lines)


def _by(rows: Sequence[Row]) -> str:
    return ", ".join(sorted({str(row["by"]) for row in rows if row["by"]}))


def _after(rows: Sequence[Row]) -> str:
    if not (found := [row for row in rows if row["by"]]):
        return ""
    return f"{mean(found, 'groups'):.0f} groups, {mean(found, 'after'):.1f} s"


def suffer(one: Cheated) -> Row:
    told: list[Event] = []
    truth = Truth()
    with nullcontext() if one.defended else believing():
        World(scenario(one), lambda peer: spawn(peer, one, truth), sinks=[told.append]).run()
    return figures(told, truth)


class Truth:
    """Facts that the learner does not know."""

    def __init__(self) -> None:
        self.sent: dict[PeerId, list[tuple[float, str, bool]]] = {}
        """Cheat -> time, id and whether it is poison, of each group that it drew; a dropped one is."""
        self.policies: dict[int, Weights] = {}
        """By version."""

    def poison(self) -> set[str]:
        return {group for sent in self.sent.values() for _, group, false in sent if false}

    def began(self, cheat: PeerId) -> float:
        """When it cheated first; where all that it sent is genuine, when it sent that."""
        sent = self.sent[cheat]
        return next((at for at, _, false in sent if false), sent[0][0])


def scenario(one: Cheated) -> Scenario:
    names = IDENTITIES.get(one.cheat, 1)
    return Scenario(
        name="cheats",
        hours=one.seconds / 3600,
        seed=one.seed,
        peers={Role.SEED: 1, Role.LEARNER: 1, Role.SAMPLER: FIRST + names},
        run=Run(
            name="cheats",
            task=settings.TaskSettings(name="toy", options={"buckets": BUCKETS}),
            sampling=settings.Sampling(group_size=4, max_tokens=4, heads=one.heads),
            optimizer=settings.Optimizer(lr=0.8),
            batch=settings.BatchSize(groups=16, close_after=3.0),
            window=settings.Window(versions=5),
            pace=settings.Pace(beat=0.4, patience=1.0),
        ),
        prices={
            "sample": DelayLaw(law="lognormal", seconds=0.15, shape=0.3),
            "learn": DelayLaw(law="constant", seconds=0.3),
            "audit": DelayLaw(law="constant", seconds=AUDIT),
        },
        faults=tuple(_turns(names, one.seconds)) if names > PARTNERS else (),
    )


def _turns(names: int, seconds: float) -> Iterator[Fault]:
    """One of the names at a time."""
    for number in range(names):
        peer = f"sampler-{FIRST + number}"
        if number:
            yield Fault(at=number * seconds / names, fault="host", peer=peer)
        yield Fault(at=(number + 1) * seconds / names, fault="crash", peer=peer)


def spawn(peer: SimPeer, one: Cheated, truth: Truth) -> Coroutine[Any, Any, None]:
    """A peer as it ships, but for samplers that cheat."""
    audit = Auditing(invited=True, share=0.05 if one.defended else 0.0)
    own = msgspec.structs.replace(peer.config.peer, audit=audit)
    peer = dataclasses.replace(peer, config=msgspec.structs.replace(peer.config, peer=own))
    parts = sim.policy_parts(peer.config)
    if peer.role is not Role.SAMPLER:
        return sim.run_peer(peer, parts)
    if peer.name == "sampler-0":
        parts = parts._replace(engine=lambda: Watched(truth, one.heads))
    if int(peer.name.rpartition("-")[2]) < FIRST:
        return sim.run_peer(peer, parts)
    return sim.run_peer(peer, parts, lambda host, parts: _cheat(host, parts, one.cheat, truth))


class Watched(ToyEngine):
    """An honest sampler's, which keeps each policy."""

    def __init__(self, truth: Truth, heads: int) -> None:
        super().__init__(from_bytes, heads=heads)
        self._truth = truth

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._truth.policies[weights.version] = weights


class CheatingSampler(Sampler):
    """Changes each group before it signs it."""

    def __init__(self, host: Host, parts: sim.PolicyParts, tasks: TaskSource, cheat: str, truth: Truth):
        super().__init__(host, parts.engine(), tasks, None)
        self._cheat = (CHEATS | FORGERIES).get(cheat, CHEATS["honest"])()
        self._lie, self._truth = LIES.get(cheat, lambda group: group), truth
        self._true: dict[int, Drawn] = {}
        """id() of a claimed draw -> the assigned one, for groups that are not signed yet."""

    async def _drawn(self, draws: list[Draw]) -> list[Drawn] | None:
        if (sampled := await super()._drawn(draws)) is None:
            return None
        says = list[Drawn]()
        for drawn in sampled:
            if (said := self._cheat(self, drawn)) is None:
                self._note(None, False)
                continue
            due = draws_of(self).of(drawn.policy[0].weights, self.host.ports.me, said.draw.number)
            says.append(said._replace())  # its claim may repeat
            self._true[id(says[-1])] = drawn_again(self, drawn, due)
        return says

    async def _seal(self, drawn: Drawn) -> Group:
        true, group = self._true.pop(id(drawn)), self._lie(await super()._seal(drawn))
        self._note(group, is_genuine(self, true, group))
        return group

    def _note(self, group: Group | None, genuine: bool) -> None:
        what = (self.host.now(), group.id if group is not None else "", not genuine)
        self._truth.sent.setdefault(self.host.ports.me, []).append(what)


def is_genuine(sampler: Sampler, true: Drawn, group: Group) -> bool:
    """Whether the group is an honest sampler's for its draw, which is `true`."""
    rewards, release = sampler.source.rewards(true.task, true.completions.texts), true.policy[0]
    honest = make_group(sampler.host.ports.me, release, true.draw, true.completions, rewards, group.times)
    return group == honest and group.times.released == release.released


def _cheat(host: Host, parts: sim.PolicyParts, cheat: str, truth: Truth) -> CheatingSampler:
    return CheatingSampler(host, parts, source(host.config.run.task, host.config.run.seed), cheat, truth)


@contextmanager
def believing() -> Iterator[None]:
    """In this process, every draw, gap and claim is believed."""
    with ExitStack() as stack:
        stack.enter_context(liars.believing())
        stack.enter_context(mock.patch.object(Admission, "_not_drawn", lambda *_: None))
        stack.enter_context(mock.patch.object(Admission, "_repeats", lambda *_: None))
        yield


def figures(told: Sequence[Event], truth: Truth) -> Row:
    """FIGURES of a training."""
    poison, cheats = truth.poison(), set(truth.sent)
    trained = [group for event in told if isinstance(event, Stepped) for group in event.groups]
    judged = [event for event in told if isinstance(event, Judged) and event.sampler in cheats]
    named = {sampler: how for sampler, how in _named(told).items() if sampler in cheats}
    first = min(named, key=lambda cheat: named[cheat][0], default=None)
    at, by = named[first] if first is not None else (math.nan, "")
    began = truth.began(first) if first is not None else math.nan
    return {
        "reward": _reward(truth),
        "poison": fmean(group in poison for group in trained) if trained else math.nan,
        "trained": len(trained),
        "refused": fmean(event.verdict is not Verdict.ADMIT for event in judged) if judged else math.nan,
        "named": len(named) / len(cheats) if cheats else math.nan,
        "by": by,
        "after": at - began,
        "groups": sum(began <= sent <= at for sent, _, _ in truth.sent[first]) if first else math.nan,
        "innocent": len(_named(told).keys() - cheats),
        "versions": max((event.version for event in told if isinstance(event, Trained)), default=0),
    }


def _named(told: Sequence[Event]) -> dict[PeerId, tuple[float, str]]:
    """Sampler -> when it was first named, or refused for its groups, and by what."""
    named: dict[PeerId, tuple[float, str]] = {}
    for event in told:
        match event:
            case Audited(until=until) if until > 0:
                named.setdefault(event.sampler, (event.at, "a replay"))
            case Rejected(sender=sender, kind="groups") if sender.startswith(Role.SAMPLER):
                named.setdefault(sender, (event.at, "its claims"))
            case Judged(verdict=Verdict.UNTRUSTED | Verdict.MALFORMED) as event:
                by = "its heads" if HEAD.search(event.detail) else "admission"
                named.setdefault(event.sampler, (event.at, by))
    return named


HEAD = re.compile(r"\bheads?\b")


def _reward(truth: Truth) -> float:
    """The expected reward of the last policy, or of version COMPARED."""
    if not (versions := [version for version in truth.policies if version <= COMPARED]):
        return math.nan
    engine = ToyEngine(from_bytes)
    engine.load(truth.policies[max(versions)])
    tasks = source(settings.TaskSettings(name="toy", options={"buckets": BUCKETS}), Run().seed)
    return fmean(
        float(np.exp(engine.row(task.prompt)[0][place, ord(letter) - ord("a")]))
        for task in tasks.held_out(BUCKETS)
        for place, letter in enumerate(task.answer)
    )
