"""Which steps a policy is made of, as far as releases and learners tell."""

from __future__ import annotations

from typing import Any

from nouns import group, release

from swarm.core.agreement.lineage import Line, Lineage
from swarm.core.agreement.trained import HeldPolicy, TrainedLedger, mark, marks_of
from swarm.types import Digest, PeerId, Release, TrainedStep

ME, OTHER = PeerId("learner-0"), PeerId("learner-1")


def digest(name: str) -> Digest:
    return Digest(name * 64)


def step(version: int, parent: str, weights: str = "", **changes: Any) -> TrainedStep:
    its = {"members": (ME,), "groups": bytes([version]) * 8} | changes
    return TrainedStep(version=version, parent=digest(parent), weights=Digest(weights * 64), **its)


def ledger(
    *mine: TrainedStep, releases: tuple[Release, ...] = (), told: Line | None = None, version: int = 0
) -> TrainedLedger:
    """`told`: a line that ends at `version`, as others told it."""
    lineage = Lineage()
    for one in releases:
        lineage.receive(one)
    if told is not None:
        lineage.learn(told, version)
    made = TrainedLedger(
        lambda version, weights: [
            one for one in releases if (one.version, one.weights) == (version, weights)
        ],
        lineage.parent,
        ME,
    )
    for each in mine:
        made.add(each)
    return made


def lost(of: TrainedLedger, version: int, weights: str, parent: str = "") -> list[int]:
    policy = HeldPolicy(version, digest(weights), Digest(parent * 64))
    return [each.version for each in of.split(policy)[1]]


def test_the_marks_of_groups_come_apart_as_they_were_packed() -> None:
    marks = [mark(group(seed).id) for seed in range(3)]
    assert marks_of(b"".join(marks)) == marks and len(set(marks)) == 3


def test_a_step_of_an_earlier_life_may_have_made_a_release_that_comes_back_after_the_next_try() -> None:
    """It was announced when the disk took no release; the next life steps from the same version again."""
    made = release(version=2, weights=digest("2"), parent=digest("1"), publisher=ME)
    first, again = step(2, "1", groups=b"first..."), step(2, "1", groups=b"again...")
    mine = ledger(step(1, "0", "1"), first, releases=(made,))
    mine.begin_life()
    mine.add(again)
    mine.name(2, digest("3"))
    (_, found), _ = mine.split(HeldPolicy(2, digest("2"), digest("1")))
    assert found.groups == first.groups
    tries = ledger(step(1, "0", "1"), first, again)
    assert [each.groups for each in tries.mine[1:]] == [again.groups], (
        "in one life the first one made nothing"
    )


def test_steps_after_a_restored_checkpoint_are_lost_and_count_again_once_their_release_is_taken() -> None:
    mine = ledger(step(1, "0", "1"), step(2, "1", "2"), step(3, "2", "3"))
    assert lost(mine, 1, "1", "0") == [2, 3]
    assert lost(mine, 3, "3", "2") == []


def test_a_step_alone_is_lost_where_the_release_of_its_version_is_another_one() -> None:
    mine = ledger(step(1, "0", "1"), step(2, "1", "2"))
    assert lost(mine, 3, "d", "c") == [2]


def test_a_contribution_to_an_unknown_list_is_lost_once_somebody_says_what_the_list_has() -> None:
    of_two = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=2)
    mine = ledger(step(1, "0", members=()), releases=(of_two,))
    assert lost(mine, 1, "1") == [] and mine.unsure(HeldPolicy(1, digest("1"), Digest("")))
    mine.receive([step(1, "0", "1", members=(OTHER,))])
    assert lost(mine, 1, "1") == [1] and not mine.unsure(HeldPolicy(1, digest("1"), Digest("")))


def test_a_step_of_another_learner_is_lost_where_the_policy_has_another_one() -> None:
    mine = ledger(step(1, "0", "1"))
    mine.receive([step(2, "1", "2", members=(OTHER,))])
    assert lost(mine, 2, "2", "1") == [] and lost(mine, 2, "3", "1") == [2]
    assert lost(mine, 9, "9", "8") == [], "it is unknown what that is made of"


def test_a_contribution_is_not_in_what_another_learner_released_alone() -> None:
    alone = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=1)
    mine = ledger(step(1, "0", members=()), releases=(alone,))
    assert lost(mine, 1, "1") == [1] and not mine.unsure(HeldPolicy(1, digest("1"), Digest("")))


