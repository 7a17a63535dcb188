"""`swarm why`: what a peer's own journal tells a person about why it is idle, and with which exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from invited_peers import started
from nouns import NOW, beat
from private_labs import lab

from peers import cli
from peers.build.run_folder import RunFolder
from peers.commands.runs.why import Explained, explain
from peers.runtime.membership.revocations import GONE
from swarm import events
from swarm.journal import to_line
from swarm.membership.identity import Keyring
from swarm.protocol import Phase, Role
from swarm.settings.config import Run, Stop
from swarm.types import PeerId

ME, LEARNER, SEED = (Keyring.new().me for _ in range(3))
PID = 4711
__all__ = ["lab"]


def heard(at: float, subject: PeerId, seq: int, **more: object) -> events.Heard:
    return events.Heard(at=at, peer=ME, subject=subject, beat=beat(seq=seq, at=at, **more))


def told(
    folder: Path,
    phase: Phase,
    *,
    role: Role = Role.SAMPLER,
    others: Sequence[tuple[PeerId, Role, int]] = (),
    more: Sequence[events.Event] = (),
    seconds: int = 90,
    pid: int | None = PID,
    later: float = 0.0,
    version: int = 3,
    run: Run | None = None,
    off: float = 0.0,
    before: Sequence[events.Event] = (),
) -> Explained:
    """What is said of a peer that was in this phase for so long, heard `others` (with their credit), and is
    looked at `later`, where the machine's clock was set `off` ahead since it began. `before`: what its
    journal has of an earlier life."""
    journal = folder / "journal.jsonl"
    lines: list[events.Event] = [
        *before,
        events.Started(at=NOW, peer=ME, name="", role=role, version=-1, hardware="1 core"),
    ]
    for second in range(0, seconds, 2):
        lines.append(heard(NOW + second, ME, second + 1, role=role, phase=phase, version=version))
        for subject, of, credit in others:
            lines.append(heard(NOW + second, subject, second + 1, role=of, credit=credit, version=4))
    lines += more
    journal.write_bytes(b"".join(map(to_line, lines)))
    os.utime(journal, (written := lines[-1].at + off, written))
    return explain(journal, run or Run(), pid, NOW + seconds + off + later)


FULL = ((LEARNER, Role.LEARNER, 0), (SEED, Role.SEED, 0))


def test_a_peer_that_works_is_told_to_work(tmp_path: Path) -> None:
    said = told(tmp_path, Phase.SAMPLING, others=FULL)
    text = "\n".join(said.lines)
    assert said.code == 0
    assert f"process {PID}" in said.lines[0]
    assert "version 3 (the newest announced is 4)" in text
    assert "hears  1 seed, 1 learner (credit 0)" in text
    assert "why" not in text and text.endswith(str(tmp_path / "log"))


@pytest.mark.parametrize("seconds", [4, 90])
@pytest.mark.parametrize(
    ("phase", "others", "code", "why"),
    [
        (Phase.NO_CREDIT, FULL, 0, "have all the groups that they can use"),
        (Phase.NO_CREDIT, FULL[1:], 4, "no learner"),
        (Phase.NO_POLICY, (), 4, "no learner"),
        (Phase.NO_TASKS, FULL, 0, "the task source gives none"),
        (Phase.CATCHING_UP, FULL, 0, "the swarm has a newer policy"),
    ],
)
def test_an_idle_peer_is_told_why_at_once_and_after_a_while(
    tmp_path: Path,
    phase: Phase,
    others: Sequence[tuple[PeerId, Role, int]],
    code: int,
    why: str,
    seconds: int,
) -> None:
    said = told(tmp_path, phase, others=others, seconds=seconds)
    (reason,) = [line for line in said.lines if line.startswith("  why")]
    assert why in reason.lower() and said.code == code, said
    assert any(line.startswith("  do     ") and len(line) > 12 for line in said.lines)


def test_a_broken_engine_is_named_with_what_it_said(tmp_path: Path) -> None:
    broke = events.Faulted(at=NOW + 20, peer=ME, part="engine", detail="CUDA out of memory")
    said = told(tmp_path, Phase.NO_ENGINE, others=FULL, more=[broke])
    assert said.code == 3 and "CUDA out of memory" in "\n".join(said.lines)


def test_a_sampler_that_is_suspended_is_told_by_whom_why_and_how_to_check_it(tmp_path: Path) -> None:
    suspended = events.SetAside(
        at=NOW + 80,
        peer=ME,
        by=LEARNER,
        sampler=ME,
        until=NOW + 3600,
        why="2 of 64 tokens are off",
        group="g",
    )
    for phase in (Phase.SAMPLING, Phase.NO_CREDIT):
        said = told(tmp_path, phase, others=FULL, more=[suspended])
        why, do = (line for line in said.lines if line.startswith(("  why", "  do ")))
        assert "suspends sampler" in why and "for another 58 min" in why and "2 of 64 tokens" in why
        assert "`swarm verify g.evidence`" in do and said.code == 5
    again = events.SetAside(at=NOW + 85, peer=ME, by=LEARNER, sampler=ME, until=0.0, why="")
    assert told(tmp_path, Phase.SAMPLING, others=FULL, more=[suspended, again]).code == 0


def test_the_last_refusals_are_shown_with_their_age(tmp_path: Path) -> None:
    why = "refused a group (malformed): completions of 7 tokens, at most 6"
    noted = events.Noted(at=NOW + 89, peer=ME, level="warning", text=why)
    assert f"  said   1.0 s ago: {why}" in told(tmp_path, Phase.SAMPLING, others=FULL, more=[noted]).lines


def test_a_learner_whose_samplers_groups_are_refused_is_not_told_to_wait(tmp_path: Path) -> None:
    judged = events.Counted(
        at=NOW + 80,
        peer=ME,
        verdicts={"untrusted": 40},
        versions={},
        seconds={},
        samplers={LEARNER: {"untrusted": 40}},
    )
    why = "it claims a reward of 0.3 where 0.7 is computed here"
    differ = events.Rejected(at=NOW + 81, peer=ME, sender=LEARNER, kind=events.REWARDS, reason=why)
    others = ((LEARNER, Role.SAMPLER, 0), (SEED, Role.SEED, 0))
    said = told(
        tmp_path, Phase.GATHERING, role=Role.LEARNER, others=others, more=[judged, differ], seconds=82
    )
    text = "\n".join(said.lines)
    assert "refused, mostly as untrusted: its rewards differ from the learners'" in text and why in text
    assert "Is the reward random" in text and "wait: it is not long" not in text and said.code == 0


def test_a_peer_that_does_not_run_says_how_it_ended(tmp_path: Path) -> None:
    killed = told(tmp_path, Phase.SAMPLING, others=FULL, pid=None, later=300.0)
    assert killed.code == 3 and "without leaving" in "\n".join(killed.lines)
    left = events.Left(at=NOW + 90, peer=ME, name="", reason="asked to stop")
    asked = told(tmp_path, Phase.SAMPLING, others=FULL, pid=None, later=300.0, more=[left])
    assert asked.code == 3 and "as it was asked to" in "\n".join(asked.lines)


def test_a_revoked_peer_is_not_told_to_join_again(tmp_path: Path) -> None:
    left = events.Left(at=NOW + 90, peer=ME, name="", reason=GONE)
    said = told(tmp_path, Phase.SAMPLING, others=FULL, pid=None, later=300.0, more=[left])
    text = "\n".join(said.lines)
    assert said.code == 5 and "was revoked by its owner" in text and "ask the owner" in text
    assert "as it was asked to" not in text and "restarts it" not in text


@pytest.mark.parametrize(
    ("versions", "code", "says"),
    [(3, 0, "the run is complete, with version 3"), (4, 3, "as it was asked to")],
)
def test_a_learner_that_left_a_complete_run_says_so(
    tmp_path: Path, versions: int, code: int, says: str
) -> None:
    left, run = events.Left(at=NOW + 90, peer=ME, name="", reason="ended"), Run(stop=Stop(versions=versions))
    said = told(tmp_path, Phase.GATHERING, role=Role.LEARNER, pid=None, later=300.0, more=[left], run=run)
    text = "\n".join(said.lines)
    assert said.code == code and says in text and ("restarts it" in text) is (code == 3)


def test_a_process_that_writes_nothing_any_more_hangs(tmp_path: Path) -> None:
    said = told(tmp_path, Phase.SAMPLING, others=FULL, later=300.0)
    text = "\n".join(said.lines)
    assert said.code == 3 and "has heard nothing for 5 min" in text and "page" not in text


@pytest.mark.parametrize("off", [-7200.0, 7200.0])
@pytest.mark.parametrize("later", [0.0, 300.0])
def test_a_clock_that_was_set_since_the_peer_began_changes_nothing(
    tmp_path: Path, off: float, later: float
) -> None:
    asked = {"others": FULL, "later": later}
    assert told(tmp_path, Phase.SAMPLING, off=off, **asked) == told(tmp_path, Phase.SAMPLING, **asked)


def test_a_peer_that_was_started_again_after_its_clock_was_set_back_misses_who_is_gone(
    tmp_path: Path,
) -> None:
    before = [heard(NOW + 7200.0, who, 1, role=role) for who, role in ((ME, Role.SAMPLER), (SEED, Role.SEED))]
    mine = {"role": Role.SAMPLER, "phase": Phase.NO_CREDIT, "version": 3}
    more = [heard(NOW + at, ME, at, **mine) for at in range(91, 150, 2)]
    said = told(tmp_path, Phase.NO_CREDIT, others=FULL, before=before, more=more, later=60.0)
    text = "\n".join(said.lines)
    assert said.code == 4 and "no learner answers" in text and "waiting for credit, for 2.5 min" in text


def test_a_learner_does_not_miss_samplers_which_only_observers_hear(tmp_path: Path) -> None:
    said = told(tmp_path, Phase.GATHERING, role=Role.LEARNER, others=FULL, seconds=300)
    assert "sampler" not in "\n".join(said.lines).lower()


def test_a_peer_that_has_not_begun_is_loading(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(b"")
    assert "has not started yet" in explain(tmp_path / "journal.jsonl", Run(), PID, NOW).lines[0]


def test_a_seed_that_left_is_not_told_to_join(tmp_path: Path) -> None:
    said = told(tmp_path, Phase.SERVING, role=Role.SEED, pid=None)
    text = "\n".join(said.lines)
    assert said.code == 3 and "swarm join" not in text and "the command that started the run" in text


def test_a_folder_in_which_only_an_observer_ran_is_said_to_have_nothing_to_explain(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lab.path / "peers" / "observer-1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes(b"")
    assert cli.main(["why", "--folder", str(lab.path)]) == 2
    assert f"only an observer has run in {lab.path}" in capsys.readouterr().err


def test_a_program_reads_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, peer = started(tmp_path), tmp_path / "peers" / "sampler-1"
    peer.mkdir(parents=True)
    told(peer, Phase.SAMPLING, others=FULL, later=9.0)
    assert cli.main(["why", "--folder", str(run.path), "--json"]) == 3
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["peer"], said["code"], said["said"]) == ("sampler-1", 3, [])
    assert "does not run" in said["is"] and "without leaving" in said["why"] and "its log" in said["do"]
    assert said["log"] == str(peer / "log")
