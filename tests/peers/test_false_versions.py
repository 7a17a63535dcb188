"""Who may be followed where: a learner that announces a version far ahead of the others, or one that goes on
from nothing, is refused and named; one that was cut off and is far ahead waits for the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_missing_releases import LIAR, Liar
from test_roles_swarm import EPOCH, Told, scenario

from peers.runtime import release_doubts
from swarm.config import BatchSize
from swarm.events import Adopted, Forked, Rejected, Released, Trained
from swarm.sim.scenario import Fault
from swarm.types import Release

LIES: dict[str, Callable[[Liar, bytes], Release]] = {
    "a thousand versions ahead": lambda liar, data: liar.release(liar.newest() + 1000, data),
    "from nothing": lambda liar, data: liar.release(liar.newest() + 1, data),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_false_version_is_not_followed_and_its_sender_is_named(
    lie: Callable[[Liar, bytes], Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    false: list[Release] = []

    async def lies(liar: Liar) -> None:
        def told() -> Release:
            false.append(lie(liar, liar.learner.weights().data))
            return false[-1]

        for at in (12.0, 14.0, 16.0, 18.0, 20.0):
            await liar.tell(at, told)

    monkeypatch.setattr(Liar, "lies", lies, raising=False)
    monkeypatch.setattr("peers.roles.learner.LearnerPeer", Liar)
    told = Told(scenario(0.6, (4, 4)))
    lied = {(release.version, release.weights) for release in false}
    assert len(false) == 5
    assert not [event for event in told.of(Adopted) if (event.version, event.weights) in lied]
    honest = [event.release for event in told.of(Released, "learner") if event.peer != LIAR]
    assert not [release for release in honest if (release.version - 1, release.parent) in lied]
    assert max(event.version for event in told.of(Trained)) < 1000
    assert len(told.of(Trained, since=21.0)) > 5
    named = {(event.peer, event.sender) for event in told.of(Rejected)}
    assert {sender for _, sender in named} == {LIAR} and len(named) > 4
    if false[0].version < 1000:
        assert len(told.of(Rejected, "learner-0")) == release_doubts.TRIES, "the others are not asked for"


def test_a_learner_that_was_cut_off_and_is_far_ahead_of_two_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release_doubts, "LEAD", 3)
    alone, two = (
        ("learner-0", "sampler-0", "sampler-1", "sampler-2"),
        ("learner-1", "learner-2", "sampler-3", "seed-0"),
    )
    cut = [
        Fault(at=15, fault="partition", between=(alone, two)),
        Fault(at=50, fault="repair", between=(alone, two)),
    ]
    told = Told(scenario(1.6, (3, 4), *cut, batch=BatchSize(groups=8, close_after=20.0)))
    apart = max(event.release.version for event in told.of(Released, "learner-0", until=50))
    others = [event for event in told.of(Released, "learner", until=50) if event.peer != "learner-0"]
    assert apart > max(event.release.version for event in others) + 3
    assert {event.peer for event in told.of(Forked)} == {"learner-1", "learner-2"}
    waited = [
        event.version
        for event in told.of(Trained, "learner-0", since=52, until=told.of(Forked)[0].at - EPOCH)
    ]
    assert len(waited) <= 1
    late = [event.release for event in told.of(Released, "learner", since=80)]
    assert max(one.learners for one in late) == 3
    assert len({one.version for one in late}) == len({one.weights for one in late}) > 3
