"""Learners wait for one that takes over a state, as long as it is worth it, and not again at once when it was
not."""

from __future__ import annotations

import pytest
from nouns import beat

from swarm.core.agreement.state_sync import RESTS, StateSync
from swarm.protocol import Phase
from swarm.types import Beat, PeerId

MOST = 100.0
NEW, NEWER, OLD = PeerId("new"), PeerId("newer"), PeerId("old")


def falls(**changes: object) -> Beat:
    return beat(**({"phase": Phase.SYNCING, "version": 3} | changes))


def here(phase: Phase, inbox: int = 4) -> Beat:
    return beat(phase=phase, version=7, inbox=inbox)


class Waiting:
    """A learner at version 7 that takes 5 s for a gradient."""

    def __init__(self) -> None:
        self.syncing = StateSync(MOST)

    def at(self, now: float, beats: dict[PeerId, Beat]) -> bool:
        return self.syncing.awaited(beats, 7, 5.0, now)


def test_nobody_is_waited_for_who_only_catches_up() -> None:
    assert not Waiting().at(0, {OLD: here(Phase.MATCHING), NEW: beat(phase=Phase.CATCHING_UP, version=6)})


@pytest.mark.parametrize("phase", [Phase.GATHERING, Phase.LEARNING])
def test_it_is_waited_for_until_it_has_a_gradient_of_my_version(phase: Phase) -> None:
    waiting = Waiting()
    assert all(waiting.at(now, {NEW: falls()}) for now in (0, 30, 60, 99))
    assert all(waiting.at(now, {NEW: here(phase)}) for now in (100, 104, 109))
    assert not waiting.at(110, {NEW: here(Phase.MATCHING)})
    assert waiting.at(111, {NEW: falls()}), "that was not in vain"


@pytest.mark.parametrize(
    ("last", "now"),
    [
        (falls(), MOST),
        (here(Phase.LEARNING), 45.0),
        (beat(phase=Phase.CATCHING_UP, version=3), 10.0),
        (None, 10.0),
    ],
    ids=["its state is late", "it is slow", "it gave up", "it is gone"],
)
def test_who_was_waited_for_in_vain_is_not_for_a_while(last: Beat | None, now: float) -> None:
    waiting = Waiting()
    assert waiting.at(0, {NEW: falls()})
    if last is not None and last.version == 7:
        assert waiting.at(30, {NEW: falls()})
    assert not waiting.at(now, {NEW: last} if last is not None else {})
    assert not waiting.at(now + RESTS * now - 1, {NEW: falls()})
    assert waiting.at(now + RESTS * now + 1, {NEW: falls()})


def test_who_has_no_groups_is_not_waited_for() -> None:
    waiting = Waiting()
    assert waiting.at(0, {NEW: falls()})
    assert not waiting.at(3, {NEW: here(Phase.GATHERING, inbox=0)})
    assert waiting.at(4, {NEW: falls()})


def test_who_falls_in_beside_one_that_came_is_waited_for_too() -> None:
    waiting = Waiting()
    assert waiting.at(0, {NEWER: falls(incarnation=9), NEW: falls(incarnation=5)})
    assert waiting.at(3, {NEWER: falls(incarnation=9), NEW: here(Phase.MATCHING)})
    assert not waiting.at(5, {NEWER: here(Phase.MATCHING), NEW: here(Phase.MATCHING)})


def test_one_is_waited_for_at_a_time_and_all_wait_for_the_same_one() -> None:
    waiting, both = Waiting(), {NEWER: falls(incarnation=9), NEW: falls(incarnation=5)}
    assert waiting.at(0, both)
    assert not waiting.at(MOST, both), "the older one was late, and each of them may be waited for"
    assert waiting.at(MOST, both | {NEW: falls(incarnation=5)})
    assert not waiting.at(MOST + 1, {NEW: falls()}), "now for the other one, who is gone"
