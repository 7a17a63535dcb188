"""Groups that wait for their replay, and whose groups wait with them."""

from __future__ import annotations

from dataclasses import replace

from nouns import group

from peers.audits.replay_queue import UNPROVEN, WAITING, QueuedReplay, ReplayQueue
from peers.audits.shown_groups import AccusedGroup
from swarm.core.audits.accusations import Claim
from swarm.storage.blocks import Blocks
from swarm.storage.weights import Weights
from swarm.types import Digest, PeerId

NEW, KNOWN = PeerId("new"), PeerId("known")


def drawn(number: int, sampler: PeerId) -> QueuedReplay:
    return QueuedReplay(group(number, sampler=sampler), b"", "", Weights(0, Blocks.of(b"weights")))


def accused_of(number: int, sampler: PeerId) -> QueuedReplay:
    one = drawn(number, sampler)
    claim = Claim(sampler, Digest(f"{number:064x}"), 0, Digest(""))
    return replace(one, shown=AccusedGroup(PeerId("auditor"), claim, one.group, b"", ""))


def test_a_newcomer_s_first_group_comes_before_all_that_wait_longer() -> None:
    queue = ReplayQueue(lambda sampler: sampler == KNOWN)
    for number in range(3):
        queue.append(drawn(number, KNOWN))
    queue.append(drawn(3, NEW))
    assert [*queue.unproven] == [NEW]
    assert [queue.take(Digest("")).group.sampler for _ in range(4)] == [NEW, KNOWN, KNOWN, KNOWN]


def test_it_is_unproven_until_a_replay_was_honest_or_tells_nothing_and_no_other_is_to_come() -> None:
    honest = set[PeerId]()
    queue = ReplayQueue(honest.__contains__)
    for number in range(3):
        queue.append(drawn(number, NEW))
    queue.take(None)
    queue.settle(NEW)
    assert NEW in queue.unproven
    honest.add(NEW)
    queue.settle(NEW)
    assert NEW not in queue.unproven
    honest.clear()
    queue.append(drawn(3, NEW))
    for _ in range(3):
        queue.take(None)
    queue.settle(NEW)
    assert not queue.unproven


def test_who_floods_the_queue_gets_nothing_past_it() -> None:
    queue = ReplayQueue(lambda sampler: False)
    let_go = [queue.append(drawn(number, PeerId(f"name-{number}"))) for number in range(WAITING + 3)]
    assert [one.group.sampler for one in let_go if one is not None] == ["name-0", "name-1", "name-2"]
    assert "name-0" in queue.unproven
    for number in range(UNPROVEN):
        queue.append(drawn(number, PeerId(f"more-{number}")))
    assert len(queue.unproven) == UNPROVEN


def test_who_sends_much_displaces_nobody_s_only_group() -> None:
    queue = ReplayQueue(lambda sampler: False)
    queue.append(drawn(0, NEW))
    let_go = [queue.append(drawn(number, KNOWN)) for number in range(1, WAITING + 3)]
    oldest = [drawn(number, KNOWN).group.id for number in (1, 2, 3)]
    assert [one.group.id for one in let_go if one is not None] == oldest
    for _ in range(WAITING):
        queue.settle(queue.take(None).group.sampler)
    assert not queue.unproven


def test_who_sends_much_displaces_no_group_that_others_accuse() -> None:
    queue = ReplayQueue(lambda sampler: False)
    accused = accused_of(0, NEW)
    queue.append(accused)
    let_go = [queue.append(drawn(number, NEW)) for number in range(1, 3 * WAITING)]
    assert accused not in let_go and queue.take(None) is accused


def test_new_names_without_end_keep_no_accused_group_from_its_replay() -> None:
    queue = ReplayQueue(lambda sampler: sampler == KNOWN)
    for number in range(3):
        queue.append(accused_of(number, KNOWN))
    taken = list[PeerId]()
    for number in range(20):
        queue.append(drawn(number, PeerId(f"name-{number}")))
        taken.append(queue.take(Digest("")).group.sampler)
    assert [*map(KNOWN.__eq__, taken[:7])] == [True, False, True, False, True, False, False]


def test_groups_of_a_suspect_come_before_those_of_others_and_wait_for_no_replay() -> None:
    queue = ReplayQueue(lambda sampler: True, lambda sampler: sampler == NEW)
    for number, sampler in enumerate((KNOWN, KNOWN, NEW)):
        queue.append(drawn(number, sampler))
    assert not queue.unproven
    assert [queue.take(Digest("")).group.sampler for _ in range(3)] == [NEW, KNOWN, KNOWN]
