"""`swarm service`: the unit runs the line that was typed, where it was typed, and nobody else reads it."""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from peers import cli
from swarm.membership import invite
from swarm.protocol import Role
from swarm.types import Digest

PEER = invite.keyring(bytes([9] * 32)).me
WORD = invite.make(Digest("cd" * 32), [f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"], Role.SAMPLER)


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where units go, on a machine with a program called systemctl."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text("#!/bin/false\n")
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "systemd" / "user"


def lines(unit: Path, key: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith(f"{key}=")]


def command(unit: Path) -> list[str]:
    """ExecStart as systemd reads it."""
    (line,) = lines(unit, "ExecStart")
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def test_a_join_becomes_a_unit_that_runs_it_and_lets_it_leave(
    units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["service", "install", "join", WORD, "--as", "sampler", "--folder", "a run"]) == 0
    unit = units / "swarm-a-run.service"
    told = capsys.readouterr().out.splitlines()
    assert told == [
        str(unit),
        "systemctl --user daemon-reload && systemctl --user enable --now swarm-a-run.service",
        "loginctl enable-linger",
    ]
    words = command(unit)
    kept = unit.with_suffix(".word")
    join = ["join", "--word-file", str(kept), "--as", "sampler", "--folder", "a run"]
    assert words[1:] == ["-P", "-m", "peers.cli", *join]
    assert kept.read_text() == WORD and kept.stat().st_mode & 0o077 == 0 and WORD not in unit.read_text()
    assert lines(unit, "WorkingDirectory") == [str(Path.cwd())]
    assert lines(unit, "KillMode") == ["mixed"] and lines(unit, "RestartForceExitStatus") == ["1"]
    assert unit.stat().st_mode & 0o077 == 0, "an invite is a secret"
    said = subprocess.run([*words[:4], "--version"], capture_output=True, text=True, check=False, cwd="/")
    assert said.stdout.startswith("swarm ")


def test_without_a_folder_it_is_the_runs_own_and_named_in_the_line(units: Path, tmp_path: Path) -> None:
    assert cli.main(["service", "install", "join", WORD]) == 0
    assert cli.main(["service", "install", "start", "demo", "--set", "run.name=my-run"]) == 0
    assert cli.main(["service", "install", "--folder", "here", "start", "demo"]) == 0
    state = tmp_path / "state" / "swarm" / "runs"
    for folder in (state / ("cd" * 6), state / "my-run", tmp_path / "here"):
        assert command(units / f"swarm-{folder.name}.service")[-2:] == ["--folder", str(folder)]


def test_percent_dollar_and_quotes_reach_the_peer_as_they_were_typed(units: Path) -> None:
    odd = """run.task.system=100% of $HOME, \\ and "quotes\""""
    assert cli.main(["service", "install", "start", "demo", "--folder", "odd", "--set", odd]) == 0
    assert command(units / "swarm-odd.service")[-1] == odd
    assert "100%% of $$HOME" in (units / "swarm-odd.service").read_text()


def test_a_word_that_was_pasted_with_line_breaks_is_whole(units: Path) -> None:
    kept = units / "swarm-Run.word"
    pasted = f"swarm join {WORD[:40]}\n  {WORD[40:]}\n"
    for pieces in ([pasted], [WORD[:40] + "\n", WORD[40:]]):
        assert cli.main(["service", "install", "join", *pieces, "--as", "sampler", "--folder", "Run"]) == 0
        assert command(units / "swarm-Run.service")[4:] == [
            *("join", "--word-file", str(kept), "--as", "sampler", "--folder", "Run")
        ]
        assert kept.read_text() == WORD
        kept.unlink()


def test_a_word_comes_from_the_environment_standard_input_or_a_file_of_its_own(
    units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, install = units / "swarm-Run.word", ["service", "install", "--folder", "Run", "join"]
    monkeypatch.setenv("SWARM_WORD", WORD)
    assert cli.main(install) == 0 and kept.read_text() == WORD
    kept.unlink()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{WORD}\n"))
    assert cli.main([*install, "-"]) == 0 and kept.read_text() == WORD
    assert command(units / "swarm-Run.service")[4:8] == ["join", "--word-file", str(kept), "--folder"]
    kept.unlink()
    (tmp_path / "mine").write_text(WORD)
    assert cli.main([*install, "--word-file", "mine"]) == 0 and not kept.exists()
    assert command(units / "swarm-Run.service")[4:8] == ["join", "--word-file", "mine", "--folder"]


@pytest.mark.parametrize("odd", ["a\nExecStart=/bin/false", "a\x00b", "a\x7f", "a\udce9"])
def test_what_would_end_a_line_of_the_unit_is_refused(
    units: Path, tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = ["service", "install"]
    assert cli.main([*install, "start", "demo", "--folder", "one", "--set", f"run.task.system={odd}"]) == 2
    assert cli.main([*install, "--folder", odd, "start", "demo"]) == 2
    if "\0" not in odd:
        (tmp_path / odd.replace("/", "-")).mkdir()
        monkeypatch.chdir(tmp_path / odd.replace("/", "-"))
        assert cli.main([*install, "start", "demo", "--folder", str(tmp_path / "one")]) == 2
    assert "that a unit cannot hold" in capsys.readouterr().err
    assert not list(units.glob("*"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name what the service runs"),
        (["status"], 2, "name what the service runs"),
        (["join", "swarm1nonsense"], 5, ""),
        (["join", WORD, "--rol", "sampler"], 2, "did you mean --as"),
        (["start"], 2, "name a file of settings"),
        (["start", "nope.toml"], 2, "cannot read nope.toml"),
    ],
)
def test_a_line_that_could_not_run_writes_no_unit(
    units: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    try:
        assert cli.main(["service", "install", *words]) == code
    except SystemExit as error:  # of the parser
        assert error.code == code
    assert said in capsys.readouterr().err
    assert not list(units.glob("*"))


def test_the_only_service_is_removed_with_its_link_and_another_programs_never(
    units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["service", "install", "--folder", "one", "join", WORD]) == 0
    link = units / "default.target.wants" / "swarm-one.service"
    link.parent.mkdir()
    link.symlink_to(units / "swarm-one.service")
    (units / "swarm-theirs.service").write_text("[Unit]\n")
    assert cli.main(["service", "remove", "swarm-theirs"]) == 2
    assert cli.main(["service", "install", "--folder", "theirs", "join", WORD]) == 3
    capsys.readouterr()
    assert cli.main(["service", "remove"]) == 0
    assert not (units / "swarm-one.word").exists(), "an invite is a secret"
    assert "systemctl --user stop swarm-one.service" in capsys.readouterr().out
    assert not link.is_symlink() and [path.name for path in units.glob("*.service")] == [
        "swarm-theirs.service"
    ]
    assert cli.main(["service", "remove"]) == 2
    assert "none" in capsys.readouterr().err


def test_a_folder_of_the_same_name_elsewhere_takes_no_unit_from_the_first(
    units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["service", "install", "join", WORD, "--folder", "a/run"]) == 0
    before = (units / "swarm-run.service").read_text()
    assert cli.main(["service", "install", "start", "demo", "--folder", "b/run"]) == 3
    said = capsys.readouterr().err
    assert "another folder" in said and "`swarm service remove swarm-run`" in said and "--folder" in said
    assert (units / "swarm-run.service").read_text() == before
    again = ["service", "install", "join", WORD, "--folder", "a/run", "--as", "sampler"]
    assert cli.main(again) == 0, "the same folder's is written anew"
    assert cli.main(["service", "remove", "swarm-run"]) == 0
    assert cli.main(["service", "install", "start", "demo", "--folder", "b/run"]) == 0


def test_who_replaces_a_folders_unit_is_told_what_it_ran(
    units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = ["service", "install", "join", WORD, "--folder", "run", "--as", "learner"]
    sampler = [*learner[:-1], "sampler"]
    assert cli.main(learner) == 0 and cli.main(learner) == 0
    assert "replaces" not in capsys.readouterr().err, "the same line replaces nothing"
    assert cli.main(sampler) == 0
    said = capsys.readouterr().err
    assert '"--as" "learner"' in said and "`systemctl --user restart swarm-run.service`" in said
    assert "--folder" in said and WORD not in said and WORD[-8:] in said, "an invite is a secret"
    assert command(units / "swarm-run.service")[-1] == "sampler"


@pytest.mark.parametrize("end", ["\\", "\\\\", " ", "% \\"])
def test_a_folder_that_ends_in_a_backslash_or_a_blank_joins_no_lines(
    units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    (here := tmp_path / f"here{end}").mkdir()
    monkeypatch.chdir(here)
    assert cli.main(["service", "install", "--folder", str(tmp_path / f"run{end}"), "join", WORD]) == 0
    (unit,) = units.glob("*.service")
    assert not any(line.endswith(("\\", " ")) for line in unit.read_text().splitlines())
    assert [Path(path.replace("%%", "%")) for path in lines(unit, "WorkingDirectory")] == [here]
    before = unit.read_bytes()
    assert cli.main(["service", "install", "--folder", str(tmp_path / f"run{end}"), "join", WORD]) == 0
    assert unit.read_bytes() == before, "the same folder's is written anew"


def test_the_folder_is_named_before_the_end_of_the_options(units: Path, tmp_path: Path) -> None:
    line = ["start", "--set", "run.name=my-run", "--", "demo"]
    assert cli.main(["service", "install", *line]) == 0
    (unit,) = units.glob("*.service")
    words = command(unit)[4:]
    assert words[-2:] == ["--", "demo"] and words[3] == "--folder"
    said = cli.parser().parse_args(words)
    assert (str(said.config), said.folder.name) == ("demo", "my-run")


def test_units_that_nobody_can_read_are_not_ours(units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["service", "install", "--folder", "one", "join", WORD]) == 0
    (units / "swarm-odd.service").write_bytes(b"\xff\xfe[Unit]\n")
    (units / "swarm-gone.service").symlink_to(units / "nowhere")
    assert cli.main(["service", "install", "--folder", "odd", "join", WORD]) == 3
    assert cli.main(["service", "remove"]) == 0
    assert {path.name for path in units.glob("*.service")} == {"swarm-odd.service", "swarm-gone.service"}


def test_of_several_services_one_has_to_be_named(units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert cli.main(["service", "install", "--folder", name, "join", WORD]) == 0
    assert cli.main(["service", "remove"]) == 2
    assert "swarm-one, swarm-two" in capsys.readouterr().err
    assert cli.main(["service", "remove", "swarm-two.service"]) == 0


def test_a_machine_without_systemd_is_told_so(
    units: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert cli.main(["service", "install", "join", WORD]) == 3
    assert "which this machine has not" in capsys.readouterr().err


def test_systemd_understands_the_unit(units: Path) -> None:
    if (verifier := shutil.which("systemd-analyze", path="/usr/bin:/bin")) is None:
        pytest.skip("systemd-analyze is not installed")
    assert cli.main(["service", "install", "--folder", "50% off", "join", WORD]) == 0
    words = [verifier, "verify", "--user", "--man=no", str(units / "swarm-50--off.service")]
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert not [line for line in said.stderr.splitlines() if "swarm-" in line], said
