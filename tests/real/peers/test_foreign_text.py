"""What others wrote is printed as visible text on lines of our own, wherever it is printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from peers import cli, errors
from peers.build.run_in_fork import apart
from peers.commands.invites import invite as inviting
from peers.console import Listing, optional_console
from peers.errors import BUG, CANNOT, USAGE, CannotHere, guarded, say
from peers.runtime.watching.narration import PeerLog

HOSTILE = {
    "cursor": "\x1b[2Aup\x1b[2J",
    "title": "\x1b]0;mine\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\press\x1b]8;;\x1b\\",
    "8-bit": "\x9b2J\x9d0;t\x9c\x90q\x9c",
    "hidden": "\x1b[8m",
    "backwards": "\u202egnitoved\u202c \u2066x\u2069 \u061c \u200f",
    "nothing": "a\u200bb\u2060c\ufeffd\u00ade\U000e0041",
    "bell": "\x07\x00\x08\x7f",
    "marks": "z" + "\u0300" * 400,
    "break": "first\nthe evidence does not hold\r\nthird\u2028fourth\x85fifth\x0bsixth",
    "return": "shown\rhidden",
    "endless": "x" * 1_000_000,
}


def seen(text: str, lines: int) -> None:
    """Raise AssertionError where a terminal would not show just this text, in so many lines."""
    assert text.count("\n") == lines
    strange = [c for c in text.replace("\n", "") if not c.isprintable() and c != "\t"]
    assert not strange, strange
    assert "\u0300" * 3 not in text
    assert len(text) <= lines * (errors.SENTENCE + 30)  # and the time in a log


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_sentence_is_one_line_of_bounded_length(
    kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    say(f"the learner said: {HOSTILE[kind]}")
    seen(capsys.readouterr().err, 1)
    log = PeerLog(tmp_path / "log")
    with errors.notifying(log.write):
        say(f"refused: {HOSTILE[kind]}")
        errors.notify(f"p2pd: {HOSTILE[kind]}")
    seen((tmp_path / "log").read_text().replace("refused", "", 1), 2)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("error", [CannotHere, RuntimeError])
def test_so_is_an_error_that_ends_a_command_and_its_report(
    kind: str, error: type[Exception], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")  # no report can be written: it is printed

    def program() -> int:
        raise error(f"12D3Koo refused: {HOSTILE[kind]}")

    assert guarded(program) == (CANNOT if error is CannotHere else BUG)
    told = capsys.readouterr().err
    if error is CannotHere:
        seen(told, 1)
    assert "\x1b" not in told and "\x9b" not in told and "\u202e" not in told
    assert "\r" not in told and "\u2066" not in told


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind not in ("break", "return", "endless")])
def test_whatever_a_command_or_a_library_prints_has_nothing_that_a_terminal_obeys(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def program() -> int:
        print(f"model: {HOSTILE[kind]}")
        print(HOSTILE[kind], file=sys.stderr)
        sys.stderr.writelines([HOSTILE[kind], "\n"])
        for console in (Listing(), optional_console("stderr", width=80)):
            console.print(Text(HOSTILE[kind]))
            table = Table(HOSTILE[kind].replace("[", "("))
            table.add_row(Text(HOSTILE[kind]))
            console.print(table)
        return 0

    before = sys.stdout, sys.stderr
    assert guarded(program) == 0
    assert before == (sys.stdout, sys.stderr)
    out, err = capsys.readouterr()
    for text in (out, err):
        seen(text, text.count("\n"))


def test_what_a_process_of_ours_prints_is_visible_text_too(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        apart(lambda: print(f"template: {HOSTILE['cursor']}", file=sys.stderr))
        return 0

    assert guarded(program) == 0
    assert "template: [2Aup[2J\n" in capsys.readouterr().err


def test_a_bar_of_progress_stays_on_its_line_and_nothing_in_it_goes_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def program() -> int:
        sys.stderr.write("\r 50 %|███   |")
        sys.stderr.write("\rmodel\rhidden")
        return 0

    guarded(program)
    assert capsys.readouterr().err == "\r 50 %|███   |\rmodel\nhidden"


def test_our_own_colours_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> int:
        return errors.drawn(sys.stderr).write("\x1b[32mok\x1b[0m\n")

    guarded(program)
    assert capsys.readouterr().err == "\x1b[32mok\x1b[0m\n"


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_of_settings_is_told_of_in_visible_words(
    kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    escaped = "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in HOSTILE[kind][:4000])
    path.write_text(f'[run]\nname = "{escaped}"\n["{escaped}"]\n')
    assert cli.main(["config", "check", str(path)]) == USAGE
    seen(capsys.readouterr().err, 1)


def test_a_note_is_no_markup(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        made, role, note, text, expires = 0.0, None, "[/b] [link=x]y", "swarm1abcdefgh", 0

    monkeypatch.setattr(
        inviting.invitations, "run_of", lambda _: type("R", (), {"revocations": None, "path": Path()})
    )
    monkeypatch.setattr(inviting.issued_invites, "issued_invites", lambda _: [Made()])
    for name in ("_left", "_is_revoked", "_end"):
        monkeypatch.setattr(inviting, name, lambda *_: "")
    monkeypatch.setattr(inviting.invite_quota, "used", lambda _: {})
    assert inviting.listed(Path(), False) == 0
    assert "[/b]" in capsys.readouterr().out
