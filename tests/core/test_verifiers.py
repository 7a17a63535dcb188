"""Verifiers are verified: none counts before it was right TRUSTED times, none counts after it was wrong."""

from __future__ import annotations

from random import Random

from swarm.core.audits.auditing import SURE, Audits, Finding, Weighed
from swarm.core.audits.verifiers import IGNORED, REMEMBERED, TRUSTED, Verifiers
from swarm.types import Digest, PeerId

AUDITOR, OTHER, SAMPLER = PeerId("auditor"), PeerId("other"), PeerId("sampler")
HONEST = Weighed(tokens=64, deciding=64, off=0, largest=0.0, drift=0.0, claimed=0.0)


def trusted() -> Verifiers:
    verifiers = Verifiers(0.05, Random(1))
    for _ in range(TRUSTED):
        assert not verifiers.counts(AUDITOR)
        verifiers.right(AUDITOR)
    return verifiers


def test_a_verdict_counts_once_as_many_before_were_right() -> None:
    verifiers = trusted()
    assert verifiers.counts(AUDITOR) and not verifiers.counts(OTHER)


def test_one_verdict_in_twenty_is_replayed_here() -> None:
    verifiers = Verifiers(0.05, Random(1))
    assert 400 < sum(verifiers.drawn() for _ in range(10_000)) < 600


def test_who_was_wrong_is_not_looked_at_for_a_while_and_begins_anew_then() -> None:
    verifiers = trusted()
    verifiers.wrong(AUDITOR, now=100.0)
    assert not verifiers.counts(AUDITOR) and verifiers.ignores(AUDITOR, 100.0 + IGNORED - 1)
    assert not verifiers.fresh(AUDITOR, Digest("a"), 101.0)
    assert verifiers.fresh(AUDITOR, Digest("a"), 100.0 + IGNORED) and not verifiers.counts(AUDITOR)


def test_who_shows_nothing_does_not_count_and_is_heard_on() -> None:
    verifiers = trusted()
    verifiers.unshown(AUDITOR)
    assert not verifiers.counts(AUDITOR) and verifiers.fresh(AUDITOR, Digest("a"), 1.0)


def test_a_verdict_that_is_said_again_is_heard_once_and_memory_is_bounded() -> None:
    verifiers = Verifiers(0.05, Random(1))
    assert verifiers.fresh(AUDITOR, Digest("a"), 1.0) and not verifiers.fresh(AUDITOR, Digest("a"), 2.0)
    assert verifiers.fresh(OTHER, Digest("a"), 1.0)
    for number in range(REMEMBERED):
        verifiers.fresh(OTHER, Digest(str(number)), 1.0)
    assert verifiers.fresh(AUDITOR, Digest("a"), 3.0)


def test_an_auditor_s_word_is_worth_a_replay_until_it_is_reopened() -> None:
    audits = Audits()
    for _ in range(SURE):
        audits.word(SAMPLER, AUDITOR)
        assert audits.take(SAMPLER, HONEST, 1.0)[0] is Finding.HONEST
    assert audits.proven(SAMPLER) and audits.rate(SAMPLER) == 0.5
    assert audits.reopen(OTHER) == 0 and audits.reopen(AUDITOR) == SURE
    assert audits.rate(SAMPLER) == 1.0 and audits.proven(SAMPLER)
    assert audits.reopen(AUDITOR) == 0


def test_a_forgery_takes_words_with_it() -> None:
    audits = Audits()
    audits.word(SAMPLER, AUDITOR)
    audits.take(SAMPLER, HONEST._replace(off=2, largest=5.0), 1.0)
    assert not audits.proven(SAMPLER) and audits.reopen(AUDITOR) == 0
