"""`swarm replay --audit`: what became of every acknowledged group, from the journals of all peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from peers.errors import WrongUsage
from swarm.core.audit import Audit, audit
from swarm.events import AnyEvent
from swarm.journal import read_journal

SHOWN = 20
"""Groups and versions of each kind that are printed; the rest is a number."""


def run(paths: Sequence[Path]) -> int:
    """Print the audit of all journals in files and folders. Returns 1 when a group was lost or doubled.
    Raises WrongUsage where there is no journal."""
    journals = sorted({journal for path in paths for journal in _journals_in(path)})
    found = audit(event for journal in journals for event in _events(journal))
    print(f"{len(journals)} journals")
    print("\n".join(_lines(found)))
    return 0 if found.passed else 1


def _journals_in(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.rglob("journal*.jsonl"))
    if not found:
        raise WrongUsage(f"there is no journal in {path}: name run folders, or journal.jsonl files")
    return found


def _events(journal: Path) -> Iterator[AnyEvent]:
    try:
        yield from read_journal(journal)
    except msgspec.DecodeError as error:
        raise WrongUsage(f"{journal} is no journal of this program: {error}") from error


def _lines(found: Audit) -> Iterator[str]:
    yield f"groups acknowledged   {found.acknowledged}"
    yield f"  trained once        {found.once}"
    for why, count in sorted(found.refused.items()):
        yield f"  refused, {why:<11} {count}"
    yield f"  waiting at the end  {found.waiting}"
    yield f"  lost                {len(found.lost)}{_some(found.lost)}"
    doubled = [f"{group} in {', '.join(map(str, its))}" for group, its in found.doubled.items()]
    yield f"  trained twice       {len(doubled)}{_some(doubled)}"
    yield f"versions              {found.versions}"
    yield f"  with two digests    {len(found.forked)}{_some(map(str, found.forked))}"
    yield f"  in no journal       {len(found.gaps)}{_some(map(str, found.gaps))}"


def _some(names: Iterable[str]) -> str:
    named = list(names)
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f": {'; '.join(named[:SHOWN])}{more}" if named else ""
