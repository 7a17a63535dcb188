"""Where a command has its invite from: an argument, standard input, a file, the environment; and who sees it
there."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peers import cli
from peers.build import assembly
from peers.commands.parsing import arguments
from peers.commands.runs import up
from peers.errors import WrongUsage
from swarm.membership import invite
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.types import Digest

ADDRESS = f"/ip4/127.0.0.1/tcp/9/p2p/{invite.keyring(bytes(32)).me}"
WORD, OTHER = (invite.make(Digest(run * 32), [ADDRESS], Role.SAMPLER) for run in ("ab", "cd"))

TAKING = ("join", "dashboard", "status", "doctor")
"""Commands that take an invite."""


def given(*line: str) -> str:
    args = cli.parser().parse_args(line)
    need = arguments.needed_invite if line[0] in ("join", "dashboard") else arguments.invite_or_folder
    return need(args)


@pytest.mark.parametrize("command", TAKING)
def test_an_invite_comes_from_an_argument_standard_input_a_file_or_the_environment(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "word").write_text(f"{OTHER}\n")
    monkeypatch.setenv("SWARM_WORD", WORD)
    assert given(command) == WORD
    assert "SWARM_WORD" not in os.environ, "processes that it starts do not have it"
    monkeypatch.setenv("SWARM_WORD", WORD)
    assert given(command, OTHER) == OTHER
    assert given(command, "--word-file", str(tmp_path / "word")).strip() == OTHER
    monkeypatch.setattr("sys.stdin", io.StringIO(f"swarm join {OTHER[:50]}\n{OTHER[50:]}\n"))
    assert invite.read(given(command, "-"), time.time()).run == Digest("cd" * 32)


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_a_folder_that_is_named_comes_before_the_environment(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_WORD", WORD)
    assert given(command, "--folder", "here") == ""


@pytest.mark.parametrize("command", ["join", "dashboard"])
def test_standard_input_without_an_invite_is_said_to_have_none(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(WrongUsage, match="standard input has no invite"):
        given(command, "-")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), "utf-8"))
    with pytest.raises(WrongUsage, match="cannot be read from standard input: it is not text"):
        given(command, "-")


def test_a_word_to_renew_or_to_revoke_is_read_in_the_same_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from peers.commands.invites import invite as program
    from peers.commands.invites import revoke

    seen: list[str] = []
    monkeypatch.setattr(program, "renew", lambda folder, word, *_: seen.append(word.strip()) or 0)
    monkeypatch.setattr(revoke, "main", lambda folder, who: seen.append(who.strip()) or 0)
    (tmp_path / "word").write_text(f"{WORD}\n")
    at = ["--folder", str(tmp_path)]
    for line in (["invite", "--renew"], ["revoke"]):
        assert cli.main([*line, "--word-file", str(tmp_path / "word"), *at]) == 0
        monkeypatch.setattr("sys.stdin", io.StringIO(WORD))
        assert cli.main([*line, "-", *at]) == 0
    monkeypatch.setenv("SWARM_WORD", WORD)
    assert cli.main(["invite", "--renew", *at]) == 0
    monkeypatch.setenv("SWARM_WORD", WORD)
    assert cli.main(["revoke", *at]) == 2, "who leaves the environment as it is puts nobody out by that"
    assert seen == 5 * [WORD]


WAITING = """
import sys, time
from peers import cli, verbs
from peers.commands.parsing import arguments

def wait(args):
    print(hash(arguments.given_invite(args, args.invite)) and "ready", flush=True)
    time.sleep(60)

verbs.join = wait
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize("pieces", [[WORD], [WORD[:60], WORD[60:]], [f"swarm join {WORD}"]])
def test_an_invite_in_an_argument_is_in_the_command_line_no_more(pieces: list[str]) -> None:
    command = [sys.executable, "-c", WAITING, "join", *pieces, "--as", "sampler"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as joining:
        try:
            assert joining.stdout is not None and joining.stdout.readline() == "ready\n"
            shown = Path(f"/proc/{joining.pid}/cmdline").read_bytes().decode().split("\0")
        finally:
            joining.kill()
    assert shown[3:] == ["join", *("*" * len(piece) for piece in pieces), "--as", "sampler", ""]


def test_up_names_files_of_words_to_the_peers_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = up.Children(tmp_path, Config())
    monkeypatch.setattr(up.signal, "signal", lambda *_: None)
    monkeypatch.setattr(up.PeerProcess, "start", lambda _: None)
    monkeypatch.setattr(house, "_wait_for_invites", lambda _: None)
    monkeypatch.setattr(house, "_look", lambda: setattr(house, "complete", True))
    house.run()
    joins = [child.arguments for child in house.children.values() if child.arguments[0] == "join"]
    assert joins
    for words in joins:
        args = cli.parser().parse_args(words)
        assert (args.invite, args.word_file) == ([], tmp_path / "invites" / args.role)


class Run:
    """A run whose words for learners make members, and whose words for samplers do not."""

    name, digest, path, is_owners = "demo", Digest("ab" * 32), Path("/run"), False

    def invite(self, role: Role, addresses: list[str]) -> str:
        owner, until = invite.keyring(bytes(32)), int(time.time()) + 1000
        made = invite.delegate(owner, self.name, role, until, False) if role is Role.LEARNER else None
        return invite.make(self.digest, addresses, role, until, made)


@pytest.mark.parametrize("terminal", [False, True])
def test_words_that_make_members_are_printed_to_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """A service's output is the system's journal, a container's a log: both have readers that no word is
    for."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    assembly._print_invites(argparse.Namespace(), Run(), [ADDRESS])  # type: ignore[arg-type]
    out = capsys.readouterr().out
    words = [invite.read(line, time.time()) for line in out.splitlines() if "swarm1" in line]
    assert [word.role for word in words] == [Role.SAMPLER, *([Role.LEARNER] if terminal else [])]
    assert ("`swarm invite --role learner --folder /run` prints the invite" in out) is not terminal
