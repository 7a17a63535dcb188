"""Who is alive, from heartbeats alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nouns import NOW, beat

from swarm.core.intake.deliveries import LONGEST, SHORTEST
from swarm.core.roster import CLOCK, GHOST, REMEMBERED, STRANGERS, Roster, share
from swarm.protocol import Phase, Role
from swarm.types import Beat, PeerId

A, B, C = (PeerId(name) for name in "abc")


def roster(seed: int = 3, **credits: int) -> Roster:
    made = Roster(10.0, random.Random(seed))
    for name, credit in credits.items():
        made.receive(PeerId(name), beat(credit=credit), NOW)
    return made


@given(st.permutations([beat(incarnation=life, seq=seq) for life in (1, 2) for seq in (1, 2, 3)]))
def test_the_newest_beat_is_what_is_known_in_whatever_order_they_arrive(beats: list[Beat]) -> None:
    heard = Roster(10.0, random.Random(3))
    for told in beats:
        heard.receive(A, told, NOW)
    known = heard.beat(A)
    assert known is not None and (known.incarnation, known.seq) == (2, 3)


def test_an_old_beat_is_no_sign_of_life() -> None:
    heard = Roster(10.0, random.Random(3))
    assert heard.receive(A, beat(seq=5), NOW)
    assert not heard.receive(A, beat(seq=4), NOW + 9)
    assert not heard.receive(A, beat(seq=5), NOW + 9)
    assert heard.silent(A, NOW + 9) == 9
    assert heard.expire(NOW + 11)[0] == [(A, 11.0)]


def test_a_peer_is_lost_after_the_patience_and_back_when_it_is_heard_again() -> None:
    heard = roster(a=1)
    assert heard.expire(NOW + 10) == ([], NOW + 10)
    assert heard.expire(NOW + 10.5) == ([(A, 10.5)], math.inf) and A not in heard
    assert heard.receive(A, beat(seq=9), NOW + 11) and A in heard


def test_a_restarted_peer_outranks_its_old_life() -> None:
    heard = Roster(10.0, random.Random(3))
    heard.receive(A, beat(incarnation=1, seq=99), NOW)
    assert heard.receive(A, beat(incarnation=2, seq=1, version=7), NOW)
    assert not heard.receive(A, beat(incarnation=1, seq=100), NOW)


def test_learners_are_chosen_in_proportion_to_their_credit() -> None:
    chosen = Counter(roster(seed, a=1, b=3, c=0).choose(NOW) for seed in range(3000))
    assert chosen[C] == 0 and chosen[None] == 0
    assert 0.7 < chosen[B] / 3000 < 0.8


@given(st.integers(0, 9), st.integers(0, 9), st.integers())
def test_credit_is_spent_to_the_last_and_no_further(a: int, b: int, seed: int) -> None:
    heard = roster(seed, a=a, b=b)
    chosen = Counter[PeerId | None](heard.choose(NOW) for _ in range(a + b + 3))
    assert chosen == +Counter({A: a, B: b, None: 3})


def test_who_is_no_learner_is_never_sent_a_group() -> None:
    heard = Roster(10.0, random.Random(3))
    heard.receive(A, beat(role=Role.SAMPLER, credit=9), NOW)
    assert heard.choose(NOW) is None and heard.learners() == [] and heard.credit(NOW) == 0


def test_a_beat_does_not_forget_the_groups_on_their_way() -> None:
    heard = roster(a=2)
    heard.choose(NOW)
    heard.choose(NOW)
    heard.receive(A, beat(seq=2, credit=2), NOW + 1)
    assert heard.credit(NOW) == 0, "the learner does not know of the two yet"
    heard.acknowledged(A, 2)
    assert heard.credit(NOW) == 1
    heard.acknowledged(A, None)
    assert heard.credit(NOW) == 2, "a group that was lost on the way takes no room"


def test_landing_at_a_learner_that_is_gone_changes_nothing() -> None:
    heard = roster(a=1)
    heard.forget(A)
    heard.acknowledged(A, 5)
    assert not heard.sent(A, NOW)
    assert heard.credit(NOW) == 0 and A not in heard


def test_a_learner_that_does_not_take_a_group_is_left_alone_and_then_tried_with_one() -> None:
    heard = roster(a=9)
    heard.choose(NOW)
    heard.acknowledged(A, 9)
    assert heard.start_pause(A, NOW, NOW)
    soon, later = NOW + SHORTEST / 2, NOW + heard.wait(NOW)
    assert heard.credit(soon) == 0 and heard.choose(soon) is None and not heard.sent(A, soon)
    assert heard.credit(later) == 1 and heard.choose(later) == A
    assert heard.choose(later) is None and not heard.sent(A, later), "one is on its way"
    heard.acknowledged(A, 9)
    heard.end_pause(A, later)
    assert heard.credit(later) == 9


def test_groups_that_were_on_their_way_together_make_one_pause() -> None:
    heard = roster(a=9)
    assert [heard.start_pause(A, NOW + sent / 10, NOW + 0.2) for sent in (0, 1, 2)] == [True, False, False]
    heard.end_pause(A, NOW)
    assert heard.credit(NOW + 0.2 + SHORTEST / 2) == 0, "one that left before the pause says nothing of now"


def test_the_pause_of_a_learner_that_takes_nothing_grows_and_a_beat_does_not_end_it() -> None:
    heard, now, pauses = roster(a=9), NOW, []
    for seq in range(2, 20):
        assert heard.start_pause(A, now, now)
        heard.receive(A, beat(seq=seq, credit=9), now)
        pauses.append(heard.wait(now))
        now += pauses[-1]
    assert pauses[:4] == sorted(pauses[:4]) and LONGEST * 0.75 < pauses[-1] < LONGEST * 1.25


def test_a_learner_that_is_left_alone_leaves_its_part_to_the_others() -> None:
    heard = roster(a=3, b=3)
    heard.start_pause(A, NOW, NOW)
    assert [heard.choose(NOW) for _ in range(4)] == [B, B, B, None]


def test_bytes_are_asked_of_learners_first_and_only_of_those_who_have_them() -> None:
    heard = Roster(10.0, random.Random(3))
    heard.receive(A, beat(role=Role.SAMPLER, version=5), NOW)
    heard.receive(B, beat(role=Role.LEARNER, version=5), NOW)
    heard.receive(C, beat(role=Role.SEED, version=4), NOW)
    assert heard.holders(5) == [B, A]
    assert heard.holders(3) == [B, C, A]


@given(st.integers(0, 50), st.integers(0, 30), st.integers())
def test_a_share_of_credit_is_a_whole_number_next_to_the_fair_one(
    credit: int, takers: int, seed: int
) -> None:
    mine = share(credit, takers, random.Random(seed))
    assert credit // max(1, takers) <= mine <= credit // max(1, takers) + 1
    assert mine == credit or takers > 1


def test_shares_of_many_samplers_add_up_to_about_the_credit() -> None:
    rng = random.Random(3)
    assert 4500 < sum(share(5, 100, rng) for _ in range(100 * 1000)) < 5500


def test_a_late_beat_of_a_peer_that_left_does_not_bring_it_back() -> None:
    heard = Roster(10.0, random.Random(3))
    heard.receive(A, beat(incarnation=2, seq=5), NOW)
    heard.forget(A)
    assert not heard.receive(A, beat(incarnation=2, seq=5), NOW) and A not in heard
    assert not heard.receive(A, beat(incarnation=1, seq=9), NOW) and A not in heard
    assert heard.receive(A, beat(incarnation=2, seq=6), NOW) and A in heard


def test_a_stranger_is_forgotten_without_a_word() -> None:
    heard = roster(a=1)
    heard.forget(B)
    heard.forget(B)
    assert heard.beat(B) is None
    assert A in heard and heard.receive(B, beat(incarnation=0, seq=0), NOW)


def test_of_those_that_left_the_latest_are_remembered_up_to_a_bound() -> None:
    heard, peers = Roster(10.0, random.Random(3)), [PeerId(str(k)) for k in range(REMEMBERED + 1)]
    for peer in peers:
        heard.receive(peer, beat(seq=5), NOW)
        heard.forget(peer)
    known = [peer for peer in peers if not heard.receive(peer, beat(seq=4), NOW)]
    assert known == peers[1:], "the one that left first is a stranger again"


def test_a_group_that_goes_to_a_chosen_learner_costs_one_of_its_credit() -> None:
    heard = roster(a=3)
    assert heard.sent(A, NOW) and heard.credit(NOW) == 2
    heard.acknowledged(A, None)
    assert heard.credit(NOW) == 3, "it was lost on the way"
    assert heard.sent(A, NOW) and heard.sent(A, NOW) and heard.credit(NOW) == 1
    heard.acknowledged(A, 5)
    assert heard.credit(NOW) == 4, "the receipt's credit, less the one that is on its way"
    assert not heard.sent(B, NOW), "a stranger"


def test_of_those_that_may_hold_a_release_learners_are_asked_first_and_then_seeds() -> None:
    heard = Roster(10.0, random.Random(3))
    for role in (Role.SAMPLER, Role.OBSERVER, Role.EVALUATOR, Role.SEED, Role.LEARNER):
        heard.receive(PeerId(f"a-{role.value}"), beat(role=role), NOW)
    assert heard.holders(0)[:3] == ["a-learner", "a-seed", "a-evaluator"]
    assert len(heard.holders(0)) == 5 and heard.holders(1) == []


def test_a_learner_with_more_on_its_way_than_it_takes_costs_the_others_no_credit() -> None:
    heard = roster(a=3, b=5)
    for _ in range(3):
        assert heard.sent(A, NOW)
    heard.receive(A, beat(seq=2, credit=1), NOW)
    assert heard.credit(NOW) == 5
    assert Counter(heard.choose(NOW) for _ in range(6)) == {B: 5, None: 1}


def test_the_next_pause_to_end_is_the_one_that_is_waited_for() -> None:
    heard = roster(a=1, b=1)
    assert heard.wait(NOW) == math.inf
    heard.start_pause(A, NOW, NOW)
    heard.start_pause(B, NOW + 100.0, NOW + 100.0)
    assert 0 < heard.wait(NOW) < 1 and 0 < heard.wait(NOW + 100.0) < 1, "the first has ended by then"
    assert 50 < heard.wait(NOW + 50.0) < 51
    assert heard.wait(NOW + 102.0) == math.inf


def beats(heard: Roster, peer: PeerId, *ahead: float, incarnation: int = 1) -> None:
    """Heartbeats that arrive now, from a clock that is so far ahead."""
    known = heard.beat(peer)
    first = known.seq + 1 if known is not None and known.incarnation == incarnation else 0
    heard.receive(peer, beat(incarnation=incarnation, seq=first, at=NOW + ahead[0]), NOW)
    for seq, seconds in enumerate(ahead, first + 1):
        assert heard.receive(peer, beat(incarnation=incarnation, seq=seq, at=NOW + seconds), NOW)


@pytest.mark.parametrize("off", [-3600.0, 1860.0])
def test_a_wrong_clock_is_known_by_the_heartbeat_that_came_soonest(off: float) -> None:
    heard = Roster(10.0, random.Random(3))
    assert heard.ahead(A) == 0.0
    beats(heard, A, off - 9.0, off - 0.2, off - 5.0)
    assert heard.ahead(A) == pytest.approx(off - 0.2)
    heard.forget(A)
    assert heard.ahead(A) == pytest.approx(off - 0.2), "its releases outlive it"
    beats(heard, A, -0.3, incarnation=2)
    assert heard.ahead(A) == 0.0, "somebody set it"


def test_a_delay_is_no_wrong_clock() -> None:
    heard = Roster(10.0, random.Random(3))
    beats(heard, A, -CLOCK + 1, -2 * CLOCK)
    assert heard.ahead(A) == 0.0


def test_a_clock_that_differs_from_most_is_wrong_and_of_two_nobody_knows() -> None:
    heard = Roster(10.0, random.Random(3))
    beats(heard, A, -3600.0)
    assert heard.wrong() == 0.0
    beats(heard, B, -3601.0)
    assert heard.wrong() == pytest.approx(3600.0)
    beats(heard, C, 0.0)
    beats(heard, PeerId("d"), 0.0)
    assert heard.wrong() == 0.0


def test_clocks_are_remembered_up_to_a_bound() -> None:
    heard, peers = Roster(10.0, random.Random(3)), [PeerId(str(k)) for k in range(REMEMBERED + 1)]
    for peer in peers:
        beats(heard, peer, 100.0)
        heard.forget(peer)
    assert heard.ahead(peers[0]) == 0.0 and heard.ahead(peers[1]) == 100.0


def test_the_heartbeat_of_a_peer_that_is_gone_brings_no_newcomer_a_ghost() -> None:
    newcomer = Roster(10.0, random.Random(3))
    assert not newcomer.receive(A, beat(seq=9, at=NOW - GHOST - 1), NOW) and A not in newcomer
    assert not newcomer.receive(A, beat(seq=9, at=NOW - GHOST - 1), NOW + 2), "said again"
    assert not newcomer.receive(A, beat(seq=90, at=NOW), NOW + 3600), "another one of long ago"
    assert newcomer.receive(B, beat(seq=9, at=NOW - GHOST + 1), NOW), "the board keeps one for two minutes"


def test_a_peer_with_a_late_clock_is_heard_from_its_second_heartbeat_on() -> None:
    newcomer = Roster(10.0, random.Random(3))
    assert not newcomer.receive(A, beat(seq=1, at=NOW - 3600), NOW)
    assert newcomer.receive(A, beat(seq=2, at=NOW - 3598), NOW + 2.5) and A in newcomer


def test_a_peer_whose_clock_is_late_is_heard_again_by_those_who_know_its_clock() -> None:
    heard = roster()
    heard.receive(A, beat(seq=1, at=NOW), NOW)
    for seq in range(2, 12):
        assert heard.receive(A, beat(seq=seq, at=NOW - 3600 + seq), NOW + seq), "its clock jumped"
    heard.forget(A)
    assert heard.receive(A, beat(seq=12, at=NOW - 3600 + 99), NOW + 99)


def test_strangers_give_way_to_strangers_and_never_to_the_proven() -> None:
    heard = roster(a=1)
    heard.receive(B, beat(role=Role.SAMPLER, version=5), NOW, proven=True)
    crowd = [PeerId(f"stranger-{k}") for k in range(STRANGERS + 2)]
    for peer in crowd[:-1]:
        heard.receive(peer, beat(role=Role.SAMPLER, version=9), NOW, proven=False)
    heard.receive(crowd[1], beat(role=Role.SAMPLER, seq=2, version=9), NOW, proven=False)
    heard.receive(crowd[-1], beat(role=Role.SAMPLER, version=9), NOW, proven=False)
    assert len(list(heard)) == STRANGERS + 2 and A in heard and B in heard
    assert [peer in heard for peer in crowd[:4]] == [False, True, False, True], "longest silent goes first"
    assert heard.holders(5)[0] == B, "strangers are asked last"
    heard.receive(crowd[3], beat(role=Role.SAMPLER, seq=2, version=9), NOW, proven=True)
    assert heard.holders(9)[0] == crowd[3], "it has delivered meanwhile"


def test_strangers_make_nobody_forget_how_wrong_a_members_clock_is() -> None:
    heard = Roster(10.0, random.Random(3))
    beats(heard, A, 100.0)
    heard.forget(A)
    for k in range(REMEMBERED + 1):
        heard.receive(PeerId(f"stranger-{k}"), beat(role=Role.SAMPLER), NOW, proven=False)
    assert heard.ahead(A) == 100.0


def test_strangers_that_come_and_go_make_nobody_forget_a_learner_that_left() -> None:
    heard = roster(a=1)
    heard.forget(A)
    for k in range(REMEMBERED + 1):
        heard.receive(PeerId(f"sampler-{k}"), beat(role=Role.SAMPLER), NOW)
        heard.forget(PeerId(f"sampler-{k}"))
    assert not heard.receive(A, beat(), NOW)


def test_a_peer_that_is_a_learner_no_more_is_not_counted_as_one() -> None:
    known = roster()
    known.receive(A, beat(role=Role.LEARNER, incarnation=1), NOW)
    assert known.learners() == ["a"]
    known.receive(A, beat(role=Role.SAMPLER, incarnation=2), NOW)
    assert known.learners() == []
    known.receive(A, beat(role=Role.LEARNER, incarnation=3), NOW)
    known.forget(A)
    assert known.learners() == []


def test_an_urgent_group_goes_where_none_is_asked_for_one_at_a_time() -> None:
    heard = roster(a=0, b=0)
    heard.receive(PeerId("c"), beat(credit=0, phase=Phase.CATCHING_UP), NOW)
    assert heard.choose(NOW) is None
    assert {heard.choose(NOW, urgent=True) for _ in range(2)} == {A, B}
    assert heard.choose(NOW, urgent=True) is None, "one is on its way to each"
    heard.acknowledged(A, 0)
    assert heard.choose(NOW, urgent=True) == A
    credited = roster(a=1, b=0)
    assert credited.choose(NOW, urgent=True) == A, "credit is spent first"


def test_a_learner_came_to_its_phase_at_its_version_or_began_to_fall_in_then() -> None:
    here = roster()
    order = list[tuple[float, int]]()
    for seq, (phase, version) in enumerate(
        [
            (Phase.MATCHING, 4),
            (Phase.MATCHING, 4),
            (Phase.MATCHING, 5),
            (Phase.SYNCING, 5),
            (Phase.SYNCING, 7),
            (Phase.GATHERING, 7),
        ]
    ):
        assert here.receive(A, beat(seq=seq + 1, phase=phase, version=version), NOW)
        order.append(here.phased(A))
    assert [later > earlier for earlier, later in pairwise(order)] == [False, True, True, False, True]
