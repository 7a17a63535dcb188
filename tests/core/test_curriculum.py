"""Each sampler's own stream of tasks."""

from __future__ import annotations

from swarm.core.curriculum import INDEX_BITS, Curriculum, Draw
from swarm.types import PeerId

A, B = PeerId("a"), PeerId("b")


def stream(seed: int, peer: PeerId, incarnation: int, count: int = 50) -> list[Draw]:
    curriculum = Curriculum(seed, peer, incarnation)
    return [curriculum.next() for _ in range(count)]


def test_the_same_peer_draws_the_same_tasks_and_seeds() -> None:
    assert stream(1, A, 1) == stream(1, A, 1)


def test_a_stream_does_not_repeat_itself_in_ten_thousand_draws() -> None:
    draws = stream(1, A, 1, 10_000)
    assert len({draw.task for draw in draws}) == 10_000
    assert all(0 <= draw.task < 1 << INDEX_BITS and draw.seed >= 0 for draw in draws)


def test_another_run_another_peer_and_another_life_draw_other_tasks() -> None:
    streams = [stream(1, A, 1), stream(2, A, 1), stream(1, B, 1), stream(1, A, 2)]
    assert len({draw.task for draws in streams for draw in draws}) == sum(map(len, streams))


def test_the_position_counts_the_draws() -> None:
    curriculum = Curriculum(1, A, 1)
    curriculum.next()
    curriculum.next()
    assert curriculum.position == 2


def test_a_run_that_is_played_again_draws_the_tasks_that_it_drew() -> None:
    assert stream(1, A, 1, 2) == [Draw(228954878668806, 3693598330), Draw(209885387889942, 1544303583)]
