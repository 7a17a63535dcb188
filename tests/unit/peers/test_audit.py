"""`swarm replay --audit`: what journals prove of groups and versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from nouns import NOW, release

from peers import cli
from swarm.core.group_accounts import JournalAudit, audit
from swarm.core.intake.admission import REPEATED
from swarm.events import Adopted, Dropped, Found, Judged, Released, Returned, Snapped, Started, Stepped
from swarm.journal import to_line
from swarm.protocol import Role
from swarm.types import Digest, PeerId, Verdict

ONE, TWO, SAMPLER = PeerId("learner-0"), PeerId("learner-1"), PeerId("sampler-0")


def name(number: int) -> str:
    return f"{number:016x}" + 16 * "f"


def digest(letter: str) -> Digest:
    return Digest(letter * 64)


def admitted(group: int, at: float, learner: PeerId = ONE) -> Judged:
    return Judged(
        at=NOW + at,
        peer=learner,
        group=name(group),
        sampler=SAMPLER,
        verdict=Verdict.ADMIT,
        detail="",
        versions=0,
        seconds=0.0,
    )


def stepped(version: int, parent: str, at: float, *groups: int, by: PeerId = ONE, **more: Any) -> Stepped:
    its = {"members": (by,)} | more
    return Stepped(
        at=NOW + at,
        peer=by,
        version=version,
        parent=digest(parent),
        groups=tuple(map(name, groups)),
        **its,
    )


def released(
    version: int,
    weights: str,
    parent: str,
    at: float,
    by: PeerId = ONE,
    learners: int = 1,
) -> Released:
    made = release(
        version=version,
        weights=digest(weights),
        parent=digest(parent),
        publisher=by,
        learners=learners,
        released=NOW + at,
    )
    return Released(at=NOW + at, peer=by, release=made)


def started(at: float, learner: PeerId = ONE) -> Started:
    return Started(at=NOW + at, peer=learner, name="", role=Role.LEARNER, version=-1, hardware="")


def dropped(group: int, at: float, why: str) -> Dropped:
    return Dropped(at=NOW + at, peer=ONE, groups=(name(group),), why=why)


GOOD = [admitted(1, 0), admitted(2, 1), stepped(1, "0", 2, 1, 2), released(1, "a", "0", 3)]


def test_a_group_of_a_step_whose_version_is_released_is_trained_once() -> None:
    found = audit(GOOD)
    assert (found.acknowledged, found.once, found.versions) == (2, 2, 1) and found.passed


def test_what_a_learner_had_when_it_died_and_has_no_more_is_lost() -> None:
    assert audit([*GOOD, admitted(3, 4)]).waiting == 1
    assert audit([*GOOD, admitted(3, 4), started(5)]).lost == (name(3),)
    back = Returned(at=NOW + 6, peer=ONE, groups=(name(3),))
    assert audit([*GOOD, admitted(3, 4), started(5), back]).waiting == 1


def test_what_a_learner_finds_on_its_disk_is_lost_where_it_steps_and_did_not_take_it_up() -> None:
    found = [*GOOD, admitted(3, 4), started(5), Found(at=NOW + 5, peer=ONE, groups=(name(3),))]
    assert audit(found).waiting == 1 and audit(found).passed
    assert audit([*found, dropped(3, 6, "expired")]).refused == {"expired": 1}
    assert audit([*found, started(6)]).lost == (name(3),)
    step = stepped(2, "a", 7)
    assert audit([*found, step]).lost == (name(3),)
    assert audit([*found, Returned(at=NOW + 6, peer=ONE, groups=(name(3),)), step]).waiting == 1


def test_a_learner_holds_what_it_found_until_it_steps_from_a_release_of_the_line() -> None:
    line = [released(1, "b", "0", 3, TWO), released(2, "c", "b", 6, TWO)]
    found = [*GOOD[:3], *line, started(5), Found(at=NOW + 5, peer=ONE, groups=(name(1), name(2)))]
    beside = [*found, stepped(2, "a", 7)]
    assert audit(beside).waiting == 2 and audit(beside).passed
    assert audit([*beside, stepped(2, "a", 8)]).waiting == 2, "it tried the same step again"
    assert audit([*beside, stepped(3, "c", 8)]).lost == (name(1), name(2))


def test_a_group_that_is_refused_for_a_reason_is_not_lost_and_a_duplicate_of_nothing_is() -> None:
    assert audit([*GOOD, admitted(3, 4), dropped(3, 5, "expired")]).refused == {"expired": 1}
    assert audit([*GOOD, admitted(3, 4), dropped(3, 5, "duplicate")]).lost == (name(3),)
    assert audit([*GOOD, dropped(1, 5, "duplicate")]).passed


@pytest.mark.parametrize(
    ("verdict", "detail", "why"),
    [
        (Verdict.STALE, "9 versions old", "stale"),
        (
            Verdict.DUPLICATE,
            "there is a group of this task and seed",
            "there is a group of this task and seed",
        ),
        (Verdict.DUPLICATE, REPEATED, None),
        (Verdict.OVER_QUOTA, "no room", None),
    ],
)
def test_a_group_that_its_learner_lost_is_refused_where_another_one_refuses_it(
    verdict: Verdict, detail: str, why: str | None
) -> None:
    again = msgspec.structs.replace(admitted(3, 6, TWO), verdict=verdict, detail=detail)
    found = audit([*GOOD, admitted(3, 4), started(5), again])
    assert found.refused == ({why: 1} if why else {}) and found.passed == bool(why)


def test_what_a_learner_dropped_as_trained_by_its_own_step_it_holds_until_its_next_step() -> None:
    """It went back to its own version, and the line went on from the other one."""
    story = [
        *GOOD,
        admitted(3, 2, TWO),
        stepped(1, "0", 3, 3, by=TWO),
        released(1, "b", "0", 4, by=TWO),
        Returned(at=NOW + 5, peer=TWO, groups=(name(3),)),
        Dropped(at=NOW + 6, peer=TWO, groups=(name(3),), why="duplicate"),
        released(2, "c", "a", 7),
        released(3, "d", "c", 8),
    ]
    assert audit(story).waiting == 1 and audit(story).passed
    assert audit([*story, started(9, TWO)]).lost == (name(3),)
    assert audit([*story, stepped(4, "d", 9, by=TWO)]).lost == (name(3),)


def test_a_group_in_two_versions_or_brought_by_two_members_is_doubled() -> None:
    again = [stepped(2, "a", 5, 1), released(2, "b", "a", 6)]
    assert audit([*GOOD, *again]).doubled == {name(1)[:16]: (1, 2)}
    both = [
        admitted(1, 0),
        stepped(1, "0", 1, 1, members=(ONE, TWO)),
        stepped(1, "0", 1, 1, by=TWO, members=(ONE, TWO)),
        released(1, "a", "0", 2, learners=2),
    ]
    assert not audit(both).passed


def test_a_group_in_two_steps_that_make_the_same_weights_is_trained_once() -> None:
    """A learner came back without what it had released, and no reward differed: the version stays what it
    was."""
    both = (ONE, TWO)
    first = [admitted(1, 0), stepped(1, "0", 1, 1, members=both), released(1, "a", "0", 2, learners=2)]
    again = [started(3), stepped(1, "0", 4, 1), released(1, "a", "0", 5)]
    found = audit([*first, *again])
    assert found.passed and found.once == 1


def alike(*more: Any) -> JournalAudit:
    """What became of groups 1 and 2, of which two learners alone made the same version 1: no reward
    differed."""
    first = [admitted(1, 0), stepped(1, "0", 1, 1), released(1, "a", "0", 2)]
    other = [admitted(2, 0, TWO), stepped(1, "0", 3, 2, by=TWO), released(1, "a", "0", 4, by=TWO)]
    return audit([*first, *other, *more])


def test_two_learners_steps_of_no_signal_that_make_the_same_weights_are_two_steps() -> None:
    found = alike(released(2, "b", "a", 6))
    assert found.passed and found.once == 2 and not found.forked
    # one of them does not find its release in the line of the other, and trains its group again
    again = alike(stepped(2, "a", 5, 2, by=TWO), released(2, "b", "a", 6, by=TWO))
    assert again.passed and again.once == 2
    # both have a group
    both = alike(admitted(1, 0, TWO), stepped(1, "0", 3.5, 1, 2, by=TWO), released(2, "b", "a", 6))
    assert both.passed and both.once == 2


def test_a_group_in_two_versions_after_steps_of_no_signal_is_doubled() -> None:
    later = [stepped(2, "a", 5, 2, by=TWO), released(2, "b", "a", 6, by=TWO)]
    twice = [stepped(3, "b", 7, 2, by=TWO), released(3, "c", "b", 8, by=TWO)]
    assert alike(*later, *twice).doubled == {name(2)[:16]: (2, 3)}


def test_a_step_that_the_line_does_not_have_trained_nothing() -> None:
    fork = [admitted(3, 4, TWO), stepped(1, "0", 2, 3, by=TWO), released(1, "b", "0", 3, by=TWO)]
    later = [released(2, "c", "a", 6)]
    found = audit([*GOOD, *fork, *later])
    assert found.forked == (1,) and found.once == 2 and found.waiting == 1
    assert audit([*GOOD, *fork, *later, started(7, TWO)]).lost == (name(3),)


def test_a_step_that_was_tried_twice_before_its_release_counts_as_the_last_try() -> None:
    tries = [stepped(1, "0", 1, 2), started(1.5), *GOOD]
    assert audit(tries).once == 2


def test_what_a_member_brought_to_a_round_that_it_believed_lost_is_trained() -> None:
    told = [
        admitted(1, 0),
        admitted(2, 0, TWO),
        stepped(1, "0", 1, 1, members=(ONE, TWO), others=(name(2)[:16],)),
        released(1, "a", "0", 2, learners=2),
        Dropped(at=NOW + 3, peer=TWO, groups=(name(2),), why="duplicate"),
    ]
    assert audit(told).once == 2 and audit(told).passed


def test_a_version_that_no_journal_has_is_a_gap() -> None:
    found = audit([*GOOD, released(3, "c", "b", 9)])
    assert (found.gaps, found.versions) == ((range(2, 3),), 3)


def test_a_version_far_beyond_all_others_costs_no_memory() -> None:
    far = 10**15
    found = audit([*GOOD, released(far, "c", "b", 9)])
    assert (found.gaps, found.versions) == ((range(2, far),), far) and found.once == 2


def heard(event: Released) -> Released:
    """As an observer's journal has it."""
    return msgspec.structs.replace(event, peer=PeerId("seed"))


