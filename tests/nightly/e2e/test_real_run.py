"""The real run: a pretrained model, made from a package, learns for ten versions of its shipped settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from served_models import loaded

from peers.build.model import smollm2
from peers.errors import CannotHere
from swarm import events
from swarm.journal import read_journal
from swarm.learn.models import tokenization

SETS = ("run.stop.versions=10", "run.stop.accuracy=0", "run.evaluation.every=5", "page.port=0")


@pytest.fixture(scope="module")
def model() -> Path:
    """Made here, where this user does not have it yet."""
    try:
        return smollm2.folder()
    except CannotHere as error:
        if "cannot be fetched" not in str(error):
            raise
        pytest.skip(str(error))


def test_the_package_holds_a_chat_model(model: Path) -> None:
    tokens = tokenization.load(model)
    assert tokens.templated
    assert [tokens.decode([end]) for end in tokens.ends] == [""]
    assert 268e6 < (model / "model.safetensors").stat().st_size < 270e6
    assert "positive" in tokens.decode(tokens.encode(["Answer with one word: positive or negative."])[0])


@pytest.mark.timeout(1200)
def test_a_pretrained_model_learns_in_ten_versions(model: Path, tmp_path: Path) -> None:
    sets = [word for each in SETS for word in ("--set", each)]
    ran = subprocess.run(
        [sys.executable, "-m", "peers.cli", "up", "smollm2", "--folder", "run", *sets],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert ran.returncode == 0, ran
    peers = tmp_path / "run" / "peers"
    told = list(read_journal(peers / "seed" / "journal.jsonl"))
    own = read_journal(peers / "evaluator-1" / "journal.jsonl")  # the last one comes when the seed has left
    measured = {event.version: event.accuracy for event in own if isinstance(event, events.Evaluated)}
    assert measured[0] < 0.3 and measured[max(measured)] > 0.7, measured
    assert max(event.release.version for event in told if isinstance(event, events.Released)) >= 10
    assert loaded(tmp_path / "run" / "exported")
