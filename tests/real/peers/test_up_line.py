"""What `swarm up` says in a log while its peers load: for whom it waits."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from nouns import NOW, beat, release

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import condition
from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState, starts
from dashboard.serve.terminal import headline, new_problem
from peers.commands.runs import up
from peers.errors import CannotHere, guarded
from swarm import events
from swarm.journal import to_line
from swarm.membership.identity import Keyring, open_key
from swarm.protocol import Role, WorkStage
from swarm.settings.config import Config, Swarm
from swarm.types import PeerId, StageProgress


def test_it_says_which_peers_are_loading_and_misses_and_invites_none_meanwhile() -> None:
    state, seed = SwarmState(), Keyring.new().me
    state.starts = starts(Swarm(learners=1, samplers=2, evaluators=0))
    comes = {90: Role.SAMPLER, 91: Role.LEARNER, 120: Role.SAMPLER}
    here, says = [(seed, Role.SEED)], list[str]()
    for second in range(130):
        here += [(Keyring.new().me, comes[second])] if second in comes else []
        for subject, role in here:
            said_by = beat(role=role, seq=second + 1, at=NOW + second)
            heard = events.Heard(at=NOW + second, peer=seed, subject=subject, beat=said_by)
            fold(state, heard)
        found = diagnose(state, NOW + second)
        said = condition(state, NOW + second, found)
        assert not any("swarm invite" in one.todo or "swarm join" in one.todo for one in found), second
        assert (said.kind, said.join) == ("waiting", False) or second > 91
        says += [one.text for one in found if second in (40, 90, 95, 129) and "load" in one.key]
    assert says == [
        "3 of 3 peers are loading (40 s so far): 1 learner and 2 samplers.",
        "2 of 3 peers are loading (90 s so far): 1 learner and 1 sampler.",
        "1 of 3 peers is loading (95 s so far): 1 sampler.",
    ]


def test_peers_of_an_earlier_life_of_the_run_have_not_come_to_this_one() -> None:
    state, seed, learner = SwarmState(), Keyring.new().me, Keyring.new().me
    state.starts = starts(Swarm(learners=1, samplers=1, evaluators=0))
    for second in (0, 1, 1000):
        for subject, role in ((seed, Role.SEED), (learner, Role.LEARNER)):
            if second < 1000 or subject is seed:
                said = beat(role=role, seq=second + 1)
                fold(state, events.Heard(at=NOW + second, peer=seed, subject=subject, beat=said))
        if second == 1:
            again = {"name": "", "role": Role.SEED, "version": 0, "hardware": ""}
            fold(state, events.Started(at=NOW + 995, peer=seed, **again))  # type: ignore[arg-type]
    (loading, *_) = diagnose(state, NOW + 1000)
    assert loading.text == "2 of 2 peers are loading (5.0 s so far): 1 learner and 1 sampler."


def test_it_says_the_worst_problem_once_until_it_is_another_one() -> None:
    state, last, told = SwarmState(), "", list[str]()
    seed, learner, sampler = (Keyring.new().me for _ in range(3))
    for second in range(60):
        for subject, role in ((seed, Role.SEED), (learner, Role.LEARNER), (sampler, Role.SAMPLER)):
            said = beat(role=role, seq=second + 1)
            fold(state, events.Heard(at=NOW + second, peer=seed, subject=subject, beat=said))
        if second == 10:
            detail = "mine.py:f raised KeyError"
            fold(state, events.Faulted(at=NOW + second, peer=sampler, part="rewards", detail=detail))
        text, last = new_problem(diagnose(state, NOW + second), last)
        told += [text] if text else []
    rewards, credit = told
    assert "mine.py:f raised KeyError: Try it with `swarm task try`" in rewards
    assert "samplers can dial its address" in credit


def test_a_log_has_a_line_where_something_changed_and_a_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    house, seed, learner = up.Children(tmp_path, Config()), Keyring.new().me, Keyring.new().me
    clock = [0.0]
    monkeypatch.setattr(up.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(house, "now", lambda: NOW + clock[0])
    house.state.starts, lines = {}, list[str]()
    for second in range(150):
        clock[0] = float(second)
        far = StageProgress(
            stage=WorkStage.BATCH, done=second // 40, total=8, left=200.0 - second, reward=0.25
        )
        for who, role, progress in ((seed, Role.SEED, None), (learner, Role.LEARNER, far)):
            said = beat(role=role, seq=second + 1, at=NOW + second, progress=progress)
            fold(house.state, events.Heard(at=NOW + second, peer=seed, subject=who, beat=said))
        if second in (80, 140):
            new = release(version=(second - 20) // 60, released=NOW + second)
            fold(house.state, events.Released(at=NOW + second, peer=learner, release=new))
        house._print_line()
        lines += capsys.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("version")]
    assert [re.findall(r"version (\d+).*batch (\d) of 8 groups \(", line) for line in told] == [
        [(version, done)] for version, done in (("0", "0"), ("0", "1"), ("1", "2"), ("1", "3"), ("2", "3"))
    ]
    assert all("reward 0.25 so far" in line for line in told)
    assert [line for line in lines if line not in told] == ["at this pace a version takes 60 s"]


def words(folder: Path, age: float) -> None:
    """A seed writes its words, `age` seconds ago by the machine's clock."""
    (path := folder / "invites" / Role.OBSERVER).parent.mkdir(exist_ok=True)
    path.write_text("swarm1")
    os.utime(path, (written := time.time() - age, written))


