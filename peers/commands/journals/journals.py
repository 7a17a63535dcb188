"""The journals of a run folder, and what people are told of lines in them that are no events.

A peer keeps the clock of its start (swarm.net.libp2p.node.SteadyClock), and the machine's may be set
meanwhile: who reads a journal asks `now` what time it is there.
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
    """The seed's journal, which has all that others told, or those of all peers."""
    seed = folder / "peers" / Role.SEED / "journal.jsonl"
    paths = [seed] if seed.exists() else sorted(folder.glob("peers/*/journal.jsonl"))
    return [Tail(path, tell_first) for path in paths]


def now(journals: Iterable[Path], last: float, machine: float) -> float:
    """Unix seconds by the clock of who writes these journals, of which the newest event happened at `last`,
    where the machine's clock says `machine`: that clock says, too, when the files were written."""
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
    """The state with one more event of a single journal: a new one from where the peer that writes it was
    started again by a clock that had been set back. What the old one has would seem to be of this moment for
    as long."""
    if isinstance(event, Started) and event.peer == state.timeline.keeper and event.at < state.last - CLOCK:
        began_with, state = state.starts, SwarmState(state.run, state.history)
        state.starts = began_with
    fold(state, event)
    return state


def tell_first(damage: Damage) -> None:
    """For who follows a journal: the first one is told."""
    if damage.lines == 1:
        say(f"swarm: {damage}, and so are others like it")


def read_to_the_end(journal: Path, empty: Callable[[WrongUsage], None] | None = None) -> Iterator[AnyEvent]:
    """All events; a sentence about the other lines, once all are read. Raises WrongUsage where there is no
    event among them; `empty` hears that of a journal without a line, as of a peer that ended at once."""
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
