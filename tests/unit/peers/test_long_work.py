"""How far a peer is in a long stage of work, and when that ends at its pace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from peers.runtime.watching.long_work import LONG, LongWork, StageCounts
from swarm.protocol import WorkStage
from swarm.types import StageProgress


class Scene:
    """A stage of work of eight, and a clock."""

    def __init__(self) -> None:
        self.work, self.now, self.done, self.reward = LongWork(), 100.0, 0, None

    @contextmanager
    def stage(self, stage: WorkStage = WorkStage.GRADIENT, done: int = 0, total: int = 8) -> Iterator[None]:
        self.done = done

        def counted() -> StageCounts:
            return StageCounts(self.done, total, self.reward)

        with self.work.within(stage, lambda: self.now, counted, done):
            yield

    def at(self, seconds: float, done: int) -> StageProgress | None:
        self.now, self.done = 100.0 + seconds, done
        return self.work.progress(self.now)


def test_a_long_stage_says_how_far_it_is_and_when_it_ends_at_its_pace() -> None:
    scene = Scene()
    assert scene.at(50.0, 3) is None, "nothing is done"
    scene.now = 100.0
    with scene.stage():
        assert scene.at(LONG - 0.1, 1) is None, "it may be short"
        assert scene.at(10.0, 0) == StageProgress(stage="gradient", done=0, total=8)
        assert scene.at(20.0, 2) == StageProgress(stage="gradient", done=2, total=8, left=60.0)
        assert scene.at(40.0, 2) == StageProgress(stage="gradient", done=2, total=8, left=120.0)
        assert scene.at(80.0, 8) == StageProgress(stage="gradient", done=8, total=8)
    assert scene.at(90.0, 8) is None


def test_before_its_first_part_is_done_a_stage_takes_as_long_as_the_last_one_of_its_kind() -> None:
    scene = Scene()
    with scene.stage():
        scene.now, scene.done = 140.0, 8  # one pass has all
    scene.now = 100.0
    with scene.stage(total=16):
        said = scene.at(30.0, 0)
        assert said is not None and said.left == 50.0
        said = scene.at(100.0, 0)
        assert said is not None and said.left == -1.0, "it is late already"
    scene.now = 100.0
    with scene.stage(WorkStage.EVALUATION):
        said = scene.at(30.0, 0)
        assert said is not None and said.left == -1.0, "another kind of work"


def test_what_was_there_before_it_began_was_no_work() -> None:
    scene = Scene()
    with scene.stage(WorkStage.BATCH, done=4):
        assert scene.at(20.0, 4) == StageProgress(stage="batch", done=4, total=8)
        assert scene.at(20.0, 6) == StageProgress(stage="batch", done=6, total=8, left=20.0)


def test_a_stage_that_failed_half_way_says_nothing_of_the_next_one() -> None:
    scene = Scene()
    with pytest.raises(RuntimeError), scene.stage():
        scene.now, scene.done = 104.0, 1
        raise RuntimeError
    scene.now = 100.0
    with scene.stage():
        said = scene.at(10.0, 0)
        assert said is not None and said.left == -1.0


def test_of_two_stages_the_one_that_began_last_is_told_and_then_the_other_again() -> None:
    scene = Scene()
    with scene.stage(WorkStage.BATCH):
        with scene.stage(WorkStage.GRADIENT):
            told = scene.at(20.0, 2)
            assert told is not None and told.stage == "gradient"
        told = scene.at(20.0, 2)
        assert told is not None and told.stage == "batch"


def test_the_reward_is_that_of_the_groups_that_have_come() -> None:
    scene = Scene()
    scene.reward = 0.123456
    with scene.stage(WorkStage.BATCH):
        told = scene.at(20.0, 2)
    assert told is not None and told.reward == 0.1235