@pytest.mark.parametrize("off", [-7200.0, 7200.0])
def test_words_are_seen_though_the_clock_was_set_while_the_seed_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    """`swarm up` starts with a machine, and NTP sets that one's clock."""
    house, slept, begun = up.Children(tmp_path, Config()), list[float](), list[str]()
    words(tmp_path, 86400.0)  # of an earlier start

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 10, "the words were not seen"
        if len(slept) == 5:
            words(tmp_path, -off)

    def add(name: str, _: object) -> None:
        begun.append(name)
        house.children[name] = up.PeerProcess(name, [], tmp_path / f"{name}.log")
        house.signalled = None if name == Role.SEED else 15

    monkeypatch.setattr(up.time, "sleep", sleep)
    monkeypatch.setattr(up.signal, "signal", lambda *_: None)
    monkeypatch.setattr(house, "_look", lambda: None)
    monkeypatch.setattr(house, "_add", add)
    for role in Role:
        (tmp_path / "invites" / role).write_text("swarm1") if role is not Role.OBSERVER else None
    house.run()
    assert len(slept) == 5 and begun[0] == Role.SEED and len(begun) > 1


@pytest.mark.parametrize("off", [-7200.0, 7200.0])
def test_nobody_is_lost_in_the_line_where_the_machines_clock_was_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], off: float
) -> None:
    house = up.Children(tmp_path, Config())
    seed, learner = PeerId("12D3KooWseed"), PeerId("12D3KooWlearner")  # "silent" is a word of random names
    now = time.time() - off
    house.journal.path.parent.mkdir(parents=True)
    house.journal.path.write_bytes(
        b"".join(
            to_line(events.Heard(at=now - 60 + at, peer=seed, subject=who, beat=beat(role=role, seq=at)))
            for at in range(60)
            for who, role in ((seed, Role.SEED), (learner, Role.LEARNER))
        )
    )
    house._read()
    house._print_line()
    said = capsys.readouterr().err
    assert "silent" not in said and "heard nothing" not in said


def test_whom_it_starts_itself_nobody_is_told_to_invite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house, seed = up.Children(tmp_path, Config()), Keyring.new().me
    house._print_line()
    assert capsys.readouterr().err.startswith(
        "version 0, not evaluated yet, no reward yet, 0 groups trained; 6 of 6 peers are loading: 2 learners"
    )
    house.journal.path.parent.mkdir(parents=True)
    heard = events.Heard(at=time.time(), peer=seed, subject=seed, beat=beat(role=Role.SEED))
    house.journal.path.write_bytes(to_line(heard))
    house._read()
    house._line_due = 0.0
    house._print_line()
    said = capsys.readouterr().err
    assert "1/1 seeds" in said and "swarm invite" not in said


