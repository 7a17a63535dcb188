"""The journals of a run folder, and messages about their damaged lines.

A peer keeps the clock of its start (swarm.net.libp2p.node.SteadyClock), while the machine's clock may be set
meanwhile; readers of a journal therefore take the current time from `now`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from peers.errors import WrongUsage, say
from swarm.core.roster import CLOCK
from swarm.events import AnyEvent, Started
from swarm.journal import Damage, Tail, read_journal
from swarm.protocol import Role


def tails(folder: Path) -> list[Tail]:
    """The seed's journal, which has the events of all peers, or else those of all peers here."""
    seed = folder / "peers" / Role.SEED / "journal.jsonl"
    paths = [seed] if seed.exists() else sorted(folder.glob("peers/*/journal.jsonl"))
    return [Tail(path, print_first) for path in paths]


def now(journals: Iterable[Path], last: float, machine: float) -> float:
    """Unix seconds by the clock of the peers that write these journals, whose newest event happened at
    `last`, where the machine's clock says `machine`. The files' modification times, by the machine's clock,
    give the difference."""
    written = max(filter(None, map(_written, journals)), default=last)
    ahead = last - written
    return machine + ahead if last and abs(ahead) > CLOCK else machine


def _written(journal: Path) -> float:
    """Zero where it is not there, or is about to be begun anew."""
    try:
        return journal.stat().st_mtime
    except OSError:
        return 0.0


def followed(state: SwarmState, event: AnyEvent) -> SwarmState:
    """The state after one more event of a single journal. Where the writing peer was restarted with its clock
    set back, a new state begins: the entries of the old one would lie in the future and look current."""
    if isinstance(event, Started) and event.peer == state.timeline.keeper and event.at < state.last - CLOCK:
        began_with, state = state.starts, SwarmState(state.run)
        state.starts = began_with
    fold(state, event)
    return state


def print_first(damage: Damage) -> None:
    """For readers that follow a journal: report only the first damaged line."""
    if damage.lines == 1:
        say(f"swarm: {damage}, and so are others like it")


def read_to_the_end(journal: Path, empty: Callable[[WrongUsage], None] | None = None) -> Iterator[AnyEvent]:
    """All events; a sentence about damaged lines, once all are read. Raises WrongUsage where no line is an
    event; `empty` takes that error for a journal without a line, as of a peer that ended at once."""
    some, last = False, deque[Damage](maxlen=1)
    for event in read_journal(journal, last.append):
        some = True
        yield event
    if not some:
        nothing = no_journal(journal, last[0] if last else None)
        if last or empty is None:
            raise nothing
        return empty(nothing)
    for damage in last:
        say(f"swarm: {damage}")


def no_journal(path: Path, damage: Damage | None) -> WrongUsage:
    why = f"line {damage.line} is not an event of a run" if damage else "it has no whole line"
    return WrongUsage(f"{path} is not a journal of this program: {why}")
