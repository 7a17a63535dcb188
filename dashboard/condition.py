"""The swarm's condition in one line: the first thing that the page and the terminal say.

    State + problems -> the worst problem, or what is waited for, or that all is well, how many samplers the
                        learners can use, and what so few learners are not protected from

A window that never heard anybody says so, and does not say that all was well before; a run in which nothing
was trained yet waits for whoever trains. What is wrong with strangers alone is not said here. Not handled:
what is wrong (dashboard.diagnosis), and a page that has lost its own peer (the page notices that).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dashboard.balance import balance
from dashboard.diagnosis.presence import AWAITED
from dashboard.protection import UNPROTECTED
from dashboard.text import duration
from dashboard.views import Condition, Problem
from swarm.protocol import Role

if TYPE_CHECKING:
    from dashboard.state import State

SILENT = 10.0
"""Seconds without a word of another peer, in which several heartbeats of every peer are missing."""


def condition(state: State, now: float, problems: Sequence[Problem], quiet: float = 0.0) -> Condition:
    """`problems`, worst first; `quiet`: seconds since another peer was heard, 0 in a replay."""
    if problems := [problem for problem in problems if not state.strange(problem)]:
        worst = problems[0]
        kind = "waiting" if worst.key == AWAITED else worst.level
        join = any(problem.key == AWAITED for problem in problems)
        return Condition(kind=kind, text=worst.text, more=len(problems) - 1, join=join)
    known = [peer for peer in state.proven() if peer.role is not Role.OBSERVER]
    if not known:
        since = f" This window has listened for {duration(quiet)}." if quiet >= SILENT else ""
        return Condition(kind="waiting", text=f"No peer was heard yet.{since}")
    if quiet >= SILENT:
        return Condition(
            kind="warning", text=f"Nothing was heard for {duration(quiet)}; before that all was well."
        )
    here = sum(peer.status(now, state.run.pace.patience) == "alive" for peer in known)
    if not here:
        text = (
            "Nobody is here: every peer that was here has left or is lost."
            f" The newest version is {state.version}."
        )
        return Condition(kind="waiting", text=text)
    peers = "1 peer is here" if here == 1 else f"{here} peers are here"
    if not state.begun:
        return Condition(kind="waiting", text=f"Nothing is trained yet: {peers}.")
    learners = sum(
        peer.role is Role.LEARNER and peer.status(now, state.run.pace.patience) == "alive" for peer in known
    )
    said = (f"All is well: {peers}.", balance(state, now), UNPROTECTED.get(learners, ""))
    return Condition(kind="ok", text=" ".join(filter(None, said)))
