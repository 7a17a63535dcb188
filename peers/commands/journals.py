"""The journals of a run folder, and what people are told of lines in them that are no events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from peers.errors import WrongUsage, say
from swarm.events import AnyEvent
from swarm.journal import Damage, Tail, read_journal
from swarm.protocol import Role


def tails(folder: Path) -> list[Tail]:
    """The seed's journal, which has all that others told, or those of all peers."""
    seed = folder / "peers" / Role.SEED / "journal.jsonl"
    paths = [seed] if seed.exists() else sorted(folder.glob("peers/*/journal.jsonl"))
    return [Tail(path, tell_first) for path in paths]


def tell_first(damage: Damage) -> None:
    """For who follows a journal: the first one is told."""
    if damage.lines == 1:
        say(f"swarm: {damage}, and so are others like it")


def read_to_the_end(journal: Path) -> Iterator[AnyEvent]:
    """All events; a sentence about the other lines, once all are read. Raises WrongUsage where there is no
    event among them."""
    some, last = False, deque[Damage](maxlen=1)
    for event in read_journal(journal, last.append):
        some = True
        yield event
    for damage in last:
        if not some:
            raise no_journal(journal, damage)
        say(f"swarm: {damage}")


def no_journal(path: Path, damage: Damage | None) -> WrongUsage:
    why = f"line {damage.line} is no event ({damage.why})" if damage else "it has no whole line"
    return WrongUsage(f"{path} is no journal of this program: {why}")