def test_a_step_that_made_the_weights_of_anothers_release_is_not_that_one() -> None:
    """All rewards were equal in both batches."""
    theirs = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=1)
    mine = ledger(step(1, "0", "1"), releases=(theirs,))
    assert lost(mine, 1, "1", "0") == [1] and mine.report(0, ()) == []
    ours = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=2)
    mine = ledger(step(1, "0", "1", members=(ME, OTHER)), releases=(ours,))
    assert lost(mine, 1, "1", "0") == []


def test_a_contribution_makes_way_for_one_that_has_its_groups() -> None:
    mine = ledger(*(step(1, "0", members=(), groups=bytes([k]) * 8) for k in (1, 2, 1)))
    assert [each.groups[0] for each in mine.mine] == [2, 1]


def test_a_contribution_is_not_in_the_list_that_a_step_of_mine_took_and_may_be_in_another() -> None:
    mine = ledger(step(1, "0", members=()), step(1, "0", "1", members=(OTHER,), groups=b""))
    assert lost(mine, 1, "1", "0") == [1]
    assert [each.members for each in mine.split(HeldPolicy(1, digest("2"), digest("0")))[0]] == [()]


def test_a_contribution_is_not_in_the_release_of_a_list_that_an_earlier_life_took() -> None:
    of_other = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=1)
    took = step(1, "0", members=(OTHER,), groups=b"theirs..")
    mine = ledger(step(1, "0", members=()), took, releases=(of_other,))
    assert mine.split(HeldPolicy(1, digest("1"), digest("0"))) == ([took], [mine.mine[0]])


def test_a_step_before_a_kill_is_told_by_the_release_of_its_round() -> None:
    of_me = release(version=1, weights=digest("1"), parent=digest("0"), publisher=ME, learners=1)
    mine = ledger(step(1, "0"))
    assert not mine.report(0, ())
    assert [each.weights for each in mine.report(0, (of_me,))] == [digest("1")]


def test_of_two_tries_of_a_round_in_two_lives_the_one_with_as_many_groups_made_the_release() -> None:
    """The first one made nothing: its groups are trained again."""
    of_me = release(version=1, weights=digest("1"), parent=digest("0"), publisher=ME, learners=1, groups=1)
    assert ledger(step(1, "0", groups=b"6 groups" * 6)).report(0, [of_me]) == []


def test_a_checkpoint_names_the_step_that_made_it() -> None:
    mine = ledger(step(1, "0"), step(2, "1"), step(2, "1", members=()), step(3, "2"))
    mine.resume(HeldPolicy(2, digest("2"), digest("1")))
    assert [each.weights for each in mine.report(0, ())] == [digest("2")]


def test_a_step_without_known_weights_counts_where_the_release_is_of_its_round() -> None:
    together = step(1, "0", members=(ME, OTHER))
    of_both = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=2)
    of_other = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=1)
    assert lost(ledger(together, releases=(of_both,)), 1, "1") == []
    assert lost(ledger(together, releases=(of_other,)), 1, "1") == [1]


def test_a_member_whose_bytes_differ_from_the_rounds_release_is_in_it() -> None:
    both = release(version=1, weights=digest("1"), parent=digest("0"), publisher=OTHER, learners=2)
    assert lost(ledger(step(1, "0", "e", members=(ME, OTHER)), releases=(both,)), 1, "1") == []


def test_a_rounds_step_with_other_bytes_may_be_in_a_release_until_somebody_says_what_that_has() -> None:
    mine = ledger(step(1, "0", "e", members=(ME, OTHER)))
    policy = HeldPolicy(2, digest("2"), digest("1"))
    assert lost(mine, 2, "2", "1") == [] and mine.unsure(policy)
    theirs = step(1, "0", "1", members=(ME, OTHER))
    mine.receive([theirs])
    assert theirs in mine.split(policy)[0] and not mine.unsure(policy)


def test_a_step_that_was_taken_again_from_a_checkpoint_does_not_stand_for_the_first_one() -> None:
    again = release(version=1, weights=digest("b"), parent=digest("0"), publisher=ME, learners=1)
    mine = ledger(step(1, "0", "a"), step(1, "0", "b", groups=b"another."), releases=(again,))
    assert lost(mine, 1, "b", "0") == [1]
    assert lost(mine, 1, "a", "0") == [1]


def test_a_try_that_made_nothing_is_replaced_by_the_next_one_of_the_same_round() -> None:
    mine = ledger(step(1, "0"), step(1, "0", groups=b"another."))
    assert [each.groups for each in mine.mine] == [b"another."]


