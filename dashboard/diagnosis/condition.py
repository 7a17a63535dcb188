"""The swarm's condition in one line: the first sentence of the dashboard and the terminal.

    SwarmState + problems -> the worst problem, or what is awaited, or that all is well, and how many
                             samplers the learners can use

It never contradicts the table of peers (tests/unit/dashboard/test_verdicts.py). A dashboard that never
received a heartbeat says so, and does not claim that all was well before; a run without any training yet
waits for the peers that train. Problems of strangers alone are left out.

How many samplers the learners can use follows from how long each waits for the other: the learners for groups
in their last steps, the samplers between theirs. There is no advice where neither waits long, where both do
(something else is slow), or in a swarm whose samplers this dashboard does not see. Learners' seconds and
samplers' busy shares are their claims: the sentence advises, and nothing depends on it.

Protections that a swarm with so few learners lacks (docs/trust.md) are a note for as long as they are so few:
the dashboard and the terminal show it apart from problems. Not handled: problems (dashboard.diagnosis), and a
dashboard that has lost its own peer (the dashboard notices that).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dashboard.diagnosis.presence import AWAITED, LOADING
from dashboard.diagnosis.situation import Situation, strange
from dashboard.fold.state import SwarmState
from dashboard.text import duration
from dashboard.views import Condition, Problem
from swarm.frames.grammar import some
from swarm.protocol import Role

SILENT = 10.0
"""Seconds without a message of another peer, in which several heartbeats of every peer are missing."""

STEPS = 16
"""Steps of learners before there is advice: the first ones wait for all peers to come."""

HUNGRY, FED = 0.25, 0.05
"""Share of their time in which learners wait for groups: from the first on there are too few, below the
second enough. A batch is never there to the second, so that some waiting stays."""

BUSY, IDLE = 0.8, 0.6
"""Share of their time in which samplers sample: from the first on they do all they can, below the second they
have time for more. They adopt policies and draw tasks in the rest."""

UNPROTECTED: Mapping[int, str] = {
    1: "One learner trains: no other checks what it does.",
    2: "Two learners train: neither can outvote the other.",
    3: "Three learners train: they outvote one that lies, until one of them goes.",
}
"""Learners that are here -> what to know. From four on one may go, and one lie."""


def condition(state: SwarmState, now: float, problems: Sequence[Problem], quiet: float = 0.0) -> Condition:
    """`problems`, worst first; `quiet`: seconds since the last message of another peer, 0 in a replay."""
    if problems := [problem for problem in problems if not strange(state, problem)]:
        worst = problems[0]
        kind = "waiting" if worst.key.startswith((AWAITED, LOADING)) else worst.level
        join = any(problem.key == AWAITED for problem in problems)
        return Condition(kind=kind, text=worst.text, more=len(problems) - 1, join=join)
    patience = state.run.pace.patience
    known = [peer for peer in state.peers.values() if peer.role is not Role.OBSERVER]
    alive = [peer for peer in known if peer.status(now, patience) == "alive"]
    here = [peer for peer in alive if state.counts(peer.id)]
    strangers = some(len(alive) - len(here), "stranger")
    if not any(state.counts(peer.id) for peer in known):
        if alive:
            return Condition(kind="waiting", text=f"Of the run only {strangers} can be heard.")
        since = f" This window has listened for {duration(quiet)}." if quiet >= SILENT else ""
        return Condition(kind="waiting", text=f"No peer was heard yet.{since}")
    if not here:
        text = f"Every peer that was here has left or is lost. The newest version is {state.version}."
        return Condition(kind="waiting", text=text + (f" {strangers} can be heard." if alive else ""))
    if quiet >= SILENT:
        return Condition(
            kind="warning", text=f"Nothing was heard for {duration(quiet)}; before that all was well."
        )
    if Situation(state, now).complete:
        return Condition(kind="ok", text=f"The run is complete, with version {state.version}.")
    peers = f"{some(len(here), 'peer')} {'is' if len(here) == 1 else 'are'} here"
    if not state.begun:
        return Condition(kind="waiting", text=f"Nothing is trained yet: {peers}.")
    said = (f"All is well: {peers}.", _balance(state, now))
    return Condition(kind="ok", text=" ".join(filter(None, said)))


def _balance(state: SwarmState, now: float) -> str:
    """A sentence about how many samplers more, or less, the learners can use; empty where the number is
    right."""
    situation, spent = Situation(state, now), state.recent.spent
    samplers = situation.working(Role.SAMPLER)
    if len(spent) < STEPS or not samplers or not situation.receives(Role.SAMPLER):
        return ""
    waits = sum(one.gather for one in spent) / max(sum(map(sum, spent)), 1e-9)
    busy = sum(peer.busy for peer in samplers) / len(samplers)
    if HUNGRY <= waits < 1.0 and busy >= BUSY:
        return _more(math.ceil(len(samplers) * waits / (1.0 - waits)), waits)
    used = max(1, math.ceil(len(samplers) * busy))
    if waits <= FED and busy <= IDLE and used < len(samplers):
        return (
            f"The samplers have nothing to do in {1.0 - busy:.0%} of their time: the learners can use the"
            f" groups of about {used} of these {len(samplers)}."
        )
    return ""


def _more(count: int, waits: float) -> str:
    samplers = "1 more sampler" if count == 1 else f"{count} more samplers"
    return (
        f"The learners wait for groups in {waits:.0%} of their time: about {samplers} like those here would"
        " be of use."
    )


def unprotected(state: SwarmState, now: float) -> str:
    """Empty where no learner is here, or enough are."""
    learners = [peer for peer in state.alive(Role.LEARNER, now) if state.counts(peer.id)]
    return UNPROTECTED.get(len(learners), "")
