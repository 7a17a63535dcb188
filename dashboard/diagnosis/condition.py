"""The swarm's condition in one line: the first thing that the page and the terminal say.

    State + problems -> the worst problem, or what is waited for, or that all is well, and how many samplers
                        the learners can use

It says nothing that the table of peers denies (tests/dashboard/test_verdicts.py). A window that never heard
anybody says so, and does not say that all was well before; a run in which nothing was trained yet waits for
whoever trains. What is wrong with strangers alone is not said here, and neither is what stays as it is
(dashboard.diagnosis.protection). Not handled: what is wrong (dashboard.diagnosis), and a page that has lost
its own peer (the page notices that).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dashboard.diagnosis.balance import balance
from dashboard.diagnosis.presence import AWAITED, LOADING
from dashboard.diagnosis.situation import Situation
from dashboard.fold.text import duration
from dashboard.fold.views import Condition, Problem
from swarm.frames.grammar import some
from swarm.protocol import Role

if TYPE_CHECKING:
    from dashboard.fold.state import State

SILENT = 10.0
"""Seconds without a word of another peer, in which several heartbeats of every peer are missing."""


def condition(state: State, now: float, problems: Sequence[Problem], quiet: float = 0.0) -> Condition:
    """`problems`, worst first; `quiet`: seconds since another peer was heard, 0 in a replay."""
    if problems := [problem for problem in problems if not state.strange(problem)]:
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
    said = (f"All is well: {peers}.", balance(state, now))
    return Condition(kind="ok", text=" ".join(filter(None, said)))
