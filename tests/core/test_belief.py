"""Evidence against a sampler's word: how much of it is too much, and for how long."""

from __future__ import annotations

import math

from swarm.core.belief import AVERTED, DOUBT, REMEMBERED, SUSPICION, Credence, Odds, objection
from swarm.types import PeerId

LIAR, HONEST = PeerId("liar"), PeerId("honest")
NOW = 1000.0


def test_a_group_is_refused_for_what_it_claims_too_low_and_for_what_lies_too_far_below() -> None:
    assert objection(Odds(drift=0.1, evidence=DOUBT), 8.0) is None
    assert "too low" in (objection(Odds(drift=0.1, evidence=DOUBT + 0.1), 8.0) or "")
    assert "too low" in (objection(Odds(drift=math.inf, evidence=math.inf), 8.0) or "")
    assert objection(Odds(drift=-8.0, evidence=-300.0), 8.0) is None
    assert "the band is 8" in (objection(Odds(drift=-8.1, evidence=-300.0), 8.0) or "")


def test_small_evidence_adds_up_over_a_samplers_groups_and_over_nobody_elses() -> None:
    credence = Credence()
    told = [credence.weigh(LIAR, 3.0, NOW + i) for i in range(7)]
    assert told == [False] * 6 + [True]
    assert credence.objection(LIAR, NOW + 6) and credence.objection(HONEST, NOW + 6) is None


def test_what_speaks_for_a_sampler_is_not_saved_up_for_a_lie() -> None:
    credence = Credence()
    for _ in range(1000):
        credence.weigh(LIAR, -5.0, NOW)
    assert credence.weigh(LIAR, SUSPICION + 0.1, NOW)


def test_a_sampler_is_believed_again_after_a_while_and_begins_anew() -> None:
    credence = Credence()
    credence.weigh(LIAR, math.inf, NOW)
    assert credence.objection(LIAR, NOW + AVERTED - 1) and credence.objection(LIAR, NOW + AVERTED) is None
    assert not credence.weigh(LIAR, SUSPICION, NOW + AVERTED)


def test_what_is_remembered_is_bounded() -> None:
    credence = Credence()
    for i in range(3 * REMEMBERED):
        credence.weigh(PeerId(str(i)), 1.0 if i % 2 else 99.0, NOW)
    assert len(credence._against) == len(credence._until) == REMEMBERED


def test_a_sampler_that_was_doubted_again_of_late_is_forgotten_last() -> None:
    credence = Credence()
    for i in range(REMEMBERED):
        credence.weigh(PeerId(str(i)), SUSPICION, NOW)
    credence.weigh(PeerId("0"), math.inf, NOW)
    credence.weigh(PeerId("1"), 0.0, NOW)
    for newcomer in ("one more", "another"):
        credence.weigh(PeerId(newcomer), SUSPICION, NOW)
    assert credence.weigh(PeerId("1"), 0.1, NOW), "its evidence is remembered"
    assert not credence.weigh(PeerId("2"), 0.1, NOW), "the longest without a word is forgotten"


def test_a_sampler_whose_word_failed_twice_is_refused_from_the_second_time_on() -> None:
    credence = Credence()
    credence.weigh(LIAR, math.inf, NOW)
    for i in range(REMEMBERED - 1):
        credence.weigh(PeerId(str(i)), math.inf, NOW)
    credence.weigh(LIAR, math.inf, NOW + 1)
    credence.weigh(HONEST, math.inf, NOW + 1)
    assert credence.objection(LIAR, NOW + 2), "the one who was refused longest ago is forgotten first"
    assert credence.objection(PeerId("0"), NOW + 2) is None


def test_a_sampler_without_evidence_takes_no_room() -> None:
    credence = Credence()
    credence.weigh(LIAR, SUSPICION, NOW)
    for i in range(2 * REMEMBERED):
        credence.weigh(PeerId(str(i)), 0.0, NOW)
        credence.weigh(PeerId(str(i)), -1.0, NOW)
    assert credence.weigh(LIAR, 0.1, NOW), "it was not pushed out by those that nothing speaks against"
