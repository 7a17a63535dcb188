"""What a learner makes of its line: warned, refused, and what it remembers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.build.local_peer import LocalPeer, open_local_peer
from peers.build.model.learner_averager import FASTEST, LearnerLine
from peers.errors import CannotHere
from peers.runtime import peer_folder
from swarm import events
from swarm.protocol import Role
from swarm.settings.config import Averaging, Run

MBIT = 125_000
RUN = Run(averaging=Averaging(deadline=180.0))
VALUES = 596_000_000
"""Of Qwen3-0.6B: 1.19 GB in float16."""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalPeer]:
    with open_local_peer(peer_folder.free_peer_folder(tmp_path, Role.LEARNER)) as peer:
        yield peer


def line_of(local: LocalPeer, run: Run = RUN, limit: float = math.inf) -> LearnerLine:
    return LearnerLine(local, run, VALUES, lambda: None, limit)


def remember(local: LocalPeer, text: str) -> None:
    (local.folder / "uplink").write_text(text)


def test_a_learner_is_refused_where_its_limit_makes_rounds_longer_than_they_may_be(local: LocalPeer) -> None:
    with pytest.raises(CannotHere) as caught:
        line_of(local, limit=20 * MBIT)
    assert str(caught.value) == (
        "this peer's peer.limits.upload is too low to learn: a round needs 7.9 min on a line of 20 Mbit/s"
        " (1.19 GB in float16), and may take 3 min (run.averaging.deadline): use run.model.training = lora or"
        " run.averaging.compression = int8 or run.averaging.mode = sites or a faster line"
    )
    assert line_of(local, limit=60 * MBIT).rate() == 60 * MBIT


def test_without_a_deadline_a_round_may_take_half_of_the_window(local: LocalPeer) -> None:
    assert line_of(local, Run(), 20 * MBIT).rate() == 20 * MBIT
    with pytest.raises(CannotHere, match=r"half of run\.window\.seconds"):
        line_of(local, Run(), 10 * MBIT)


def test_a_learner_whose_line_was_too_slow_says_so_once_before_it_trains(local: LocalPeer) -> None:
    noted: list[events.Event] = []
    local.bus.add(noted.append)
    remember(local, str(20 * MBIT))

    async def start() -> None:
        line = line_of(local)
        async with line.measured():
            assert line.rate() == 20 * MBIT

    asyncio.run(start())
    (warning,) = noted
    assert isinstance(warning, events.Noted) and warning.level == "warning"
    assert "a round needs 7.9 min on a line of 20 Mbit/s" in warning.text
    assert (local.folder / "uplink").read_text() == str(20 * MBIT)


@pytest.mark.parametrize("said", ["", "fast", "-5", "\u0663", "9" * 5000, str(FASTEST + 1)])
def test_what_is_no_rate_is_not_remembered(local: LocalPeer, said: str) -> None:
    remember(local, said)
    assert line_of(local).rate() == 0


def test_a_fault_has_the_time_of_the_node_once_there_is_one(local: LocalPeer) -> None:
    told: list[events.Event] = []
    local.bus.add(told.append)
    local.now = lambda: 7.0
    local.report("p2pd", "ended", None)
    local.report("p2pd", "", 1.25)
    assert [(type(event), event.at) for event in told] == [(events.Faulted, 7.0), (events.Recovered, 7.0)]
