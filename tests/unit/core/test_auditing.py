"""Audits: rates, what a replay tells, and what follows."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from swarm.core.audits import auditing
from swarm.core.audits.auditing import (
    AHEAD,
    Audits,
    Finding,
    Tolerance,
    Weighed,
    most_after,
)
from swarm.core.suspensions import Suspension
from swarm.draws.replays import Replayed, weigh
from swarm.types import PeerId

ALLOWED = Tolerance(hard=0.5, mean=1e-3)
ME = PeerId("sampler")
HONEST = Weighed(tokens=64, deciding=60, off=0, largest=0.01, drift=-0.06, claimed=0.0)


def off(tokens: int) -> Weighed:
    return HONEST._replace(off=tokens, largest=3.0)


def replayed(*margins: float, logp: float = -1.0) -> Replayed:
    return Replayed(np.array(margins, np.float32), np.full(len(margins), logp, np.float32))


def claims(count: int, said: float = -1.0) -> list[float]:
    return [said] * count


def test_a_token_is_off_beyond_the_tolerance_alone() -> None:
    found = weigh(replayed(0.0, 0.49, 0.51, 7.0), claims(4), ALLOWED)
    assert (found.tokens, found.off, found.largest) == (4, 2, 7.0)


def test_a_claim_that_is_not_the_replayed_probability_is_off() -> None:
    assert weigh(replayed(0.0, 0.0), [-1.0, -1.6], ALLOWED).off == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_off(value: float) -> None:
    assert weigh(replayed(value, 0.0), claims(2), ALLOWED).off == 1
    assert weigh(replayed(0.0, 0.0), [-1.0, value], ALLOWED).off == 1


def test_a_token_of_which_the_policy_is_certain_decides_nothing() -> None:
    assert weigh(replayed(0.0, 0.0, logp=-1e-4), claims(2, -1e-4), ALLOWED).deciding == 0


def test_drift_is_what_margins_exceed_the_usual_by_and_no_token_adds_more_than_a_nat() -> None:
    assert weigh(replayed(0.0, 0.4, 9.0), claims(3), ALLOWED).drift == pytest.approx(0.4 + 1.0 - 3e-3)


def test_the_tolerance_follows_honest_replays_and_has_a_least() -> None:
    assert auditing.tolerance(0.01, 2e-5, 0.006) == (0.5, 1e-3, 0.1)
    assert auditing.tolerance(0.3, 1e-3, 0.05) == pytest.approx((1.5, 4e-3, 0.2))
    assert auditing.tolerance(9.0, 9.0, 9.0) == (3.0, 0.02, 3.0)


def test_all_groups_of_a_newcomer_are_replayed_and_one_in_a_hundred_of_who_was_honest_for_long() -> None:
    audits = Audits()
    rates = []
    for _ in range(4000):
        rates.append(audits.rate(ME))
        audits.take(ME, HONEST, 0.0)
    assert rates[:21] == [1.0] * 21
    assert rates[100] == pytest.approx(0.2) and rates[-1] == auditing.FLOOR


def test_groups_are_drawn_at_the_rate() -> None:
    audits, rng = Audits(), random.Random(3)
    for _ in range(200):
        audits.take(ME, HONEST, 0.0)
    assert 0.07 < sum(audits.drawn(ME, rng) for _ in range(2000)) / 2000 < 0.13


def test_two_tokens_that_are_off_are_a_forgery_and_each_one_lasts_twice_as_long() -> None:
    audits, now = Audits(), 1000.0
    lasted = []
    for _ in range(3):
        finding, suspension = audits.take(ME, off(2), now)
        assert finding is Finding.FORGED and suspension is not None
        assert audits.suspensions.of(ME, now) == suspension
        lasted.append(suspension.until - now)
        now = suspension.until
    assert lasted == [3600.0, 7200.0, 14_400.0]


def test_groups_that_came_before_their_sampler_was_suspended_are_no_further_strike() -> None:
    audits = Audits()
    audits.take(ME, off(2), 0.0)
    for _ in range(5):
        assert audits.take(ME, off(2), 1.0) == (Finding.FORGED, None)
    suspension = audits.suspensions.of(ME, 3599.0)
    assert suspension is not None and suspension.strikes == 1
    assert audits.suspensions.of(ME, 3600.0) is None


def test_who_was_suspended_comes_back_and_is_replayed_from_the_beginning() -> None:
    audits = Audits()
    for _ in range(100):
        audits.take(ME, HONEST, 0.0)
    audits.take(ME, off(5), 0.0)
    assert audits.suspensions.of(ME, 3599.0) is not None and audits.suspensions.of(ME, 3600.0) is None
    assert audits.rate(ME) == 1.0


def test_one_token_that_is_off_is_bad_luck_until_another_one_follows() -> None:
    audits = Audits()
    for _ in range(100):
        audits.take(ME, HONEST, 0.0)
    assert audits.take(ME, off(1), 0.0) == (Finding.UNLIKELY, None) and audits.rate(ME) == 1.0
    for _ in range(auditing.SURE):
        assert audits.take(ME, HONEST, 0.0)[0] is Finding.HONEST
    assert audits.take(ME, off(1), 0.0)[0] is Finding.UNLIKELY
    assert audits.take(ME, HONEST, 0.0)[0] is Finding.HONEST
    assert audits.take(ME, off(1), 0.0)[0] is Finding.FORGED


@pytest.mark.parametrize("honest", [0, 100], ids=["new", "trusted"])
def test_small_margins_that_add_up_suspend_a_sampler_without_a_strike(honest: int) -> None:
    audits, warmer = Audits(), HONEST._replace(largest=0.3, drift=0.5)
    for _ in range(honest):
        audits.take(ME, HONEST, 0.0)
    found = [audits.take(ME, warmer, 0.0) for _ in range(9)]
    assert [finding for finding, _ in found] == [Finding.HONEST] * 8 + [Finding.DRIFTED]
    suspension = found[-1][1]
    assert suspension is not None and suspension.strikes == 0 and suspension.until == 3600.0


def test_honest_margins_never_add_up() -> None:
    audits, rng = Audits(), np.random.default_rng(1)
    for _ in range(20_000):
        drift = float(rng.normal(-0.05, 0.05))
        finding, _ = audits.take(ME, HONEST._replace(drift=drift), 0.0)
        assert finding is Finding.HONEST


def flips(*margins: float, usual: float = 0.07) -> Weighed:
    """Of a group of 1,024 tokens, of which so many differ."""
    every = np.array([*margins, *[0.0] * (1024 - len(margins))], np.float32)
    flat = Replayed(every, np.full(1024, -1.0, np.float32), usual=usual)
    return weigh(flat, claims(1024), Tolerance(hard=1.9, mean=0.012))


def rounding(rng: np.random.Generator, error: float = 0.117) -> Weighed:
    """As of a vocabulary of 151,936 in bfloat16 (docs/trust.md): differences of scores are normal, and 900
    tokens of a group have a second best within a nat."""
    found = rng.normal(0, error, 900) - rng.uniform(0, 1, 900)
    return flips(*found[found > 0])


def audits_until(groups: Iterable[Weighed]) -> tuple[int, Suspension | None]:
    audits, number = Audits(), 0
    for number, group in enumerate(groups, 1):
        finding, suspension = audits.take(ME, group, 0.0)
        assert finding is (Finding.HONEST if suspension is None else Finding.DRIFTED)
        if suspension is not None:
            return number, suspension
    return number, None


def test_margins_are_compared_with_the_size_that_rounding_gives_them() -> None:
    few, seldom = flips(0.14, 0.63, 1.7), 1024 / 2500
    assert few.large == pytest.approx((2 - 3) + (9 - 3) + (13 - 3) - seldom)
    assert few.far == pytest.approx((9 - 8) + (13 - 8) - seldom)
    unknown = flips(0.14, 0.63, 1.5, usual=math.inf)
    assert unknown.large < 0 and unknown.far < 0
    assert math.isfinite(flips(math.inf, usual=math.inf).far)


@pytest.mark.parametrize("honest", [0, 30])
def test_who_takes_a_token_of_its_liking_where_it_costs_little_and_rounds_nothing_is_suspended(
    honest: int,
) -> None:
    """Two flips a group, neither off: the sum of margins never rises."""
    rng = np.random.default_rng(1)
    steered = [flips(*rng.uniform(0, 0.8, 2)) for _ in range(40)]
    assert max(group.drift for group in steered) < 0 and not any(group.off for group in steered)
    number, suspension = audits_until([*[flips() for _ in range(honest)], *steered])
    assert honest < number < honest + 12
    assert (
        suspension is not None
        and (suspension.strikes, suspension.until) == (0, 3600.0)
        and "does it choose them" in suspension.why
    )


def test_who_does_so_behind_the_rounding_of_bfloat16_is_suspended_for_what_no_rounding_makes() -> None:
    rng = np.random.default_rng(1)

    def steered(most: float) -> Iterator[Weighed]:
        for _ in range(60):
            own = rng.normal(0, 0.117, 900) - rng.uniform(0, 1, 900)
            yield flips(*own[own > 0], *rng.uniform(0, most, 2))

    number, suspension = audits_until(steered(1.4))
    assert 1 < number < 20 and suspension is not None and "does it choose them" in suspension.why
    assert audits_until(steered(0.6)) == (60, None), "what remains possible (docs/trust.md)"


@pytest.mark.parametrize("error", [0.0, 1e-6, 0.015, 0.117, 0.117 * 2**0.5, 0.2])
def test_rounding_alone_adds_up_to_nothing_however_large_its_errors_are(error: float) -> None:
    rng = np.random.default_rng(1)
    assert audits_until(rounding(rng, error) for _ in range(2000)) == (2000, None)


def test_a_restart_with_another_precision_and_back_is_no_cheat() -> None:
    rng = np.random.default_rng(1)
    lives = [0.0, 0.117, 0.0, 0.015, 0.165, 0.0]
    assert audits_until(rounding(rng, error) for error in lives for _ in range(100)) == (600, None)


def test_one_token_alone_that_is_allowed_suspends_nobody_and_is_forgotten() -> None:
    glitch = [flips(1.8), *[flips() for _ in range(30)]]
    assert audits_until(glitch * 20) == (620, None)


def test_claims_that_are_off_on_average_suspend_a_sampler() -> None:
    assert Audits().take(ME, HONEST._replace(claimed=0.2), 0.0)[0] is Finding.DRIFTED


def test_a_group_that_decides_nothing_verifies_nobody() -> None:
    audits = Audits()
    for _ in range(100):
        assert audits.take(ME, HONEST._replace(deciding=3), 0.0)[0] is Finding.UNDECIDED
    assert audits.rate(ME) == 1.0


def test_many_keys_do_not_make_an_auditor_forget_whom_it_suspended() -> None:
    audits = Audits()
    audits.take(ME, off(2), 0.0)
    for number in range(auditing.REMEMBERED + 10):
        audits.take(PeerId(f"key-{number}"), HONEST, 0.0)
    assert audits.suspensions.of(ME, 1.0) is not None
    assert audits.rate(PeerId("key-0")) == 1.0


def filled(now: float = 0.0) -> Audits:
    """As many samplers are suspended as are remembered, each a second later than the one before."""
    audits = Audits()
    for number in range(auditing.REMEMBERED):
        audits.take(PeerId(f"key-{number}"), off(2), now + number)
    return audits


def test_many_keys_that_were_suspended_keep_nobody_honest_from_being_verified() -> None:
    audits = filled()
    names = [ME, PeerId("another"), PeerId("a third")]
    for _ in range(50):
        for name in names:
            audits.take(name, HONEST, 1.0)
    assert all(audits.proven(name) and audits.rate(name) == pytest.approx(0.4) for name in names)


def test_a_new_name_at_a_full_table_costs_no_look_at_all_others() -> None:
    """A look takes about a millisecond, and of 2,000 names the quickest hundred take .1 ms each at most."""
    audits, seconds = filled(), list[float]()
    for number in range(auditing.REMEMBERED + 2000):
        began = time.perf_counter()
        audits.take(PeerId(f"name-{number}"), HONEST, 1.0)
        seconds.append(time.perf_counter() - began)
    assert sum(sorted(seconds[auditing.REMEMBERED :])[:100]) < 100 * 1e-4
    assert len(audits.suspensions.all()) == auditing.REMEMBERED


def test_an_accusation_of_groups_from_before_a_suspension_is_no_further_strike() -> None:
    audits = Audits()
    audits.take(ME, off(2), 100.0)
    assert audits.accused(ME, off(2), released=99.0, now=4000.0) is None
    again = audits.accused(ME, off(2), released=101.0, now=4000.0)
    assert again is not None and again.strikes == 2


def test_a_pardon_forgets_all() -> None:
    audits = Audits()
    audits.take(ME, off(2), 0.0)
    audits.pardon(ME)
    assert audits.suspensions.of(ME, 1.0) is None


def test_who_is_honest_until_it_is_trusted_poisons_little() -> None:
    """The worst of several moments to begin, over the groups of its whole life until it is named."""
    rng, worst = random.Random(7), 0.0
    for honest in (20, 50, 100, 300):
        poisoned = total = 0
        for _ in range(60):
            audits = Audits()
            for _ in range(honest):
                if audits.drawn(ME, rng):
                    audits.take(ME, HONEST, 0.0)
                total += 1
            while audits.suspensions.of(ME, 0.0) is None:
                poisoned, total = poisoned + 1, total + 1
                if audits.drawn(ME, rng):
                    audits.take(ME, off(4), 0.0)
        worst = max(worst, poisoned / total)
    assert worst < 0.06


def test_only_those_that_were_suspended_are_written_down() -> None:
    lab = Audits()
    lab.take(PeerId("sampler-0"), HONEST, 0.0)
    assert lab.suspensions.all() == {}


def test_who_claims_other_log_probabilities_is_told_by_how_much() -> None:
    found, suspension = Audits().take(ME, HONEST._replace(claimed=0.25), 0.0)
    assert found is Finding.DRIFTED and suspension is not None and "0.25 nats a token off" in suspension.why


def test_what_is_taken_of_a_sampler_is_bounded_by_what_was_replayed_of_it_and_chance_draws_enough() -> None:
    assert [most_after(seen) - AHEAD for seen in (0, 1, 20, 40, 2000)] == [0, 2, 40, 100, 200_020]
    for number in range(50):
        audits, rng, peer = Audits(), random.Random(number), PeerId("honest")
        for taken in range(3000):
            assert audits.room(peer) > 0, f"honest, and replayed at once: group {taken}"
            audits.taken(peer)
            if audits.drawn(peer, rng):
                audits.take(peer, HONEST, 0.0)
    audits, taken = Audits(), 0
    while audits.room(PeerId("late")) > 0:
        audits.taken(PeerId("late"))
        taken += 1
    assert taken == AHEAD == 64


def test_a_replay_that_decides_nothing_is_one_and_a_sampler_that_was_unlucky_begins_anew() -> None:
    audits, peer = Audits(), PeerId("sampler")
    before = audits.room(peer)
    audits.take(peer, HONEST._replace(deciding=0), 0.0)
    assert audits.room(peer) == before + 2
    for _ in range(30):
        audits.taken(peer)
    audits.take(peer, HONEST._replace(off=1), 0.0)
    assert audits.room(peer) == before
