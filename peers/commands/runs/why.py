"""`swarm why`: the activity of a peer on this machine, why it is idle, since when, and what to do.

    journal of the peer --fold--> SwarmState --dashboard.diagnosis--> what concerns this peer
                                    |
                                    +--peers.runtime.limits.idle--> why it waits, where no rule is sure yet

Reads files alone, so that it works for a peer that hangs or has ended. Exit codes are those of all commands:
0 it works, or waits for the others' work; 3 it does not run, or this machine prevents it; 4 no peer that it
needs is present; 5 its groups are refused, or its membership ends. Not handled here: the whole swarm (`swarm
status`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dashboard.diagnosis import Situation, diagnose
from dashboard.fold.peer import PeerRow
from dashboard.fold.state import SwarmState
from dashboard.text import duration
from dashboard.views import Problem, SentenceView
from peers.build import run_folder
from peers.commands.journals import journals
from peers.errors import CANNOT, DONE, REFUSED, UNREACHED, WrongUsage
from peers.runtime import peer_folder
from peers.runtime.limits import idle
from peers.runtime.watching.narration import LOG
from swarm.core.revocation import YOU
from swarm.frames.grammar import some
from swarm.journal import Tail
from swarm.protocol import PHASES, Phase, Role
from swarm.settings.config import Run

WORST = (CANNOT, UNREACHED, REFUSED, DONE)
"""Exit codes of several peers, in order of precedence."""

OUT = "joining again is refused: ask the owner for a new invite, and join with it from an empty folder"
"""Advice for a revoked peer."""

LATELY = 3
"""Last sentences of a peer that are shown."""

CODES = {
    "refused": REFUSED,
    "suspended": REFUSED,
    "membership": REFUSED,
    "no policy": UNREACHED,
    "no learner": UNREACHED,
    "deaf": CANNOT,
    "fault": CANNOT,
    "disk": CANNOT,
    "clock": CANNOT,
}
"""Beginning of a problem's key -> exit code."""

REFUSALS = "refused "
"""Prefix of the keys of problems about a sampler whose groups are refused."""


class Explained(NamedTuple):
    """One peer."""

    name: str
    """Of its folder."""
    head: str
    rows: tuple[tuple[str, str], ...]
    """Label and text of each line."""
    code: int

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.head, *(f"  {label:6} {text}" for label, text in self.rows))

    @property
    def data(self) -> dict[str, object]:
        said = [text for label, text in self.rows if label == "said"]
        return {"peer": self.name, "is": self.head, **dict(self.rows), "said": said, "code": self.code}


class Reason(NamedTuple):
    """Why a peer does not work, and what to do."""

    why: str
    todo: str
    code: int = DONE


def why(folder: Path, as_json: bool = False) -> int:
    """Print a block for each peer of this run folder, or all of them as JSON. Returns an exit code; raises
    WrongUsage where none ran that has work to do."""
    run = run_folder.opened(folder)
    files = sorted(folder.glob("peers/*/journal.jsonl"))
    if not files:
        raise WrongUsage(f"no peer of {folder} has run yet: `swarm join` starts one there")
    files = [path for path in files if not path.parent.name.startswith(Role.OBSERVER)]
    if not files:
        raise WrongUsage(
            f"only an observer has run in {folder}, which has no work to wait for: `swarm status`"
            " shows what it sees"
        )
    running, settings, now = peer_folder.running(folder), run.settings, time.time()
    found = [explain(journal, settings, running.get(journal.parent.name), now) for journal in files]
    if as_json:
        print(json.dumps([one.data for one in found], indent=2))
    else:
        print("\n\n".join("\n".join(one.lines) for one in found))
    return min((one.code for one in found), key=WORST.index)


def explain(journal: Path, run: Run, pid: int | None, now: float) -> Explained:
    """The activity of this journal's peer at `now`, by the machine's clock; `pid` is its process, None where
    none runs."""
    state = SwarmState(run)
    for event in Tail(journal, journals.print_first).news():
        state = journals.followed(state, event)
    if pid is not None:
        now = journals.now([journal], state.last, now)
    me, name = state.recent.me, journal.parent.name
    row = state.peers.get(me) if me is not None else None
    if row is None:
        says = f"has not started yet (process {pid})" if pid is not None else "ended before it started"
        log = (("log", _log(journal)),)
        return Explained(name, f"{name} {says}", log, DONE if pid is not None else CANNOT)
    reason = _stopped(state, row, now) if pid is None else _reason(state, row, now)
    head = f"{row.role} {row.name} ({name}), {f'process {pid}' if pid is not None else 'does not run'}"
    rows = []
    if pid is not None:
        rows.append(("does", _does(state, row, now)))
    if reason is not None:
        rows += [("why", reason.why), ("do", reason.todo)]
    if pid is not None:
        rows.append(("hears", _received(state, row, now)))
    own = [line for line in state.events() if line.level != "info"]
    rows += [("said", _line(line, now)) for line in own[-LATELY:]]
    rows.append(("log", _log(journal)))
    return Explained(name, head, tuple(rows), DONE if reason is None else reason.code)