def test_nor_in_the_live_view_of_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    house, seed = up.Children(tmp_path, Config()), PeerId("12D3KooWseed")
    fold(house.state, events.Heard(at=time.time(), peer=seed, subject=seed, beat=beat(role=Role.SEED)))
    with house._screen() as show:
        show()
    said = capsys.readouterr().err
    assert "6 of 6 peers are loading" in said
    assert "swarm invite" not in said and "Nobody trains" not in said


def started(name: str, path: Path) -> up.PeerProcess:
    (child := up.PeerProcess(name, [], path / name)).process = subprocess.Popen(["true"])
    child.process.wait()
    child.started_at = time.monotonic()
    return child


@pytest.mark.parametrize("whose", ["own, down", "own, back", "own, hung", "own, left", "another's"])
def test_a_lost_peer_that_it_starts_again_itself_nobody_is_told_to_start(tmp_path: Path, whose: str) -> None:
    house, seed = up.Children(tmp_path, Config()), PeerId("12D3KooWseed")
    learner = open_key(tmp_path / "peers" / "learner-1" / "key").me
    child = house.children["learner-1"] = started("learner-1", tmp_path)
    if whose == "own, down":
        child.process = None
    elif whose == "own, hung":
        child.started_at -= 3600.0
    elif whose == "own, left":
        child.process, child.done = None, True
    elif whose == "another's":
        learner = PeerId("12D3KooWlearner")
    for second in range(90):
        for subject, role in ((seed, Role.SEED), (learner, Role.LEARNER)):
            if second < 30 or subject is seed:
                said = beat(role=role, seq=second + 1)
                fold(house.state, events.Heard(at=NOW + second, peer=seed, subject=subject, beat=said))
    (lost,) = (one for one in house._problems(NOW + 90) if one.key.startswith("lost"))
    assert ("started again here" in lost.todo) is (whose in ("own, down", "own, back"))
    assert ("`swarm join` again" in lost.todo) is (whose not in ("own, down", "own, back"))


def test_a_terminal_that_cannot_be_redrawn_has_the_lines_of_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    monkeypatch.setenv("TERM", "dumb")
    with up.Children(tmp_path, Config())._screen() as show:
        show()
        assert "version 0, not evaluated yet" in capsys.readouterr().err


def test_the_line_of_a_swarm_that_left_ends_with_a_word() -> None:
    assert headline(SwarmState(), NOW).endswith("0 groups trained")


def test_a_path_in_a_line_of_a_log_is_neither_broken_nor_read_as_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"a [b] [/c] {'long ' * 20}end"
    folder.mkdir(parents=True)
    house = up.Children(folder, Config())
    child = house.children["seed"] = up.PeerProcess("seed", [], folder / "seed.log")
    child.log.write_text(f"swarm: this is a bug; report it with {folder}/crash.txt\n")
    child.process, child.started_at = subprocess.Popen(["false"]), time.monotonic()
    child.process.wait()
    house._look()
    assert f"{folder}/crash.txt) and is started again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ends", "words", "stable", "gives_up"),
    [
        (
            "exit 1",
            "swarm: this is a bug in swarm (E: <f at 0x{n}>); report it with crash-{n}.txt",
            False,
            True,
        ),
        (
            "exit 1",
            "swarm: this is a bug in swarm (E: <f at 0x{n}>); report it with crash-{n}.txt",
            True,
            False,
        ),
        ("exit 1", "swarm: {word}", False, False),
        ("kill -SEGV $$", "loading", False, True),
        ("kill -KILL $$", "loading", False, False),
    ],
)
def test_a_child_that_crashes_twice_alike_as_it_starts_ends_the_swarm_with_its_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ends: str,
    words: str,
    stable: bool,
    gives_up: bool,
) -> None:
    house = up.Children(tmp_path, Config())
    child = house.children["learner-1"] = up.PeerProcess("learner-1", [], tmp_path / "log", stable=stable)
    monkeypatch.setattr(up.PeerProcess, "start", lambda child: None)

    def crash(number: int) -> None:
        child.log.write_text(words.format(n=number, word="abc"[number]))
        child.process, child.started_at = subprocess.Popen(["sh", "-c", ends]), time.monotonic()
        child.process.wait()
        house._look()

    crash(0)
    assert "is started again" in capsys.readouterr().err
    with pytest.raises(up.SameCrash) if gives_up else nullcontext() as error:
        crash(1)
    if gives_up:
        said = str(error.value)
        assert "learner-1 crashed twice in the same way" in said and str(child.log) in said
        assert "this is a bug" in said or "SIGSEGV" in said


