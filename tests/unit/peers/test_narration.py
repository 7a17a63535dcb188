"""What a peer says while it runs: its faults and refusals as sentences, seldom enough to be read, and a log
that has them all."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from random import Random

import pytest
from hivemind.p2p import P2P

from peers.errors import say
from peers.runtime.watching import narration
from peers.runtime.watching.narration import LOG, Narrator, logging_only, narrated
from swarm import events
from swarm.membership.identity import Keyring, human_name
from swarm.types import PeerId

CLOSED = """{"level": "error", "ts": "2026-01-01T00:00:00.000+0000", "logger": "p2pd",
 "caller": "go-libp2p-daemon/daemon.go:198", "msg": "error accepting connection",
 "error": "accept unix: closed"}"""
"""A line of p2pd's, whose logger is ended with it."""

ME, LEARNER = Keyring.new().me, Keyring.new().me


def noted(at: float, text: str, peer: PeerId = ME) -> events.Noted:
    return events.Noted(at=at, peer=peer, level="warning", text=text)


def test_a_reason_is_said_once_a_minute_with_the_number_of_those_in_between(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell = Narrator(ME)
    for second in range(61):
        tell(noted(float(second), f"{LEARNER} refused a group (stale): {second + 70} versions old"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"{human_name(LEARNER)} refused a group (stale): 70 versions old",
        f"{human_name(LEARNER)} refused a group (stale): 130 versions old (59 more like it in between)",
    ]


def test_another_reason_is_said_at_once_and_other_peers_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Narrator(ME)
    tell(noted(0.0, "refused (stale)"))
    tell(noted(1.0, "refused (malformed)"))
    tell(noted(2.0, "somebody else's trouble", LEARNER))
    assert capsys.readouterr().err.splitlines() == ["refused (stale)", "refused (malformed)"]


def test_a_fault_and_its_end_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Narrator(ME)
    tell(events.Faulted(at=0.0, peer=ME, part="engine", detail="out of memory"))
    tell(events.Recovered(at=5.0, peer=ME, part="engine", seconds=5.0))
    broke, back = capsys.readouterr().err.splitlines()
    assert broke.startswith("engine of this peer") and "out of memory" in broke
    assert back == "engine of this peer is back after 5.0 s."


@pytest.mark.parametrize("verbose", [False, True])
def test_what_hivemind_and_its_p2pd_say_is_in_the_log_and_on_a_terminal_that_asked_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verbose: bool
) -> None:
    beneath = logging.getLogger("hivemind")
    monkeypatch.setattr(beneath, "level", logging.INFO if verbose else logging.ERROR)
    terminal = logging.StreamHandler(sys.stderr)
    monkeypatch.setattr(beneath, "handlers", [terminal])
    with narrated(tmp_path, events.Bus(), ME), logging_only():
        P2P._log_p2pd_message(CLOSED)
    assert "go-libp2p-daemon/daemon.go:198: error accepting connection: accept unix: closed" in (
        (tmp_path / LOG).read_text()
    )
    assert ("error accepting connection" in capsys.readouterr().err) is verbose
    assert beneath.handlers == [terminal]


def test_kinds_that_are_remembered_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    tell, words = Narrator(ME), Random(1)
    for _ in range(2 * narration.KINDS):
        tell(noted(0.0, "".join(words.choices("abcdefgh", k=12))))
    assert len(tell._printed) == narration.KINDS


def test_the_log_has_what_is_said_while_the_peer_runs_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(narration, "LARGEST", 1000)
    bus = events.Bus()
    with narrated(tmp_path, bus, ME):
        bus.emit(noted(0.0, "release 7 could not be fetched: nobody answers"))
        assert "release 7 could not be fetched" in (tmp_path / LOG).read_text()
        for number in range(200):
            say(f"sentence {number}")
    say("nobody keeps this")
    files = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert set(files) == {LOG, f"{LOG}.1"}
    assert "sentence 199" in files[LOG] and "nobody keeps this" not in files[LOG]
    assert all(len(content) < 1100 for content in files.values())
    assert "nobody keeps this" in capsys.readouterr().err


def test_a_log_on_a_disk_that_takes_nothing_costs_the_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG).mkdir()
    with narrated(tmp_path, events.Bus(), ME):
        say("heard all the same")
    assert "heard all the same" in capsys.readouterr().err
