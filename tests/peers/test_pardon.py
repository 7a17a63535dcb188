"""`swarm pardon` lets samplers back that learners of a folder set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers import cli
from peers.roles.evidence import keep_aside, read_aside
from swarm.core.auditing import Consequence
from swarm.types import PeerId

ADA, BOB = PeerId("12D3KooWAda"), PeerId("12D3KooWBob")
WHY = Consequence(until=1e12, strikes=3, why="two tokens are off")


def aside(folder: Path, learner: str, *samplers: PeerId) -> Path:
    path = folder / "peers" / learner / "evidence"
    keep_aside(path, dict.fromkeys(samplers, WHY))
    return path


def pardoned(folder: Path, peer: str) -> int:
    return cli.main(["pardon", peer, "--folder", str(folder)])


def test_a_sampler_is_let_back_by_all_learners_of_a_folder_and_the_others_are_not(tmp_path: Path) -> None:
    one, two = aside(tmp_path, "learner-0", ADA, BOB), aside(tmp_path, "learner-1", ADA)
    assert pardoned(tmp_path, "12D3KooWA") == 0
    assert read_aside(one) == {BOB: WHY} and read_aside(two) == {}


@pytest.mark.parametrize(
    ("peer", "why"), [("12D3", "the beginning of several"), ("12D3KooWEve", "not set aside")]
)
def test_who_is_not_named_clearly_is_asked_for(
    tmp_path: Path, peer: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = aside(tmp_path, "learner-0", ADA, BOB)
    assert pardoned(tmp_path, peer) == 2 and why in capsys.readouterr().err
    assert len(read_aside(folder)) == 2


def test_a_folder_where_nobody_is_set_aside_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pardoned(tmp_path, "12D3") == 2 and "nobody is set aside" in capsys.readouterr().err