NOT_FINITE = "swarm: 16 batches in a row have no gradient at version 7: lower run.optimizer.lr (1e+20)"
KILLED, BROKEN = "kill -KILL $$", "exit 3"


@pytest.mark.parametrize(
    ("ends", "seconds", "versions", "full", "gives_up"),
    [
        ([BROKEN] * 3, 40.0, [7, 7, 7], False, CannotHere),
        (["exit 1"] * 3, 40.0, [7, 7, 7], False, up.SameCrash),
        ([BROKEN] * 3, 40.0, [7, 7, 8], False, None),
        ([BROKEN] * 3, 40.0, [7, 7, 7], True, None),
        ([BROKEN] * 5, 10.0, [7] * 5, False, None),  # a port that is taken for a while
        ([BROKEN, BROKEN, KILLED, BROKEN, BROKEN], 40.0, [7] * 5, False, None),
        ([KILLED] * 9, 40.0, [7] * 9, False, None),
        (["exit 4"] * 9, 40.0, [7] * 9, False, None),  # nobody answers
    ],
)
def test_a_child_that_has_run_and_ends_in_one_way_while_no_version_is_made_ends_the_swarm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[str],
    seconds: float,
    versions: list[int],
    full: bool,
    gives_up: type[Exception] | None,
) -> None:
    house, now = up.Children(tmp_path, Config()), [1000.0]
    child = house.children["learner-1"] = up.PeerProcess("learner-1", [], tmp_path / "log", stable=True)
    monkeypatch.setattr(up.PeerProcess, "start", lambda child: None)
    monkeypatch.setattr(up.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(house, "_is_full", lambda: full)
    child.log.write_text(NOT_FINITE)

    def die(how: str, version: int) -> None:
        released = events.Released(at=NOW, peer=PeerId("learner-0"), release=release(version=version))
        fold(house.state, released)
        child.process, child.started_at = subprocess.Popen(["sh", "-c", how]), now[0]
        child.process.wait()
        now[0] += seconds
        house._look()

    *first, last = zip(ends, versions, strict=True)
    for one in first:
        die(*one)
    with pytest.raises(gives_up) if gives_up else nullcontext() as error:
        die(*last)
    if error:
        said = "crashed 3 times in the same way, and no version was made meanwhile (exit code"
        assert said in str(error.value) and "lower run.optimizer.lr (1e+20)" in str(error.value)


@pytest.mark.parametrize(
    ("code", "signalled", "wrote", "ends"),
    [
        (-15, 15, b"", 143),
        (130, 2, b"", 130),
        (-9, None, b"", 3),
        (3, None, b"", 3),
        (0, 15, b"exported", 0),
        (-15, 15, b"exported", 0),
    ],
)
def test_an_export_that_was_broken_off_is_told_with_what_writes_the_model(
    code: int,
    signalled: int | None,
    wrote: bytes,
    ends: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    house = up.Children(tmp_path, Config())
    house.complete = True

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        house.signalled = signalled  # it came while the model was written
        return subprocess.CompletedProcess(words, code, wrote, b"swarm: no room\n" if code == 3 else b"")

    monkeypatch.setattr(up.subprocess, "run", run)
    assert guarded(house.summarize) == ends
    out, err = capsys.readouterr()
    assert "is done" in out and ("model  " in out) is bool(wrote)
    assert (f"`swarm export DIR --folder {tmp_path}` writes it" in err) is not bool(wrote)
