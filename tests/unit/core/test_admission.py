"""One verdict for each group, in the documented order, whatever arrives."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nouns import DRAWS, NOW, VOCABULARY, floats, group, ints, named, release

from swarm.core.agreement.releases import Releases
from swarm.core.agreement.trained import mark
from swarm.core.intake import admission
from swarm.core.intake.admission import AT_ONCE, Admission, malformation, released_here, staleness
from swarm.settings.config import Sampling, Window
from swarm.types import Array, Digest, Group, Heads, Noise, PeerId, Times, Verdict

WINDOW = Window(versions=3, seconds=60.0)
SAMPLING = Sampling(group_size=2, max_tokens=4)


def judge(what: Group, judges: Admission | None = None, **changes: Any) -> Verdict:
    said = {"version": 0, "full": None, "distrust": None, "now": NOW} | changes
    return (judges or judging(what)).judge(what, **said).verdict


def judging(*sampled: Group) -> Admission:
    """One that knows the releases of these groups as their publishers would say them."""
    told = [
        release(version=each.version, weights=each.weights, released=each.times.released) for each in sampled
    ]
    heard = Releases(keep=8)
    for each in told:
        heard.receive(each)
    return Admission(DRAWS, WINDOW, SAMPLING, VOCABULARY, heard.known)


def test_a_good_group_is_admitted() -> None:
    assert judge(group()) is Verdict.ADMIT


def test_a_group_at_every_limit_is_well_formed() -> None:
    last = VOCABULARY - 1
    numbers = {"tokens": ints(0, last, 0, last, 0), "logprobs": floats(0.0, 9e-4, -1e30, -1.0, -1.0)}
    limits = {"lengths": (SAMPLING.max_tokens, 1), "task": (1 << 48) - 1}
    assert malformation(group(**numbers, **limits), SAMPLING, VOCABULARY) is None


def test_a_judgement_says_how_old_the_group_is() -> None:
    judged = judging(group()).judge(group(), version=2, full=None, distrust=None, now=NOW + 7.0)
    assert (judged.verdict, judged.versions, judged.seconds) == (Verdict.ADMIT, 2, 7.0)
    assert not judged.release_unknown and judged.detail == ""


def test_a_group_of_a_version_that_is_not_made_here_yet_is_for_another_learner() -> None:
    ahead = group(version=3)
    judged = judging(ahead).judge(ahead, version=1, full=None, distrust=None, now=NOW)
    assert judged.verdict is Verdict.OVER_QUOTA and "2 versions ahead" in judged.detail
    assert "2 versions ahead" in (staleness(ahead, WINDOW, 1, NOW) or "")


def test_the_first_objection_in_the_documented_order_is_the_verdict() -> None:
    known = group()
    judges = judging(known)
    judge(known, judges)
    stale = {"version": 9, "full": "no room"}
    assert judge(group(lengths=()), judges, distrust="a stranger", **stale) is Verdict.UNTRUSTED
    assert judge(group(lengths=()), judges, **stale) is Verdict.MALFORMED
    assert judge(known, judges, **stale) is Verdict.DUPLICATE
    assert judge(group(1), judges, **stale) is Verdict.STALE
    assert (
        judge(group(1, weights=Digest("1" * 64), released=NOW - 99), judges, full="no room")
        is Verdict.UNTRUSTED
    )
    assert judge(group(1), judges, full="no room", version=1, now=NOW + 99) is Verdict.STALE
    assert judge(group(1), judges, full="no room") is Verdict.OVER_QUOTA
    assert judge(group(1), judges) is Verdict.ADMIT


@pytest.mark.parametrize(("lag", "stale"), [(3, False), (4, True)])
def test_the_window_in_versions_ends_exactly_there(lag: int, stale: bool) -> None:
    assert (judge(group(), version=lag) is Verdict.STALE) is stale


def test_where_groups_must_be_replayable_others_are_malformed() -> None:
    asked = msgspec.structs.replace(SAMPLING, replayable=True)
    assert asked.replayable == Sampling().replayable, "unless the run says otherwise"
    for noise in ("", "another", Noise.INVERSE):
        said = malformation(group(noise=noise), asked, VOCABULARY, Noise.GUMBEL)
        assert "run.sampling.replayable" in (said or "")
        free = msgspec.structs.replace(asked, replayable=False)
        assert malformation(group(noise=noise), free, VOCABULARY, Noise.GUMBEL) is None
    for noise in (Noise.GUMBEL, Noise.INVERSE):
        assert malformation(group(noise=noise), asked, VOCABULARY, noise) is None


def test_heads_have_as_many_bytes_as_the_run_asks_for() -> None:
    asked = msgspec.structs.replace(SAMPLING, heads=2)
    good = Heads(tokens=bytes(24), logprobs=bytes(12))
    assert malformation(group(heads=good), asked, VOCABULARY) is None
    assert malformation(group(heads=Heads(tokens=bytes(12), logprobs=bytes(6))), asked, 1) is not None
    cut = Heads(tokens=bytes(24), logprobs=bytes(11))
    for spoiled, sampling in ((None, asked), (cut, asked), (good, SAMPLING)):
        assert "heads" in (malformation(group(heads=spoiled), sampling, VOCABULARY) or "")


def test_the_window_in_seconds_ends_exactly_there() -> None:
    assert judge(group(), version=1, now=NOW + 60.0) is Verdict.ADMIT
    assert judge(group(), version=1, now=math.nextafter(NOW + 60.0, math.inf)) is Verdict.STALE


def test_what_the_newest_policy_sampled_is_never_too_old() -> None:
    assert judge(group(), version=0, now=NOW + 3600.0) is Verdict.ADMIT
    assert staleness(group(), WINDOW, 0, NOW + 3600.0) is None
    assert staleness(group(), WINDOW, 1, NOW + 3600.0) is not None


def test_a_group_of_no_known_release_may_be_judged_again_once_it_is_known() -> None:
    heard = Releases()
    judges = Admission(DRAWS, WINDOW, SAMPLING, VOCABULARY, heard.known)
    first = judges.judge(group(), version=0, full=None, distrust=None, now=NOW)
    assert first.verdict is Verdict.UNTRUSTED and first.release_unknown and "release 0" in first.detail
    heard.receive(release(version=0, weights=group().weights))
    assert judge(group(), judges) is Verdict.ADMIT


@pytest.mark.parametrize(
    ("claim", "why"), [(86400.0, "86400.000 s younger"), (-5.0, "5.000 s older"), (0.01, "0.010 s younger")]
)
def test_the_time_of_a_release_is_its_publishers_word(claim: float, why: str) -> None:
    judgement = judging(group()).judge(
        group(released=NOW + claim), version=0, full=None, distrust=None, now=NOW
    )
    assert judgement.verdict is Verdict.UNTRUSTED and why in judgement.detail


def test_of_several_releases_of_the_same_bytes_the_nearest_one_is_named() -> None:
    judges = judging(group(1), group(2, released=NOW + 100.0))
    judged = judges.judge(group(released=NOW + 10.0), version=0, full=None, distrust=None, now=NOW)
    assert judged.verdict is Verdict.UNTRUSTED and "10.000 s younger" in judged.detail


def test_a_claim_that_is_rounded_is_believed() -> None:
    assert judge(group(released=NOW + 0.0004), judging(group())) is Verdict.ADMIT


def test_publisher_and_stand_in_may_have_signed_the_same_bytes_at_different_times() -> None:
    one, other = group(1), group(2, released=NOW - 3.0)
    judges = judging(one, other)
    assert judge(one, judges) is judge(other, judges) is Verdict.ADMIT


def test_a_group_that_was_over_quota_may_come_again() -> None:
    judges = judging(group())
    assert judge(group(), judges, full="no room") is Verdict.OVER_QUOTA
    assert judge(group(), judges) is Verdict.ADMIT
    assert judge(group(), judges) is Verdict.DUPLICATE


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lengths": (2, 1, 1)}, "3 completions"),
        ({"rewards": (1.0,)}, "1 rewards"),
        ({"lengths": (3, 0)}, "length"),
        ({"lengths": (5, -2)}, "length"),
        ({"tokens": ints(1, 2)}, "expected int32[3]"),
        ({"tokens": Array(dtype="int64", shape=(3,), data=bytes(24))}, "int64"),
        ({"tokens": Array(dtype="int32", shape=(3,), data=bytes(11))}, "11 bytes"),
        ({"tokens": ints(1, 2, VOCABULARY)}, "vocabulary"),
        ({"tokens": ints(1, 2, -1)}, "vocabulary"),
        ({"logprobs": floats(-1.0, math.nan, -1.0)}, "log-probability"),
        ({"logprobs": floats(-1.0, -math.inf, -1.0)}, "log-probability"),
        ({"logprobs": floats(-1.0, 0.5, -1.0)}, "log-probability"),
        ({"rewards": (1.0, math.inf)}, "reward"),
        ({"times": Times(released=NOW, fetched=NOW, used=math.nan, finished=NOW, sent=NOW)}, "time"),
        ({"task": -1}, "index"),
        ({"task": 1 << 48}, "index"),
        ({"id": "0" * 32}, "id"),
    ],
)
def test_a_malformed_group_is_told_what_is_wrong(changes: dict[str, Any], why: str) -> None:
    assert why in (malformation(group(**changes), SAMPLING, VOCABULARY) or "nothing is wrong")


arrays = st.builds(
    Array,
    dtype=st.sampled_from(["int32", "float32", "bfloat16", "", "object"]),
    shape=st.lists(st.integers(-2, 1 << 40), max_size=3).map(tuple),
    data=st.binary(max_size=24),
)
anything = st.fixed_dictionaries(
    {},
    optional={
        "lengths": st.lists(st.integers(-3, 1 << 33), max_size=4).map(tuple),
        "rewards": st.lists(st.floats(), max_size=4).map(tuple),
        "tokens": arrays,
        "logprobs": arrays,
        "version": st.integers(-(1 << 63), (1 << 64) - 1),
        "task": st.integers(-(1 << 63), (1 << 64) - 1),
        "seed": st.integers(-(1 << 63), (1 << 64) - 1),
        "id": st.text(max_size=40),
    },
)


@given(anything)
def test_whatever_a_group_says_it_gets_a_verdict_and_is_admitted_only_when_nothing_is_wrong(
    changes: dict[str, Any],
) -> None:
    what = group(**changes)
    fine = malformation(what, SAMPLING, VOCABULARY) is None and staleness(what, WINDOW, 0, NOW) is None
    fine = fine and not changes.keys() & {
        "task",
        "seed",
    }  # these are the sampler's draw, or of its own choice
    assert (judge(what) is Verdict.ADMIT) is fine
    if changes.keys() & {"lengths", "rewards", "tokens", "logprobs"} and fine:
        assert sum(what.lengths) * 4 == len(what.tokens.data) == len(what.logprobs.data)


@given(st.integers(-5, 8), st.floats(-10, 100))
def test_nothing_outside_the_window_is_ever_admitted(version: int, age: float) -> None:
    inside = version == 0 or (0 < version <= WINDOW.versions and age <= WINDOW.seconds)
    assert (judge(group(released=NOW - age), version=version) is Verdict.ADMIT) <= (
        inside or age == pytest.approx(60.0)
    )


@pytest.mark.parametrize(
    ("choice", "what"), [({"task": 5}, "task"), ({"seed": 5}, "seed"), ({"draw": 1}, "task")]
)
def test_a_group_that_its_sampler_was_not_to_draw_is_not_believed(choice: dict[str, int], what: str) -> None:
    drawn = group()
    chosen = named(msgspec.structs.replace(drawn, **choice))
    judged = judging(drawn).judge(chosen, version=0, full=None, distrust=None, now=NOW)
    assert judged.verdict is Verdict.UNTRUSTED and not judged.release_unknown
    assert judged.detail == f"its {what} is not that of draw {chosen.draw} under its release"


def test_another_text_for_a_draw_is_no_second_group() -> None:
    judges = judging(group())
    assert judge(group(), judges) is Verdict.ADMIT
    assert judge(group(tokens=ints(1, 2, 4)), judges) is Verdict.DUPLICATE
    assert judge(group(1), judges) is Verdict.ADMIT


def test_a_group_that_two_samplers_were_to_draw_is_taken_once() -> None:
    judges, mine = judging(group()), group()
    number, its = meeting(mine)
    other = group(number, sampler=its)
    assert (other.task, other.seed) == (mine.task, mine.seed)
    assert judge(mine, judges) is Verdict.ADMIT and judge(other, judges) is Verdict.DUPLICATE


def test_a_slot_is_free_again_when_its_group_is_refused_after_all() -> None:
    judges, mine = judging(group()), group()
    number, its = meeting(mine)
    assert judge(mine, judges) is Verdict.ADMIT
    judges.free_slot(mine)
    assert judge(mine, judges) is Verdict.DUPLICATE, "the same text is not looked at twice"
    assert judge(group(number, sampler=its), judges) is Verdict.ADMIT


def meeting(mine: Group) -> tuple[int, PeerId]:
    """A draw of another sampler that is the same slot."""
    return next(
        (number, PeerId("other"))
        for number in range(10_000)
        if DRAWS.of(mine.weights, PeerId("other"), number)[1:] == (mine.task, mine.seed)
    )


def test_a_number_that_jumps_is_refused() -> None:
    far = group(AT_ONCE + 1)
    assert judging(far).judge(far, version=0, full=None, distrust=None, now=NOW).detail == (
        f"draw {AT_ONCE + 1} of a release that is 0.0 s old: no sampler draws so many"
    )
    later = judging(far).judge(far, version=0, full=None, distrust=None, now=NOW + 1.0)
    assert later.verdict is Verdict.ADMIT


def test_numbers_go_on_through_versions_with_the_same_weights() -> None:
    far = group(AT_ONCE + 1, version=1)
    for parent, verdict in ((far.weights, Verdict.ADMIT), (Digest("1" * 64), Verdict.UNTRUSTED)):
        heard = Releases(keep=8)
        heard.receive(release(version=1, weights=far.weights, parent=parent, released=NOW))
        judges = Admission(DRAWS, WINDOW, SAMPLING, VOCABULARY, heard.known)
        assert judge(far, judges, version=1) is verdict


def test_a_draw_whose_group_found_no_room_may_come_again() -> None:
    judges = judging(group())
    assert judge(group(), judges, full="no room") is Verdict.OVER_QUOTA
    assert judge(group(), judges) is Verdict.ADMIT


def test_the_memory_of_ids_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "REMEMBERED", 3)
    judges = judging(group())
    for seed in range(5):
        judge(group(seed), judges)
    known = [judge(group(seed), judges) is Verdict.DUPLICATE for seed in (4, 3, 2, 1, 0)]
    assert known == [True, True, True, False, False]


def test_what_was_admitted_elsewhere_or_before_a_restart_is_a_duplicate() -> None:
    judges = judging(group())
    judges.remember(mark(group().id))
    assert judge(group(), judges) is Verdict.DUPLICATE


def test_two_groups_that_differ_in_anything_sampled_have_two_ids() -> None:
    variants = [
        {},
        {"version": 1},
        {"task": 5},
        {"seed": 5},
        {"tokens": ints(1, 2, 4)},
        {"logprobs": floats(-1, -1, -1)},
    ]
    ids = {group(**changes).id for changes in variants}
    assert len(ids) == len(variants) and {len(bytes.fromhex(each)) * 8 for each in ids} == {128}
    sent_again = msgspec.structs.replace(group().times, sent=NOW + 9)
    assert group(times=sent_again).id == group().id


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_an_age_is_counted_around_a_publishers_wrong_clock(off: float) -> None:
    heard, told = Releases(keep=8), group(released=NOW + off)
    heard.receive(release(version=told.version, weights=told.weights, released=NOW + off))
    judges = Admission(DRAWS, WINDOW, SAMPLING, VOCABULARY, heard.known, lambda one: one.released - off)
    young = judges.judge(told, version=0, full=None, distrust=None, now=NOW + 7.0)
    assert (young.verdict, young.seconds) == (Verdict.ADMIT, 7.0)
    mine = judges.by_my_clock(told)
    assert mine.times.released == NOW and mine.id == told.id
    assert staleness(mine, WINDOW, 1, NOW + 59.0) is None and staleness(mine, WINDOW, 1, NOW + 61.0)
    other = Admission(DRAWS, WINDOW, SAMPLING, VOCABULARY, heard.known, lambda one: one.released - off)
    assert other.judge(told, version=1, full=None, distrust=None, now=NOW + 61.0).verdict is Verdict.STALE


def test_the_age_of_a_group_of_no_known_release_is_its_samplers_claim() -> None:
    its, known = group(), [release(publisher=PeerId(name)) for name in ("a", "b")]
    assert released_here(its, known, lambda one: NOW + 3.0 * (one.publisher == "a")) == NOW
    assert released_here(its, [], lambda _: 0.0) == its.times.released