def _line(line: SentenceView, now: float) -> str:
    return f"{duration(max(now - line.at, 0.0))} ago: {line.text}"


def _log(journal: Path) -> str:
    return str(journal.with_name(LOG))


def _stopped(state: SwarmState, row: PeerRow, now: float) -> Reason:
    how = "the command that started the run" if row.role is Role.SEED else "`swarm join INVITE` or `swarm up`"
    again = f"{how} with the same --folder restarts it, and it catches up with the swarm"
    if row.revoked:
        return Reason(f"{YOU}, {duration(now - row.heard)} ago", OUT, REFUSED)
    if row.gone == "left" and 0 < state.run.stop.versions <= (row.version or 0):
        complete = f"it left {duration(now - row.heard)} ago: the run is complete, with version {row.version}"
        return Reason(complete, "`swarm export DIR` in this folder writes the model", DONE)
    if row.gone == "left":
        return Reason(f"it left {duration(now - row.heard)} ago, as it was asked to", again, CANNOT)
    return Reason(
        f"it ended {duration(now - row.heard)} ago without leaving: killed, or the machine went down",
        f"read the end of its log; {again}",
        CANNOT,
    )


def _does(state: SwarmState, row: PeerRow, now: float) -> str:
    since = duration(Situation(state, now).since(row))
    version = f"version {row.version}" if row.version >= 0 else "no policy yet"
    newer = f" (the newest announced is {state.version})" if state.version > row.version >= 0 else ""
    groups = f"; {row.done:,} groups, {row.refused:,} refused" if row.role is Role.SAMPLER else ""
    return f"{PHASES[row.phase]}, for {since}; {version}{newer}{groups}"


def _reason(state: SwarmState, row: PeerRow, now: float) -> Reason | None:
    """Why it does not work as it should; None where it does."""
    mine = [one for one in diagnose(state, now) if _concerns(one, row)]
    if mine:
        worst = mine[0]
        codes = CODES if row.id in worst.peers or not worst.key.startswith(REFUSALS) else {}
        code = next((code for begins, code in codes.items() if worst.key.startswith(begins)), DONE)
        return Reason(f"{worst.text} {worst.cause}", worst.todo, code)
    return _waiting(Situation(state, now), row)


def _concerns(problem: Problem, row: PeerRow) -> bool:
    """Whether it is about this peer, about all of a role that it needs, or about groups that it waits for."""
    waits = row.phase is Phase.GATHERING and problem.key.startswith(REFUSALS)
    return row.id in problem.peers or problem.key in ("deaf", "no learner") or waits


def _waiting(s: Situation, row: PeerRow) -> Reason | None:
    """Why a peer is idle, before a rule of the diagnosis is sure that it is for too long."""
    fetched = row.fetching
    cause = idle.cause(
        idle.IdleSigns(
            row.phase,
            len(s.learners()),
            len(s.alive[Role.SEED]),
            idle.fetching(fetched.version, fetched.held, fetched.size) if fetched is not None else "",
            fault=next((fault.detail for (who, _), fault in s.recent.faults.items() if who == row.id), ""),
        )
    )
    return None if cause is None else Reason(cause.long, cause.todo, cause.code)


def _received(state: SwarmState, row: PeerRow, now: float) -> str:
    """The peers whose heartbeats it receives, by role, with the credit of learners."""
    return ", ".join(_by_role(Situation(state, now), row)) or "no other peer"


def _by_role(s: Situation, row: PeerRow) -> Iterator[str]:
    for role in Role:
        others = [one for one in s.alive[role] if one.id != row.id]
        credit = f" (credit {sum(one.credit for one in others)})" if role is Role.LEARNER else ""
        if others:
            yield f"{some(len(others), role)}{credit}"
