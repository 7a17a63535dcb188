"""`swarm status` of a folder in which no peer runs any more."""

from __future__ import annotations

import json
import os
import time

import pytest
from nouns import beat
from private_labs import lab

from peers import cli
from peers.build.run_folder import RunFolder
from swarm import events
from swarm.journal import to_line
from swarm.membership.identity import open_key
from swarm.protocol import Phase, Role
from swarm.types import PeerId

# no random keys: one of the words of which names are made is "silent"
ME, LEARNER = PeerId("12D3KooWme"), PeerId("12D3KooWlearner")
__all__ = ["lab"]


def left(lab: RunFolder) -> None:
    """A sampler listened for a minute and left two hours ago."""
    folder, began = lab.path / "peers" / "sampler-1", time.time() - 7260.0
    folder.mkdir(parents=True)
    lines: list[events.Event] = [
        events.Heard(
            at=began + second,
            peer=ME,
            subject=who,
            beat=beat(seq=second + 1, at=began + second, role=role, phase=Phase.SAMPLING),
        )
        for second in range(60)
        for who, role in ((ME, Role.SAMPLER), (LEARNER, Role.LEARNER))
    ]
    lines.append(events.Left(at=began + 60.0, peer=ME, name="", reason="asked to stop"))
    (folder / "journal.jsonl").write_bytes(b"".join(map(to_line, lines)))


def test_who_left_accuses_nobody_of_silence_and_says_how_old_it_is(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    left(lab)
    assert cli.main(["status", "--folder", str(lab.path)]) == 0
    said = capsys.readouterr()
    assert "no peer of" in said.err and "known 2 h ago" in said.err
    assert "silent" not in said.out and "heard nothing" not in said.out
    assert cli.main(["status", "--json", "--folder", str(lab.path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"] == [] and shown["condition"]["text"] in said.out


def test_who_watches_a_folder_whose_peers_left_reads_how_old_it_is(
    lab: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left(lab)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("peers.commands.runs.status.time.sleep", interrupted)
        assert cli.main(["status", "--watch", "--folder", str(lab.path)]) == 130
    said = " ".join(capsys.readouterr().out.split())
    assert "no peer of" in said and "known 2 h ago" in said
    assert "silent" not in said and "heard nothing" not in said


@pytest.mark.parametrize("watch", [False, True])
def test_a_folder_that_tells_of_no_peer_is_said_to(
    lab: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, watch: bool
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("peers.commands.runs.status.time.sleep", interrupted)
        words = ["status", *(["--watch"] if watch else []), "--folder", str(lab.path)]
        assert cli.main(words) == (130 if watch else 0)
    said = capsys.readouterr()
    seen = " ".join((said.out if watch else said.err).split())
    assert "tells of a peer" in seen and "`swarm join`" in seen


def test_who_watches_a_folder_sees_a_peer_that_starts_there_later(
    lab: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([lambda: left(lab)])

    def later(_: float) -> None:
        if (then := next(looks, None)) is None:
            raise KeyboardInterrupt
        then()

    with monkeypatch.context() as patch:
        patch.setattr("peers.commands.runs.status.time.sleep", later)
        assert cli.main(["status", "--watch", "--folder", str(lab.path)]) == 130
    assert "known 2 h ago" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["status", "why"])
def test_a_pipe_in_a_journals_place_is_told(
    lab: RunFolder, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    journal = lab.path / "peers" / "sampler-1" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    os.mkfifo(journal)
    assert cli.main([command, "--folder", str(lab.path)]) == 3
    said = capsys.readouterr().err
    assert f"{journal} is a pipe" in said and "remove it" in said


@pytest.mark.parametrize("terminal", [False, True], ids=["a pipe", "TERM=dumb"])
def test_who_watches_where_nothing_can_be_redrawn_reads_one_print_after_another(
    lab: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    left(lab)
    seen = list[str]()

    def sleep(_: float) -> None:
        seen.append(capsys.readouterr().out)
        if len(seen) == 3:
            raise KeyboardInterrupt

    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
        monkeypatch.setenv("TERM", "dumb")
    with monkeypatch.context() as patch:
        patch.setattr("peers.commands.runs.status.time.sleep", sleep)
        assert cli.main(["status", "--watch", "--folder", str(lab.path)]) == 130
    assert all("no peer of" in said and "version 0" in said and said.endswith("\n\n") for said in seen)
    assert not capsys.readouterr().out, "nothing is printed twice"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_folder_in_which_nothing_runs_is_not_said_to_be_well(
    lab: RunFolder, capsys: pytest.CaptureFixture[str], elsewhere: bool
) -> None:
    """All were killed with their machine, so that none said goodbye."""
    own = [open_key(lab.path / "peers" / name / "key").me for name in ("seed", "learner-1")]
    told = [(own[0], Role.SEED), (own[1], Role.LEARNER), *([(LEARNER, Role.LEARNER)] if elsewhere else [])]
    began = time.time() - 300.0
    lines: list[events.Event] = [
        events.Heard(
            at=began + second,
            peer=own[0],
            subject=who,
            beat=beat(seq=second + 1, at=began + second, role=role, version=3, phase=Phase.SERVING),
        )
        for second in range(60)
        for who, role in told
    ]
    (lab.path / "peers" / "seed" / "journal.jsonl").write_bytes(b"".join(map(to_line, lines)))
    assert cli.main(["status", "--folder", str(lab.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "All is well" not in said and said.count("●") == elsewhere and said.count("◌ lost") == 2
    assert (
        "Nothing was heard for 4" if elsewhere else "Every peer that was here has left or is lost"
    ) in said


def test_a_samplers_folder_says_that_it_does_not_hear_the_others(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    left(lab)
    assert cli.main(["status", "--folder", str(lab.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Other samplers are not heard here" in said and "1 learner" in said
