"""Whose groups make a batch, in closed loops: samplers that send whenever there is room, and a learner that
takes what closes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import pytest
from nouns import NOW, group

from swarm.core.intake.batcher import Batcher, Room
from swarm.core.intake.quotas import KNOWN, KNOWN_AFTER, REMEMBERED, Quotas
from swarm.settings.config import BatchSize, Window
from swarm.types import PeerId

SIZE = BatchSize(groups=32, close_after=5.0)
WINDOW = Window(versions=64, seconds=1800.0)
FLOOD = 1000.0
TICK = 0.05
"""Seconds of a step of the loop."""


class Loop:
    """`rates` in groups per second by sampler; whoever is not in `strangers` was invited. A learner's step
    takes `step` s."""

    def __init__(
        self,
        rates: Mapping[str, float],
        strangers: tuple[str, ...] = (),
        step: float = 0.2,
        size: BatchSize = SIZE,
    ) -> None:
        self.rates, self.step, self.size = dict(rates), step, size
        self.batcher = Batcher(size, WINDOW)
        self.strangers, self.now, self._free_at, self._made = strangers, NOW, NOW, 0
        self._owed = Counter[str]()
        self.batches: list[Counter[str]] = []
        self.refusals: dict[str, Room] = {}
        for name in rates:
            self._meet(name)

    def _meet(self, name: str) -> None:
        if name not in self.strangers:
            self.batcher.quotas.invited(PeerId(name))

    def join(self, name: str, rate: float) -> None:
        self.rates[name] = rate
        self._meet(name)

    def run(self, seconds: float) -> list[Counter[str]]:
        """The batches of that time, each a count by sampler."""
        start, end = len(self.batches), self.now + seconds
        while self.now < end:
            self.now += TICK
            for name, rate in self.rates.items():
                self._send(name, rate)
            if self.now >= self._free_at and self.batcher.due(1, self.now) == 0.0:
                taken = self.batcher.take(1, 0, self.now).groups
                self.batches.append(Counter(item.group.sampler for item in taken))
                self._free_at = self.now + self.step
        return self.batches[start:]

    def _send(self, name: str, rate: float) -> None:
        """What it sampled, as far as there is room; a group that is refused is kept and sent later."""
        self._owed[name] = min(self._owed[name] + rate * TICK, 64.0)
        while self._owed[name] >= 1.0:
            room = self.batcher.room(PeerId(name), 1, self.now)
            if room.groups <= 0:
                self.refusals[name] = room
                return
            self._owed[name] -= 1.0
            self._made += 1
            self.batcher.add(group(self._made, sampler=PeerId(name), released=self.now), self.now)


def total(batches: list[Counter[str]], *names: str) -> int:
    return sum(batch[name] for batch in batches for name in names or batch)


def parts(batches: list[Counter[str]], *names: str) -> list[float]:
    return [sum(batch[name] for name in names) / batch.total() for batch in batches]


def beside_a_flood(loop: Loop, before: float, after: float, seconds: float) -> list[Counter[str]]:
    """Batches of so many seconds, which begin `after` one came that sends without end."""
    loop.run(before)
    loop.join("x", FLOOD)
    loop.run(after)
    return loop.run(seconds)


HONEST = {"a": 12.0, "b": 12.0, "c": 12.0}


@pytest.mark.parametrize("invited", [True, False])
def test_one_that_sends_without_end_has_its_share_of_a_batch_and_the_others_lose_nothing(
    invited: bool,
) -> None:
    honest = HONEST | {"d": 12.0}
    loop = Loop(honest, strangers=("x",) if invited else ("x", *honest))
    before = total(loop.run(40.0)[-20:], *honest)
    loop.join("x", FLOOD)
    loop.run(10.0)
    after = loop.run(40.0)
    assert max(parts(after, "x")) <= SIZE.share
    per_second = total(after, *honest) / 40.0
    assert per_second >= 0.9 * 48.0, (per_second, before)
    assert "run.batch" in loop.refusals["x"].why


def test_slow_samplers_whose_batches_close_by_time_keep_theirs_beside_one_that_sends_without_end() -> None:
    loop = Loop({"a": 0.7, "b": 0.7, "c": 0.7}, strangers=("x",))
    batches = beside_a_flood(loop, 60.0, 20.0, 100.0)
    assert total(batches, "a", "b", "c") >= 0.9 * 210
    assert 0 < total(batches, "x") <= 1.02 * SIZE.share * total(batches)


def test_one_alone_fills_everything_as_fast_as_the_learner_takes_it() -> None:
    for strangers in ((), ("x",)):
        batches = Loop({"x": FLOOD}, strangers).run(20.0)
        assert {batch.total() for batch in batches} == {32} and len(batches) > 0.9 * 20.0 / 0.25


@pytest.mark.parametrize("left", ["abc", "ab"])
def test_who_stopped_is_waited_for_twice_the_time_of_a_batch(left: str) -> None:
    loop = Loop(dict.fromkeys("abcd", 12.0), strangers=tuple("abcd"))
    assert {batch.total() for batch in loop.run(20.0)} == {32}
    loop.rates = dict.fromkeys(left, 12.0)
    loop.run(2 * SIZE.close_after + 3.0)
    assert total(loop.run(10.0)) >= 0.9 * 12.0 * len(left) * 10.0


def test_who_sends_seldom_has_not_stopped() -> None:
    """Three that send a group each 15 s hold one that sends without end to its share beside them."""
    loop = Loop(dict.fromkeys("abc", 1 / 15), strangers=("a", "b", "c", "x"), size=BatchSize(groups=4))
    batches = beside_a_flood(loop, 120.0, 60.0, 300.0)
    assert total(batches, "a", "b", "c") >= 0.9 * 60
    assert 0 < total(batches, "x") <= 1.1 * SIZE.share * total(batches)


def test_no_batch_waits_for_those_that_are_suspended() -> None:
    """Four strangers at speed, of whom two are suspended."""
    loop = Loop({"a": 12.0, "b": 12.0, "c": 12.0, "d": 12.0}, strangers=("a", "b", "c", "d"))
    assert {batch.total() for batch in loop.run(20.0)} == {32}
    loop.rates = {"a": 12.0, "b": 12.0}
    loop.batcher.remove(lambda each: each.sampler in ("c", "d"))
    for name in "cd":
        loop.batcher.quotas.forget(PeerId(name))
    loop.run(2.0)
    batches = loop.run(10.0)
    assert total(batches) >= 0.9 * 24.0 * 10.0 and {batch.total() for batch in batches} == {32}


@pytest.mark.parametrize("strangers", [(), ("a", "b", "c")])
def test_three_equal_ones_have_a_third_each_and_close_batches_as_they_come(
    strangers: tuple[str, ...],
) -> None:
    batches = Loop(HONEST, strangers).run(60.0)
    assert total(batches) >= 0.97 * 36.0 * 60.0 and {batch.total() for batch in batches} == {32}
    assert all(0.3 < total(batches, name) / total(batches) < 0.37 for name in HONEST)


UNEQUAL = [{"a": 30.0, "b": 2.0}, {"a": 30.0, "b": 2.0, "c": 1.0}]


@pytest.mark.parametrize("rates", [*UNEQUAL, {"a": 60.0} | dict.fromkeys("bcdef", 1.0)])
def test_unequal_machines_that_were_invited_are_taken_as_they_come(rates: dict[str, float]) -> None:
    batches = Loop(rates).run(60.0)
    assert total(batches) >= 0.95 * 60.0 * sum(rates.values())


@pytest.mark.parametrize("rates", UNEQUAL)
def test_two_or_three_strangers_of_any_speed_are_not_bound(rates: dict[str, float]) -> None:
    batches = Loop(rates, tuple(rates)).run(60.0)
    assert total(batches) >= 0.95 * 60.0 * sum(rates.values())


@pytest.mark.parametrize("slow", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("fast", [{"a": 30.0, "b": 30.0, "c": 30.0}, {"a": 30.0, "b": 27.0, "c": 24.0}])
def test_a_slow_stranger_beside_three_fast_ones_does_not_set_the_pace(
    fast: dict[str, float], slow: float
) -> None:
    """No batch waits for the fourth to deliver a quarter of it."""
    rates = fast | {"d": slow}
    loop = Loop(rates, tuple(rates))
    loop.run(30.0)
    assert total(loop.run(60.0)) >= 0.8 * 60.0 * sum(rates.values())


def test_fifty_fresh_keys_have_together_the_part_of_newcomers() -> None:
    keys = tuple(f"k{i}" for i in range(50))
    loop = Loop(HONEST, strangers=keys)
    loop.run(20.0)
    for key in keys:
        loop.join(key, FLOOD / 50)
    loop.run(5.0)
    batches = loop.run(30.0)
    assert max(parts(batches, *keys)) <= SIZE.newcomers
    assert total(batches, *HONEST) >= 0.9 * 36.0 * 30.0
    senders = [PeerId(name) for name in loop.rates]
    assert loop.batcher.takers(senders, 1, loop.now) == 4, "who makes keys takes no credit from the others"


def test_newcomers_fill_a_run_in_which_nobody_is_known() -> None:
    keys = tuple(f"k{i}" for i in range(20))
    batches = Loop(dict.fromkeys(keys, 1.0), strangers=keys).run(40.0)
    assert total(batches) >= 0.95 * 20.0 * 40.0


def test_when_the_others_leave_a_bound_one_fills_the_batch() -> None:
    loop = Loop(HONEST | {"x": FLOOD}, strangers=("x",))
    loop.run(30.0)
    for name in HONEST:
        loop.rates[name] = 0.0
    loop.run(60.0)
    assert {batch.total() for batch in loop.run(10.0)} == {32}


def test_what_one_sent_before_others_came_shuts_nobody_out() -> None:
    loop = Loop({"x": FLOOD}, strangers=("x",), step=10.0)
    loop.run(9.0)
    room = 2 * SIZE.buffer * SIZE.groups
    assert len(loop.batcher) == math.ceil(2 / 3 * room)
    assert loop.batcher.room(PeerId("a"), 1, loop.now).groups == math.ceil(2 / 3 * (room - len(loop.batcher)))


def test_where_the_learner_is_the_bottleneck_each_batch_has_at_most_a_quarter_of_what_others_can_replace():
    loop = Loop({"x": FLOOD, "a": 30.0, "b": 30.0, "c": 30.0}, step=1.0)
    loop.run(20.0)
    assert max(parts(loop.run(30.0), "x")) <= SIZE.share, "also of an invited one"


def test_a_share_of_everything_binds_nobody() -> None:
    loop = Loop(HONEST | {"x": 40.0}, strangers=("x",), size=BatchSize(groups=32, share=1.0, newcomers=1.0))
    loop.run(10.0)
    assert total(loop.run(20.0)) >= 0.95 * 76.0 * 20.0


def test_a_sampler_is_no_newcomer_after_an_hour_and_a_number_of_groups_or_with_an_invite() -> None:
    quotas, quick, slow, guest = Quotas(SIZE), PeerId("quick"), PeerId("slow"), PeerId("guest")
    for _ in range(KNOWN):
        quotas.admitted(quick, NOW)
    quotas.admitted(slow, NOW)
    quotas.invited(guest)
    assert [quotas.newcomer(peer, NOW + KNOWN_AFTER - 1) for peer in (quick, slow, guest)] == [
        True,
        True,
        False,
    ]
    assert [quotas.newcomer(peer, NOW + KNOWN_AFTER) for peer in (quick, slow, guest)] == [False, True, False]


def test_the_memory_of_samplers_is_bounded() -> None:
    quotas = Quotas(SIZE)
    for number in range(2 * REMEMBERED):
        quotas.admitted(PeerId(f"k{number}"), NOW)
        quotas.invited(PeerId(f"k{number}"))
    assert len(quotas._records) == len(quotas._invited) == REMEMBERED
