"""What a joiner reads while its model is loaded."""

from __future__ import annotations

import asyncio

import pytest

from peers.build.model.loading import said
from swarm.sim.clock import run


async def model(seconds: float) -> str:
    await asyncio.sleep(seconds)
    if seconds > 100.0:
        raise ValueError("too large")
    return "a model"


def test_what_takes_long_to_load_is_told_again_with_its_time_so_far(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(said("the model", model(40.0))) == "a model"
    assert capsys.readouterr().err.splitlines() == [
        "loading the model",
        "still loading the model (15 s so far)",
        "still loading the model (30 s so far)",
    ]
    assert run(said("the model", model(1.0))) == "a model"
    assert capsys.readouterr().err.splitlines() == ["loading the model"]


def test_what_cannot_be_loaded_fails_as_it_does() -> None:
    with pytest.raises(ValueError, match="too large"):
        run(said("the model", model(101.0)))
