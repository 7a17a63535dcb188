"""A journal in files of a bounded size: nothing is lost or read twice where a new one begins, the oldest
goes, and heartbeats that say nothing new are thinned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nouns import beat

from dashboard.serve.replay import JournalReplay
from dashboard.serve.state_view import view_of
from swarm import journal
from swarm.events import AnyEvent, Event, Heard, Noted
from swarm.journal import Damage, Journal, Tail, Thinned, parts, read_journal
from swarm.protocol import Phase
from swarm.types import PeerId

ME = PeerId("me")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FILE", 1000)
    monkeypatch.setattr(journal, "FILES", 4)


def noted(number: int) -> Noted:
    return Noted(at=float(number), peer=ME, level="info", text=f"{number:04}")


def numbers(events: Any) -> list[int]:
    return [int(event.at) for event in events]


def written(path: Path, numbers: range) -> Journal:
    kept = Journal(path)
    for number in numbers:
        kept(noted(number))
    return kept


def test_a_journal_has_files_of_one_size_and_the_oldest_goes(tmp_path: Path) -> None:
    kept = written(tmp_path / "journal.jsonl", range(200))
    kept.close()
    files = [file for _, file in parts(kept.path)]
    assert len(files) == 4 and files[-1] == kept.path and not kept.lost
    assert all(1000 <= file.stat().st_size < 1100 for file in files[:-1])
    found = numbers(read_journal(kept.path))
    assert found == list(range(found[0], 200)) and 30 < len(found) < 100
    again = written(kept.path, range(200, 210))
    again.close()
    assert numbers(read_journal(kept.path))[-15:] == list(range(195, 210))


@pytest.mark.parametrize("every", [1, 7, 30])
def test_who_follows_a_journal_reads_every_event_once_though_files_begin_meanwhile(
    tmp_path: Path, every: int
) -> None:
    kept, tail, found = Journal(tmp_path / "journal.jsonl"), Tail(tmp_path / "journal.jsonl"), list[int]()
    for number in range(200):
        kept(noted(number))
        if number % every == 0:
            found += numbers(tail.news())
    assert found + numbers(tail.news()) == list(range(200))


def test_who_slept_while_files_went_goes_on_with_the_oldest_that_is_there(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "journal.jsonl")
    kept = written(tail.path, range(3))
    assert numbers(tail.news()) == [0, 1, 2]
    for number in range(3, 300):
        kept(noted(number))
    found = numbers(tail.news())
    assert found == list(range(found[0], 300)) and found[0] > 3


def test_lines_that_are_no_events_are_left_out_and_counted_and_the_first_one_is_named(tmp_path: Path) -> None:
    kept = written(tmp_path / "journal.jsonl", range(1, 60))
    (_, first), (_, second), *_ = parts(kept.path)
    junk, lines = b"\x00\xff\n", first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join([*lines[:2], junk, *lines[2:]]))
    second.write_bytes(second.read_bytes() + junk)
    found: list[Damage] = []
    before = numbers(read_journal(kept.path, found.append))
    assert before == list(range(before[0], 60))
    damage = found[-1]
    assert (damage.lines, damage.file, damage.line) == (2, first, 3) and len(found) == 2
    replay = JournalReplay(kept.path)
    assert replay.damage == damage and replay.span.last == 59.0
    with pytest.raises(msgspec.DecodeError, match=f"line 3 of {first} is not an event"):
        list(read_journal(kept.path))


def test_a_replay_has_all_files(tmp_path: Path) -> None:
    kept = written(tmp_path / "journal.jsonl", range(1, 60))
    assert len(parts(kept.path)) == 4
    found: list[AnyEvent] = list(read_journal(kept.path))
    replay = JournalReplay(kept.path)
    assert (replay.span.first, replay.span.last) == (found[0].at, 59.0)
    for at in (found[0].at, 30.5, 59.0):
        assert view_of(replay.moment(at).state, at) == view_of(JournalReplay(found).moment(at).state, at)


def test_heartbeats_that_say_nothing_new_are_thinned() -> None:
    kept: list[Event] = []
    sink = Thinned(kept.append)

    def hears(peer: str, **changes: Any) -> bool:
        before = len(kept)
        sink(Heard(at=0.0, peer=ME, subject=PeerId(peer), beat=beat(**changes)))
        return len(kept) > before

    assert [hears("a", seq=seq, inbox=seq) for seq in range(1, 7)] == [True, False, True, False, True, False]
    assert hears("b", seq=1) and hears("a", seq=9), "each peer's own, and one after some were lost"
    changes = [{"version": 1}, {"weights": "b" * 64}, {"incarnation": 2}, {"phase": Phase.LEAVING}]
    for seq, change in enumerate(changes, 100):
        assert hears(f"c{seq}", seq=seq) and hears(f"c{seq}", seq=seq + 1, **change)
    sink(noted(1))
    assert kept[-1] == noted(1)


def test_where_no_page_plays_the_journal_versions_come_with_the_next_heartbeat_that_is_kept() -> None:
    kept: list[Heard] = []
    sink = Thinned(kept.append, apart=3.0)  # type: ignore[arg-type]
    for seq in range(100):  # ten versions a second, and a heartbeat with each
        sink(Heard(at=seq / 10, peer=ME, subject=PeerId("a"), beat=beat(seq=seq, version=seq)))
    assert [event.beat.version for event in kept] == [0, 30, 60, 90]
    sink(Heard(at=9.95, peer=ME, subject=PeerId("a"), beat=beat(seq=100, version=100, phase=Phase.LEAVING)))
    assert kept[-1].beat.phase is Phase.LEAVING, "who leaves is not taken for lost"


def test_a_disk_that_cannot_be_read_as_a_journal_opens_costs_no_event_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, range(5)).close()

    def fails(file: Any) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_whole_lines", fails)
        kept = Journal(path)
    assert kept.refusal == "Input/output error" and kept._file is None
    kept(noted(5))
    limited(kept, 5)(noted(6))
    kept(noted(7))
    assert numbers(read_journal(path)) == [0, 1, 2, 3, 4, 5, 7]


def test_who_empties_a_full_disks_journal_finds_the_next_events_in_it_and_no_zeros(tmp_path: Path) -> None:
    kept = written(tmp_path / "journal.jsonl", range(5))
    tail = Tail(kept.path)
    assert numbers(tail.news()) == [0, 1, 2, 3, 4]
    limited(kept, 5)(noted(5))
    assert kept.refusal
    os.truncate(kept.path, 0)
    kept(noted(6))
    kept(noted(7))
    assert numbers(tail.news()) == numbers(read_journal(kept.path)) == [6, 7]
    assert b"\0" not in kept.path.read_bytes() and not kept.refusal
    os.truncate(kept.path, kept.path.stat().st_size - 3)
    kept(noted(8))
    assert numbers(read_journal(kept.path)) == [6, 8]
    limited(kept, 5)(noted(9))
    os.truncate(kept.path, 0)
    kept.close()
    assert kept.path.read_bytes() == b""


def test_a_removed_journal_begins_anew_and_says_so_once(tmp_path: Path) -> None:
    kept = written(tmp_path / "journal.jsonl", range(3))
    tail, heard = Tail(kept.path), list[str]()
    assert numbers(tail.news()) == [0, 1, 2]
    kept.on_disk = heard.append
    kept.path.rename(tmp_path / "another's name")
    kept.path.touch()  # a file of another inode, as `logrotate` makes one
    (tmp_path / "another's name").unlink()
    for number in range(3, 9):
        kept(noted(number))
    assert numbers(tail.news()) == numbers(read_journal(kept.path)) == [3, 4, 5, 6, 7, 8]
    assert heard == ["the file that had those so far was removed, and another one begins", ""]
    assert kept.lost == 0


def limited(kept: Journal, most: int) -> Journal:
    """Its disk takes so many bytes of the next event."""
    file: Any = kept._file

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

        def write(self, content: bytes) -> int:
            kept._file = file
            return int(file.write(content[:most]))

    kept._file = Full()  # type: ignore[assignment]
    return kept
