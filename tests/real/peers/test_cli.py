"""The command: exit codes, what goes to which stream, and messages that say what to do. Real processes where
that matters."""

import errno
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from places import ROOT

from dashboard.serve import terminal
from peers import cli, errors
from swarm import __version__
from swarm.learn.objectives import objective, options_of
from swarm.membership import invite
from swarm.membership.identity import IdentityError
from swarm.net.ports import Unreachable
from swarm.protocol import Role
from swarm.settings.layers import ConfigError
from swarm.types import Digest

KEY = invite.keyring(bytes(32))


def swarm(*words: str, state: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "XDG_STATE_HOME": str(state), **more}
    command = [sys.executable, "-m", "peers.cli", *words]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """As `swarm`, in this process."""
    before = os.umask(0o022)
    os.umask(before)

    def run(*words: str, state: Path = tmp_path, **more: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(ROOT)
        for name, value in {"XDG_STATE_HOME": str(state), **more}.items():
            monkeypatch.setenv(name, value)
        try:
            code = cli.main(words)
        finally:
            os.umask(before)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return run


def word(expires: float) -> str:
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{KEY.me}"
    return invite.make(Digest("ab" * 32), [address], Role.SAMPLER, int(expires))


COMMANDS = (
    "up start join leave sim status why dashboard replay invite export doctor objectives bench config task"
    " fit"
).split()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.run([command, "--help"])
    said = capsys.readouterr().out
    assert caught.value.code == 0
    assert f"example: swarm {command}" in " ".join(said.split())


def test_every_example_can_be_parsed() -> None:
    it = cli.parser()
    lines = [line.strip() for line in (it.epilog or "").splitlines()]
    examples = [line.split("  ")[0].split()[1:] for line in lines if line.startswith("swarm ")]
    assert len(examples) == 5
    for words in examples:
        assert it.parse_args(words).command is not None


def test_the_version_is_one_line(tmp_path: Path) -> None:
    for option in ("-V", "--version"):
        ran = swarm(option, state=tmp_path)
        assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout == f"swarm {__version__}\n"


@pytest.mark.parametrize(
    ("command", "used"),
    [
        ("up", "--folder --set --model"),
        ("leave", "--folder"),
        ("objectives", "--json"),
        ("sim", ""),
    ],
)
def test_a_command_shows_only_options_that_it_uses(
    command: str, used: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.run([command, "--help"])
    said = capsys.readouterr().out
    assert [one for one in ("--folder", "--set", "--model", "--json") if one in said] == used.split()


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    ran = swarm("up", "configs/demo.toml", "--set", "run.batch.gruops=3", state=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert (
        ran.stderr
        == "swarm: --set run.batch.gruops: there is no key run.batch.gruops; did you mean run.batch.groups?\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["swarm1zzzz"], "the invite is damaged"),
        ([word(time.time() + 999)[:-7]], "it may be cut off"),
        ([word(time.time() - 7200)], "expired 2 hours ago: ask the swarm's owner"),
        (["hello"], "an invite begins with swarm1"),
    ],
)
def test_an_invite_that_cannot_be_used_is_refused_offline(here: Command, words: list[str], said: str) -> None:
    ran = here("join", *words)
    assert (ran.returncode, ran.stdout) == (5, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_joiner_cannot_change_what_all_peers_agree_on(here: Command) -> None:
    ran = here("join", word(time.time() + 999), "--set", "optimizer.lr=1")
    assert ran.returncode == 2
    assert "run.optimizer.lr is the same for all peers" in ran.stderr


def test_without_a_run_the_reading_commands_say_where_they_looked(here: Command, tmp_path: Path) -> None:
    for command in (["status"], ["leave"], ["export", "out"], ["invite"]):
        ran = here(*command)
        assert ran.returncode == 2
        assert f"no run on this machine (looked in {tmp_path / 'swarm' / 'runs'})" in ran.stderr


def test_show_prints_every_setting_with_its_origin(here: Command) -> None:
    words = ("config", "show", "configs/demo.toml", "--json", "--set", "run.seed=4")
    ran = here(*words, SWARM__RUN__BATCH__GROUPS="16")
    shown = json.loads(ran.stdout)
    assert shown["run.seed"] == {"value": 4, "origin": "--set run.seed"}
    assert shown["run.batch.groups"] == {
        "value": 16,
        "origin": "environment variable SWARM__RUN__BATCH__GROUPS",
    }
    assert shown["run.pace.beat"]["origin"].startswith("configs/demo.toml line ")
    assert shown["run.optimizer.lr"]["origin"] == "default"
    assert (ran.returncode, ran.stderr) == (0, "")


def test_check_knows_the_objectives(here: Command) -> None:
    ran = here("config", "check", "configs/demo.toml", "--set", "objective.name=gepoo")
    assert ran.returncode == 2
    assert "gepoo" in ran.stderr
    assert "gepo" in ran.stderr.split("gepoo", 1)[1]


def test_objectives_are_listed_with_a_line_each_and_shown_with_their_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["objectives", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {"gepo", "grpo", "gspo", "dr_grpo"} <= set(records) and records["gepo"]["trust"]["dual"] is None
    assert cli.run(["objectives"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*records]
    assert all(
        record["about"] in line and record["source"] in line
        for record, line in zip(records.values(), lines, strict=True)
    )
    assert cli.run(["objectives", "grpo"]) == 0
    out = capsys.readouterr().out
    assert "centre=group-mean  scale=group-std" in out
    assert out.splitlines()[-1].split() == ["options", *options_of(objective("grpo"))]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("objectives gebo", "did you mean 'gepo'"),
        ("bench staleness join", "name only one"),
        ("bench join --quick", "are for the studies"),
        ("bench gradient --methods gepo,gebo", "did you mean 'gepo'"),
        ("config check configs/demo.toml --set objective.options.dual=3", "does not read dual"),
        ("bench gradient --methods gepo_noclip/eps=0.2", "does not read eps"),
    ],
)
def test_wrong_words_about_objectives_and_studies_are_refused(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    assert says in capsys.readouterr().err


def test_a_bug_of_ours_leaves_its_traceback_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def broken() -> int:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [KeyError("oops"), ValueError("more")])])

    assert errors.guarded(broken) == 1
    (report,) = (tmp_path / "swarm" / "crashes").iterdir()
    assert "in broken" in report.read_text()
    said = capsys.readouterr().err
    assert str(report) in said and "KeyError: 'oops'" in said
    assert "Traceback" not in said


def raising(error: BaseException) -> int:
    def program() -> int:
        raise error

    return errors.guarded(program)


@pytest.mark.parametrize(
    ("closed", "verb"),
    [(">&-", "show"), ("2>&-", "show"), ("<&- >&-", "show"), ("<&- >&- 2>&-", "check")],
)
def test_closed_descriptors_are_no_bug_and_no_sockets_number(closed: str, verb: str, tmp_path: Path) -> None:
    """`check` imports torch."""
    given = 'exec "$@" ' + closed
    program = "socket.socket().fileno() <= 2 or subprocess.call(['sh', '-c', ': <&0 && : >&1 && : >&2'])"
    imports = "import socket, subprocess, sys; from peers.errors import guarded"
    asks = f"{imports}; sys.exit(guarded(lambda: {program}))"
    for words in (["-m", "peers.cli", "config", verb, "demo"], ["-c", asks]):
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        ended = subprocess.run(
            ["sh", "-c", given, "sh", sys.executable, *words],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0 and not ended.stderr, ended


TOO_MANY = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (errors.CannotHere("x"), 3),
        (OSError(errno.EADDRINUSE, "Address already in use"), 3),
        (IdentityError("x"), 3),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 3),
        (OSError(errno.EMFILE, "Too many open files"), 3),
        (RuntimeError("can't start new thread"), 3),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 3),
        (OSError(errno.ENFILE, "Too many open files in system", "/x"), 3),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 3),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 3),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/x"), 3),
        (Unreachable("x"), 4),
        (errors.NoPeerAnswers("x"), 4),
        (errors.Refusal("x"), 5),
        (invite.InviteError(invite.InviteProblem.EXPIRED, "x"), 5),
        (errors.Interrupted(1), 129),
        (errors.Interrupted(2), 130),
        (errors.Interrupted(15), 143),
        (KeyboardInterrupt(), 130),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [errors.Refusal("x")])]), 5),
        (ExceptionGroup("tasks", [TOO_MANY, ExceptionGroup("inner", [TOO_MANY, TOO_MANY])]), 3),
        (ImportError("libz.so.1: cannot open shared object file: Too many open files"), 3),
        (RuntimeError("unable to open file </torch_1>: Too many open files (24)"), 3),
        (MemoryError(), 3),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."), 3),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"), 3),
    ],
)
def test_each_error_has_the_exit_code_of_the_design(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_full_disk_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    raising(OSError(errno.ENOSPC, "No space left on device", "/var/x"))
    said = "the disk is full: free some space, or name another folder with --folder"
    assert capsys.readouterr().err == f"swarm: cannot use /var/x: {said}\n"


def test_of_several_errors_one_that_nobody_can_fix_is_told_as_a_bug() -> None:
    assert errors.explain(ExceptionGroup("tasks", [TOO_MANY, KeyError("x")])) is None


def test_too_many_open_files_names_how_many_there_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    raising(TOO_MANY)
    assert f"({resource.getrlimit(resource.RLIMIT_NOFILE)[0]})" in capsys.readouterr().err


def test_errors_that_are_matched_by_name_exist() -> None:
    import importlib

    for name in errors._BY_NAME:
        module, _, kind = name.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), kind), Exception)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_that_cannot_show_our_arrows_gets_them_spelled(tmp_path: Path, encoding: str) -> None:
    ran = swarm("task", "try", "digit-sums", "-n", "1", state=tmp_path, PYTHONIOENCODING=encoding)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "-> 1" in ran.stdout


def test_what_the_status_draws_has_a_spelling() -> None:
    drawn = terminal.SPARKS + "".join(terminal.MARKS.values())
    assert drawn.translate(cli.SPELLED).isascii()


@pytest.mark.parametrize(
    "words", [["join", word(2**32 - 1)], ["start", "configs/demo.toml"], ["up", "configs/demo.toml"]]
)
def test_a_home_that_cannot_be_made_is_named_before_anything_slow_begins(
    here: Command, words: list[str]
) -> None:
    ran = here(*words, state=Path("/proc/nowhere"))
    assert ran.returncode == 3
    assert (
        "/proc/nowhere" in ran.stderr
        and "cannot be made" in ran.stderr
        and "name another folder with --folder" in ran.stderr
    )
    assert "bug" not in ran.stderr
