"""Whom a fetch asks next and for which blocks, without a network."""

from __future__ import annotations

import random

import pytest

from swarm.net.blobs.sharing import CHOICE, Holding
from swarm.net.blobs.sources import (
    ALL,
    FIRST,
    LAST,
    LATE,
    LONGEST_REST,
    PROMPT,
    REST,
    SPREAD,
    STRIKES,
    BlockSource,
    Question,
    choose,
    free,
    numbers,
    second,
    too_few,
)
from swarm.types import PeerId

RNG = random.Random(1)


def source(name: str, has: int = 0, pace: float = 0.0, under: tuple[Question, ...] = ()) -> BlockSource:
    """One that said what it has."""
    return BlockSource(PeerId(name), has=has, known=True, pace=pace, under=[*under])


def question(wanted: int, began: float = 0.0, is_wide: bool = False) -> Question:
    return Question(wanted, began, is_wide)


def many(blocks: int) -> int:
    """So many blocks, from the first one on."""
    return (1 << blocks) - 1


def test_blocks_are_numbered_from_the_lowest_bit_on() -> None:
    assert [*numbers(0b10110)] == [1, 2, 4] and not [*numbers(0)]


def test_a_source_is_at_hand_that_has_what_is_missing_and_does_not_rest() -> None:
    one = source("one", has=0b11)
    assert one.is_at_hand(0b10, 0.0) and not one.is_at_hand(0b100, 0.0)
    one.rest_until = 5.0
    assert not one.is_at_hand(0b10, 4.9) and one.is_at_hand(0b10, 5.0)


def test_a_source_that_is_asked_what_it_has_is_at_hand_while_it_may_answer_promptly() -> None:
    one = BlockSource(PeerId("one"))
    assert not one.is_at_hand(0b1, 0.0), "nobody asked it"
    one.asked = 3.0
    assert one.is_at_hand(0b1, 3.0 + PROMPT / 2) and not one.is_at_hand(0b1, 3.0 + PROMPT)
    one.answered(Holding(has=b"\x02"))
    assert not one.is_at_hand(0b1, 3.0), "what it has is known now"


def test_a_block_costs_the_pace_of_its_source_or_longer_where_its_oldest_question_waits() -> None:
    assert source("new").cost(10.0, usual=2.0) == 2.0
    assert source("slow", pace=3.0).cost(10.0, usual=2.0) == 3.0
    busy = source("busy", pace=3.0, under=(question(1, 9.0), question(2, 9.5)))
    assert busy.cost(10.0, usual=2.0) == 3 * 3.0
    assert busy.cost(14.0, usual=2.0) == 3 * 5.0


def test_what_a_source_has_is_what_it_said_last_and_ends_its_strikes() -> None:
    one = source("one")
    one.strikes = 2
    one.answered(Holding(has=bytes([5, 1])))
    assert (one.has, one.strikes, one.known) == (0b1_0000_0101, 0, True)
    one.answered(Holding(has=None))
    assert one.has == ALL


def test_the_pace_of_a_source_is_smoothed_and_what_it_gives_ends_its_rests() -> None:
    one = source("one")
    one.gave(4.0)
    one.pause(0.0, RNG)
    one.gave(2.0)
    assert one.pace == 3.0 and not one.turned_away


def test_a_source_that_answered_before_is_out_after_some_failures_and_another_one_at_once() -> None:
    one, new = source("one"), BlockSource(PeerId("new"))
    for _ in range(STRIKES - 1):
        one.failed("silent", 0.0, 0.0, RNG)
        assert not one.out and one.rest_until > 0.0 and one.turned_away
    one.failed("silent", 0.0, 0.0, RNG)
    new.failed("gone", 0.0, 0.0, RNG)
    assert (one.out, new.out) == ("failed: silent", "failed: gone")


def test_rests_are_doubled_up_to_the_longest_with_jitter() -> None:
    one, expected = source("one"), REST
    for _ in range(8):
        one.pause(100.0, RNG)
        assert 100.0 + expected / 2 <= one.rest_until <= 100.0 + expected
        assert one.turned_away
        expected = min(2 * expected, LONGEST_REST)
    assert one.rest == LONGEST_REST


def test_the_more_is_missing_the_more_sources_are_looked_for() -> None:
    have = [source("one", ALL), source("two", 0b1), source("nothing", 0)]
    assert too_few(have, 0b1, 0.0) == FIRST - 2
    assert too_few(have, many(9), 0.0) == FIRST + 4 - 2
    assert too_few(have, 0b10, 0.0) == FIRST - 1


def test_what_is_coming_is_not_asked_for_again_but_for_what_is_late_or_of_a_wide_question() -> None:
    narrow, wide, late = question(0b1), question(0b1111, is_wide=True), question(0b10)
    late.is_late = True
    assert free(0b1111, []) == 0b1111
    assert free(0b1111, [narrow]) == 0b1110
    assert free(0b1111, [narrow, late]) == 0b1110
    assert free(0b1111, [wide]) == 0b1111
    assert free(0b1, [wide]) == 0, "one block is missing, and one is coming"
    assert free(0b10, [late]) == 0b10


