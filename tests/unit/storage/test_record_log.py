"""Records that are read back after a crash: all that were synced, nothing that is torn."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from crash_states import recorded

from swarm.storage.record_log import RecordLog, whole_records


def written(folder: Path, *lives: list[bytes], segment_bytes: int = 1 << 20) -> None:
    for records in lives:
        log = RecordLog(folder, segment_bytes)
        list(log.read())
        for record in records:
            log.append([record])
        log.close()


def read(folder: Path) -> list[bytes]:
    return [record for _, record in RecordLog(folder, 1).read()]


def test_what_was_appended_is_read_back_in_order_over_several_lives(tmp_path: Path) -> None:
    written(tmp_path / "log", [b"one", b"two"], [b"three"], [b"four"])
    assert read(tmp_path / "log") == [b"one", b"two", b"three", b"four"]


def test_what_a_disk_that_fills_up_takes_in_part_is_not_acknowledged(tmp_path: Path) -> None:
    log, acknowledged = RecordLog(tmp_path / "log", 1 << 20), 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError):
            while True:
                log.append([bytes([acknowledged + 1]) * 3000])
                acknowledged += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 0 < acknowledged == len(read(tmp_path / "log"))


def test_a_record_that_was_acknowledged_outlives_a_failure_at_any_step(tmp_path: Path) -> None:
    folder, acknowledged = Path("peers") / "learner-1" / "groups", dict[str, int]()
    records = [b"%d" % number * 400 for number in range(1, 9)]
    with recorded(tmp_path / "disk") as disk:
        log = RecordLog(tmp_path / "disk" / folder, 2000)
        for number, record in enumerate(records):
            log.append([record])
            acknowledged |= dict.fromkeys([what for what in disk.trees if what not in acknowledged], number)
    found: list[bytes] = []
    for what, state in disk.states(tmp_path / "states"):
        found = read(state / folder)
        assert found == records[: len(found)] and len(found) >= acknowledged[what], what
    assert found == records


def test_a_segment_that_is_removed_twice_is_gone_and_costs_nothing_else(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log", 1)
    first, second = log.append([b"one"]), log.append([b"two"])
    for _ in range(2):
        log.remove(first)
    log.close()
    assert first != second and read(tmp_path / "log") == [b"two"]


def test_a_log_that_was_never_written_is_empty_and_makes_no_folder(tmp_path: Path) -> None:
    assert read(tmp_path / "log") == [] and not (tmp_path / "log").exists()


def test_records_before_the_damage_are_whole_and_none_is_made_up(tmp_path: Path) -> None:
    records = [bytes([k + 1]) * (10 + k) for k in range(6)]
    written(tmp_path, records)
    (segment,) = tmp_path.iterdir()
    content = segment.read_bytes()
    ends = [sum(8 + len(record) for record in records[: k + 1]) for k in range(len(records))]
    for at in range(len(content)):
        spoiled = {
            "cut": content[:at],
            "flip": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
            "zeros": content[:at] + bytes(len(content) - at),
        }
        for kind, left in spoiled.items():
            whole = records[: sum(end <= at for end in ends)]
            assert list(whole_records(left)) == whole, (kind, at)
    segment.write_bytes(content[:40])
    assert read(tmp_path) == records[:2]


def test_the_next_life_writes_behind_no_torn_record(tmp_path: Path) -> None:
    written(tmp_path, [b"one", b"torn"])
    (segment,) = tmp_path.iterdir()
    segment.write_bytes(segment.read_bytes()[:-1])
    written(tmp_path, [b"two"])
    assert read(tmp_path) == [b"one", b"two"]


def test_segments_have_a_size_and_go_as_a_whole(tmp_path: Path) -> None:
    log = RecordLog(tmp_path, 100)
    assert [log.append([bytes([k + 1]) * 60]) for k in range(5)] == [0, 0, 1, 1, 2]
    log.remove(0)
    assert [record[0] for record in read(tmp_path)] == [3, 4, 5]
    assert list(log.sizes) == [1, 2]


def test_a_disk_that_is_full_is_told_and_what_follows_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RecordLog(tmp_path, 1 << 20)
    log.append([b"one"])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("os.fsync", full)
        log.append([b"two"])
    assert log.append([b"three"]) == 1
    assert [record for record in read(tmp_path) if record != b"two"] == [b"one", b"three"]


def test_a_whole_record_is_never_empty() -> None:
    assert list(whole_records(bytes(64))) == []


def test_a_disk_that_refuses_the_first_record_of_a_segment_keeps_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RecordLog(tmp_path, 1 << 20)

    def full(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("swarm.storage.record_log.write_all", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                log.append([b"one"])
            assert not [*tmp_path.iterdir()] and not log.sizes
    log.append([b"two"])
    assert read(tmp_path) == [b"two"]


def test_a_segment_that_another_program_empties_or_removes_takes_no_record_after_it(tmp_path: Path) -> None:
    log = RecordLog(tmp_path, 1 << 20)
    first = tmp_path / f"{log.append([b'one']):08}.log"
    os.truncate(first, 0)
    second = tmp_path / f"{log.append([b'two']):08}.log"
    second.unlink()
    log.append([b"three"])
    log.append([b"four"])
    assert read(tmp_path) == [b"three", b"four"] and len([*tmp_path.iterdir()]) == 2


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    others = ["1.log", "0000001.log", "000000001.log", "00000001.log.bak", "\u0664.log"]
    written(tmp_path, [b"one"])
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    written(tmp_path, [b"two"], [b"three"])
    assert read(tmp_path) == [b"one", b"two", b"three"]
    assert [(tmp_path / name).read_bytes() for name in others] == [b"mine"] * len(others)
