"""Evidence against a sampler's word: how much of it is too much, and for how long."""

from __future__ import annotations

import math

from swarm.core.intake.claimed_logprobs import (
    GROUP_EVIDENCE_LIMIT,
    REMEMBERED,
    SAMPLER_EVIDENCE_LIMIT,
    SUSPECT,
    ClaimCheck,
    SamplerEvidence,
    objection,
)
from swarm.types import PeerId

LIAR, HONEST = PeerId("liar"), PeerId("honest")


def test_a_group_is_refused_for_what_it_claims_too_low_and_for_what_lies_too_far_below() -> None:
    assert objection(ClaimCheck(drift=0.1, evidence=GROUP_EVIDENCE_LIMIT), 8.0) is None
    assert "too low" in (objection(ClaimCheck(drift=0.1, evidence=GROUP_EVIDENCE_LIMIT + 0.1), 8.0) or "")
    assert "too low" in (objection(ClaimCheck(drift=math.inf, evidence=math.inf), 8.0) or "")
    assert objection(ClaimCheck(drift=-8.0, evidence=-300.0), 8.0) is None
    below = objection(ClaimCheck(drift=-8.1, evidence=-300.0), 8.0) or ""
    assert "lie 8.1 nats a token below" in below and "the band is 8" in below


def test_small_evidence_adds_up_over_a_samplers_groups_and_over_nobody_elses() -> None:
    sampler_evidence = SamplerEvidence()
    told = [sampler_evidence.add(LIAR, 3.0) for i in range(7)]
    assert told == [False] * 6 + [True]
    assert not sampler_evidence.add(HONEST, 3.0)


def test_whose_claims_deviate_is_suspected_until_they_do_not() -> None:
    sampler_evidence = SamplerEvidence()
    told = []
    for evidence in (SUSPECT, 0.1, -1.0, 1.1, math.inf):
        sampler_evidence.add(LIAR, evidence)
        told.append(sampler_evidence.suspects(LIAR))
    assert told == [False, True, False, True, False], "who is refused sends nothing"
    assert not sampler_evidence.suspects(HONEST)


def test_what_speaks_for_a_sampler_is_not_saved_up_for_a_lie() -> None:
    sampler_evidence = SamplerEvidence()
    for _ in range(1000):
        sampler_evidence.add(LIAR, -5.0)
    assert sampler_evidence.add(LIAR, SAMPLER_EVIDENCE_LIMIT + 0.1)


def test_after_its_suspension_a_sampler_begins_anew() -> None:
    sampler_evidence = SamplerEvidence()
    assert sampler_evidence.add(LIAR, math.inf)
    assert not sampler_evidence.add(LIAR, SAMPLER_EVIDENCE_LIMIT)


def test_what_is_remembered_is_bounded() -> None:
    sampler_evidence = SamplerEvidence()
    for i in range(3 * REMEMBERED):
        sampler_evidence.add(PeerId(str(i)), 1.0 if i % 2 else 99.0)
    assert len(sampler_evidence._against) == REMEMBERED


def test_a_sampler_that_was_doubted_again_of_late_is_forgotten_last() -> None:
    sampler_evidence = SamplerEvidence()
    for i in range(REMEMBERED):
        sampler_evidence.add(PeerId(str(i)), SAMPLER_EVIDENCE_LIMIT)
    sampler_evidence.add(PeerId("0"), math.inf)
    sampler_evidence.add(PeerId("1"), 0.0)
    for newcomer in ("one more", "another"):
        sampler_evidence.add(PeerId(newcomer), SAMPLER_EVIDENCE_LIMIT)
    assert sampler_evidence.add(PeerId("1"), 0.1), "its evidence is remembered"
    assert not sampler_evidence.add(PeerId("2"), 0.1), "the longest without a word is forgotten"


def test_a_sampler_without_evidence_takes_no_room() -> None:
    sampler_evidence = SamplerEvidence()
    sampler_evidence.add(LIAR, SAMPLER_EVIDENCE_LIMIT)
    for i in range(2 * REMEMBERED):
        sampler_evidence.add(PeerId(str(i)), 0.0)
        sampler_evidence.add(PeerId(str(i)), -1.0)
    assert sampler_evidence.add(LIAR, 0.1), "it was not pushed out by those that nothing speaks against"