def test_a_release_that_nobody_followed_is_none_of_the_run() -> None:
    """Any learner can announce any version, and one that goes on from a line which gave way."""
    promises = [heard(released(10**15, "f", "e", 9, TWO)), heard(released(3, "9", "8", 9, TWO))]
    adopts = Adopted(at=NOW, peer=TWO, version=3, weights=digest("9"), fetch=0.0, load=0.0, age=0.0)
    found = audit([*GOOD, released(2, "b", "a", 6)], [*promises, adopts])  # only who announced it says so
    assert (found.versions, found.gaps, found.once) == (2, (), 2)


def test_a_release_that_only_observers_heard_counts_where_others_took_it_or_it_is_below_such_a_one() -> None:
    line = [heard(released(1, "a", "0", 3, TWO)), heard(released(2, "b", "a", 4, TWO))]
    took = [
        Adopted(at=NOW + 5, peer=SAMPLER, version=2, weights=digest("b"), fetch=0.0, load=0.0, age=0.0),
        Snapped(at=NOW + 5, peer=ONE, version=2, mine=digest("c"), theirs=digest("b")),
        stepped(3, "b", 5),
    ]
    assert audit(line).versions == 0
    assert all(audit([*line, one]).versions == 2 and audit([*line, one]).gaps == () for one in took)


