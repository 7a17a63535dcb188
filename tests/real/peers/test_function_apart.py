"""A function in a process of its own: it returns, says what a person can mend, or was a bug."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from peers.build.run_in_fork import apart
from peers.errors import CannotHere, Refusal


def test_what_it_does_stays_and_what_it_imports_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        sys.modules["imported.there"] = sys
        print("a line of progress")
        (tmp_path / "made").write_text(str(os.getpid()))

    apart(work)
    assert (tmp_path / "made").read_text() != str(os.getpid())
    assert "imported.there" not in sys.modules
    assert "a line of progress" in capfd.readouterr().err


def test_what_a_person_can_mend_is_the_same_error_here(tmp_path: Path) -> None:
    def refuse() -> None:
        raise Refusal("of another run")

    with pytest.raises(Refusal, match="of another run"):
        apart(refuse)
    with pytest.raises(CannotHere, match="its path is a file"):
        (tmp_path / "file").touch()
        apart(partial(os.mkdir, tmp_path / "file" / "folder"))


def test_a_bug_is_a_bug_here(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match=r"exit code 1.*ZeroDivisionError"):
        apart(lambda: 1 / 0)