def test_what_others_stepped_says_which_groups_are_in_the_line() -> None:
    mine = ledger(step(1, "0", "1"))
    mine.receive([step(2, "1", "2", groups=b"theirs.."), step(2, "1", "e", groups=b"forked..")])
    steps, _ = mine.split(HeldPolicy(2, digest("2"), digest("1")))
    assert {each.groups for each in steps} == {bytes([1]) * 8, b"theirs.."}
    assert {each.weights for each in mine.report(0, ())} == {digest("1"), digest("2"), digest("e")}


def test_a_step_below_what_is_known_of_the_line_counts_as_trained() -> None:
    mine = ledger(step(1, "0", "1"))
    assert lost(mine, 9, "9", "8") == [] and mine.unsure(HeldPolicy(9, digest("9"), digest("8")))


def test_steps_below_a_version_are_forgotten() -> None:
    mine = ledger(*(step(version, "0", "1") for version in range(1, 5)))
    mine.forget(3)
    assert [each.version for each in mine.mine] == [3, 4]


def test_steps_beside_the_policys_line_are_lost() -> None:
    theirs = (
        release(version=1, weights=digest("a"), parent=digest("0"), publisher=OTHER),
        release(version=2, weights=digest("b"), parent=digest("a"), publisher=OTHER),
    )
    mine = ledger(step(1, "0", "1"), step(2, "1", "2"), step(3, "2", "3"), releases=theirs)
    assert lost(mine, 3, "c", "b") == [1, 2, 3]


def test_no_step_from_another_version_made_one_that_others_tell_of() -> None:
    told = Line(weights=tuple(map(digest, "3210")), groups=(1, 1, 1, 1))
    mine = ledger(step(1, "0", "a"), step(2, "a", groups=b"not made"), told=told, version=3)
    assert lost(mine, 3, "3") == [1, 2] and not mine.unsure(HeldPolicy(3, digest("3"), Digest("")))


def test_a_step_alone_of_an_earlier_life_made_what_i_released_and_nothing_else() -> None:
    of_me = release(version=2, weights=digest("a"), parent=digest("1"), publisher=ME, learners=1)
    line = Line(weights=tuple(map(digest, "3210")), groups=(1, 1, 1, 1))
    mine = ledger(step(1, "0", "1"), step(2, "1"), releases=(of_me,), told=line, version=3)
    assert lost(mine, 3, "3") == [] and mine.unsure(HeldPolicy(3, digest("3"), Digest("")))
    mine.recall((of_me,))
    assert lost(mine, 3, "3") == [2] and not mine.unsure(HeldPolicy(3, digest("3"), Digest("")))
    assert lost(mine, 2, "a", "1") == []


def test_a_step_is_not_recalled_by_a_release_of_others_or_of_another_try() -> None:
    of_other = release(version=1, weights=digest("a"), parent=digest("0"), publisher=OTHER, learners=1)
    of_me = release(version=1, weights=digest("a"), parent=digest("0"), publisher=ME, learners=1)
    again = release(version=1, weights=digest("b"), parent=digest("0"), publisher=ME, learners=1)
    of_both = release(version=1, weights=digest("a"), parent=digest("0"), publisher=ME, learners=2)
    for mine, announced in (
        (ledger(step(1, "0")), (of_other,)),
        (ledger(step(1, "0")), (of_me, again)),
        (ledger(step(1, "0", members=(ME, OTHER))), (of_both,)),
        (ledger(step(1, "0", members=())), (of_me,)),
    ):
        mine.recall(announced)
        assert not mine.mine[-1].weights


def test_a_step_of_an_earlier_life_is_told_by_its_own_release_alone() -> None:
    other = release(version=1, weights=digest("2"), parent=digest("9"), publisher=ME, learners=1)
    mine = ledger(step(1, "0"), releases=(other,))
    assert mine.report(0, [other]) == []


def test_weights_are_those_of_the_last_step_alone_and_a_policy_of_its_own_step() -> None:
    mine = ledger(step(2, "1"))
    mine.name(1, digest("7"))
    assert mine.mine[0].weights == ""
    mine.resume(HeldPolicy(3, digest("7"), digest("1")))
    assert mine.mine[0].weights == ""
    mine.resume(HeldPolicy(2, digest("7"), digest("5")))
    assert mine.mine[0].weights == ""
    mine.resume(HeldPolicy(2, digest("7"), digest("1")))
    assert mine.mine[0].weights == digest("7")