ROUND = {"members": (ONE, TWO)}


def tries(second: float, ahead: float = 0.0, told: bool = True) -> list[Any]:
    """TWO dies in its first try of version 1, and steps `second` seconds after ONE in the next one; TWO's
    clock is ahead."""

    def others(*groups: int) -> tuple[str, ...]:
        return tuple(name(group)[:16] for group in groups)

    return [
        *(admitted(1, 0), admitted(5, 0)),
        *(admitted(group, ahead, TWO) for group in (7, 8, 9)),
        stepped(1, "0", 1, 5, others=others(7, 9) if told else (), **ROUND),
        stepped(1, "0", 1 + ahead, 7, 9, by=TWO, others=others(5), **ROUND),
        started(2 + ahead, TWO),
        Returned(at=NOW + 3 + ahead, peer=TWO, groups=tuple(map(name, (7, 8, 9)))),
        stepped(1, "0", 5, 1, others=others(7, 8), **ROUND),
        stepped(1, "0", 5 + second + ahead, 7, 8, by=TWO, others=others(1), **ROUND),
        released(1, "a", "0", 6, learners=2),
        stepped(2, "a", 18, 5, others=others(9), **ROUND),
        stepped(2, "a", 18 + ahead, 9, by=TWO, others=others(5), **ROUND),
        released(2, "b", "a", 19, learners=2),
    ]


@pytest.mark.parametrize("ahead", [0.0, 0.9, 30.0, -30.0])
@pytest.mark.parametrize("second", [0.5, 2.0])
def test_of_several_tries_of_a_round_the_one_counts_that_the_other_members_name(
    second: float, ahead: float
) -> None:
    for told in (True, False):
        found = audit(tries(second, ahead, told))
        assert (found.once, found.lost, found.doubled) == (5, (), {})