def test_what_one_source_alone_has_comes_first_and_then_who_gives_soonest() -> None:
    whole, fast = source("whole", ALL, pace=5.0), source("fast", 0b011, pace=1.0)
    both = [whole, fast]
    asked, wide = choose(both, both, 0b111, 0b111, 0.0, RNG) or pytest.fail("nobody")
    assert asked is whole and wide.is_wide and wide.wanted == 0b111
    asked, narrow = choose(both, [fast], 0b111, 0b111, 7.0, RNG) or pytest.fail("nobody")
    assert asked is fast and not narrow.is_wide and narrow.began == 7.0
    assert narrow.wanted in (0b01, 0b10), "its source chooses nothing of a few blocks"
    asked, _ = choose(both, both, 0b011, 0b111, 0.0, RNG) or pytest.fail("nobody")
    assert asked is fast
    assert choose(both, [fast], 0b100, 0b111, 0.0, RNG) is None


def test_of_sources_that_would_be_as_soon_the_one_with_fewer_questions_is_asked() -> None:
    busy, idle = source("busy", 0b1, pace=1.0, under=(question(2, 0.0),)), source("idle", 0b1, pace=2.0)
    asked, _ = choose([busy, idle], [busy, idle], 0b1, 0b1, 0.0, RNG) or pytest.fail("nobody")
    assert asked is idle
    new = source("new", 0b1)
    asked, _ = choose([idle, new], [idle, new], 0b1, 0b1, 0.0, RNG) or pytest.fail("nobody")
    assert asked is idle, "a new one is taken to be as fast as the fastest, and the first of two is asked"
    slow = source("slow", 0b1, pace=2.5)
    asked, _ = choose([slow, idle, new], [slow, new], 0b1, 0b1, 0.0, RNG) or pytest.fail("nobody")
    assert asked is new


def test_a_narrow_question_names_a_share_of_what_is_missing() -> None:
    two = [source("one", ALL), source("two", ALL)]
    for lacking, names in ((1, 1), (SPREAD, 2), (3 * SPREAD, 4), (100 * CHOICE * SPREAD, CHOICE)):
        _, narrow = choose(two, two, many(lacking), many(lacking), 0.0, RNG) or pytest.fail("nobody")
        assert narrow.wanted.bit_count() == names and not narrow.is_wide


def test_a_question_names_blocks_that_its_source_has_from_any_one_on() -> None:
    every_third = sum(1 << number for number in range(0, 24, 3))
    two, lacking = [source("one", every_third), source("two", every_third)], many(3 * SPREAD)
    for _ in range(100):
        _, narrow = choose(two, two, lacking, lacking, 0.0, RNG) or pytest.fail("nobody")
        assert narrow.wanted & ~every_third == 0 and narrow.wanted.bit_count() == 4


def test_a_wide_question_names_the_rarest_blocks() -> None:
    whole, rest = source("whole", ALL), [source(f"fellow-{k}", many(4)) for k in range(2)]
    few = source("few", many(6))
    every = [whole, few, *rest]
    _, wide = choose(every, every[:1], many(6 + CHOICE), many(6 + CHOICE), 0.0, RNG) or pytest.fail("nobody")
    assert wide.wanted == many(CHOICE) << 6, "those that it has alone"
    _, wide = choose(every, every[:1], many(5 + CHOICE), many(5 + CHOICE), 0.0, RNG) or pytest.fail("nobody")
    assert wide.wanted.bit_count() == CHOICE and wide.wanted >> 6 == many(CHOICE - 1)
    assert (wide.wanted & many(6)) in (1 << 4, 1 << 5), "and of those of two sources one"


def test_among_blocks_as_rare_each_is_asked_for_at_some_time() -> None:
    two = [source("one", many(8)), source("two", many(8))]
    asked = {
        (choose(two, two, many(8), many(8), 0.0, RNG) or pytest.fail("nobody"))[1].wanted for _ in range(200)
    }
    assert asked == {1 << number for number in range(8)}


@pytest.mark.parametrize(("missing", "late"), [(LAST, 1.5), (LAST + 1, LATE + 3.0)])
def test_somebody_else_is_asked_for_what_is_late_and_sooner_at_the_end(missing: int, late: float) -> None:
    lacking, asked, late = many(missing), question(0b11, began=50.0), 50.0 + late
    slow, quick = source("slow", 0b1, pace=9.0, under=(asked,)), source("quick", 0b101, pace=1.5)
    assert second([slow, quick], [asked], lacking, late) is None and not asked.is_late
    who, again = second([slow, quick], [asked], lacking, late + 0.01) or pytest.fail("nobody")
    assert who is quick and again.wanted == 0b1 and again.is_again and asked.is_late
    assert second([slow, quick], [asked, again], lacking, 1e9) is None, "and nobody a third time"


def test_who_gave_nothing_yet_or_has_nothing_of_it_is_asked_for_nothing_that_is_late() -> None:
    asked = question(0b1)
    new, other = source("new", 0b1), source("other", 0b10, pace=1.0)
    mine = source("mine", 0b1, pace=1.0, under=(asked,))
    assert second([new, other, mine], [asked], 0b11, 1e9) is None
    assert second([source("has", 0b1, pace=1.0)], [asked], 0b10, 1e9) is None, "it has come"
