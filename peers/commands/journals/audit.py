"""`swarm replay --audit`: the fate of every acknowledged group, from the journals of all peers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from peers.build.run_folder import check_files
from peers.commands.journals.journals import read_to_the_end
from peers.errors import WrongUsage, say
from swarm.core.group_accounts import JournalAudit, audit
from swarm.frames.grammar import some
from swarm.journal import parts

SHOWN = 20
"""Groups and versions of each kind that are printed; the rest is a number."""


def run(paths: Sequence[Path]) -> int:
    """Print the audit of all journals in files and folders. Returns 1 when a group was lost or trained twice.
    Damaged lines and empty journals are skipped and reported. Raises WrongUsage where nothing else is
    left."""
    journals = sorted({journal for path in paths for journal in _journals_in(path)})
    empty: list[WrongUsage] = []
    found = audit(*(read_to_the_end(journal, empty.append) for journal in journals))
    if len(empty) == len(journals):
        raise empty[0]
    for nothing in empty:
        say(f"swarm: left out: {nothing}")
    print(some(len(journals) - len(empty), "journal"))
    for line in _lines(found):
        say(line, sys.stdout)
    return 0 if found.passed else 1


def _journals_in(path: Path) -> set[Path]:
    check_files(path)
    found = {path} if path.is_file() else set(path.rglob("journal*.jsonl"))
    for folder in {each.parents[2] for each in found if each.parent.parent.name == "peers"}:
        check_files(folder)
    if not found:
        raise WrongUsage(f"there is no journal in {path}: name run folders, or journal.jsonl files")
    return found - {older for journal in found for _, older in parts(journal) if older != journal}


def _lines(found: JournalAudit) -> Iterator[str]:
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
    gaps = [
        f"{gap.start}" if gap.stop == gap.start + 1 else f"{gap.start}-{gap.stop - 1}" for gap in found.gaps
    ]
    yield f"  in no journal       {sum(gap.stop - gap.start for gap in found.gaps)}{_some(gaps)}"


def _some(names: Iterable[str]) -> str:
    named = list(names)
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f": {'; '.join(named[:SHOWN])}{more}" if named else ""