def test_of_tries_with_the_same_groups_the_one_counts_that_names_the_others_groups() -> None:
    story = [
        *(admitted(1, 0), admitted(5, 0), admitted(7, 0, TWO)),
        stepped(1, "0", 1, 7, by=TWO, others=(name(5)[:16],), **ROUND),
        stepped(1, "0", 5, 1, others=(name(7)[:16],), **ROUND),
        released(1, "a", "0", 6, learners=2),
        stepped(1, "0", 7, 7, by=TWO, others=(name(1)[:16],), **ROUND),
        started(8),
    ]
    assert audit(story).lost == (name(5),)


HOUR = 3600.0


def test_a_peers_lives_follow_one_another_as_in_its_journal_whatever_its_clock_says() -> None:
    back = [*GOOD, admitted(3, 100), started(105 - HOUR), admitted(5, 107 - HOUR)]
    assert audit(back).lost == (name(3),)
    assert audit([started(HOUR), started(5), *GOOD, admitted(4, 7)]).passed


def test_what_observers_hear_of_a_peers_beginning_begins_none_of_its_lives() -> None:
    lives = [started(-10), *GOOD, admitted(3, 100), started(105 - HOUR), admitted(5, 107 - HOUR)]
    begun = [event for event in lives if isinstance(event, Started)]
    seed = [started(-20, PeerId("seed")), *begun, heard(released(1, "a", "0", 3))]
    for journals in ([lives, seed], [seed, lives], [lives, [*seed, started(200)]]):
        assert audit(*journals).lost == (name(3),) and audit(*journals).waiting == 1
    assert audit([*lives, *begun]).waiting == 1  # one journal of all peers, with what the seed heard


def test_a_peer_that_moved_with_its_disk_has_two_journals() -> None:
    first, then = [started(-10), *GOOD, admitted(3, 4)], [started(10), admitted(4, 11)]
    for journals in ([first, then], [then, first]):
        assert audit(*journals).lost == (name(3),)


def test_nothing_is_an_account_of_nothing() -> None:
    assert audit([]) == JournalAudit(0, 0, audit([]).refused, 0, (), {}, 0, (), ())


def write(folder: Path, peer: str, *told: Any) -> None:
    (folder / "peers" / peer).mkdir(parents=True)
    (folder / "peers" / peer / "journal.jsonl").write_bytes(b"".join(map(to_line, told)))


def test_the_command_reads_all_journals_of_a_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "learner-1", *GOOD[:2])
    write(tmp_path, "learner-2", *GOOD[2:])
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "2 journals" in said and "trained once        2" in said
    older = tmp_path / "peers" / "learner-1" / "journal-000001.jsonl"
    older.write_bytes(to_line(admitted(4, -2)))
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "2 journals" in said and "groups acknowledged   3" in said
    write(tmp_path, "learner-3", admitted(3, 4, TWO), started(5, TWO))
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 1
    assert f"lost                1: {name(3)}" in capsys.readouterr().out


def test_lines_that_are_no_events_are_left_out_of_the_audit_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "learner-1", *GOOD)
    journal = tmp_path / "peers" / "learner-1" / "journal.jsonl"
    first, *rest = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([first, b"{]\n", *rest, b"\xff\n"]))
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "trained once        2" in out
    assert f"2 lines of the journal are not events and are skipped; the first is line 2 of {journal}" in err


def test_a_folder_without_a_journal_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 2
    assert "there is no journal in" in capsys.readouterr().err
    assert cli.main(["replay", str(tmp_path), str(tmp_path)]) == 2
    (tmp_path / "notes").write_text("no journal\n")
    assert cli.main(["replay", "--audit", str(tmp_path / "notes")]) == 2
    assert "is not a journal of this program: line 1 is not an event" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b'{"event":"sta'])
def test_a_journal_without_a_line_is_told_and_nothing_else_is_no_audit(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "learner-1")
    empty = tmp_path / "peers" / "learner-1" / "journal.jsonl"
    empty.write_bytes(content)
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 2
    assert (
        why := f"{empty} is not a journal of this program: it has no whole line"
    ) in capsys.readouterr().err
    write(tmp_path, "learner-2", *GOOD)
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "1 journal\n" in out and "trained once        2" in out and f"left out: {why}" in err


def test_versions_in_no_journal_are_told_as_ranges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "learner-1", *GOOD, released(3, "c", "b", 9), released(9, "d", "b", 9))
    assert cli.main(["replay", "--audit", str(tmp_path)]) == 0
    assert "in no journal       6: 2; 4-8" in capsys.readouterr().out
