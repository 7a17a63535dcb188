"""Which lines a learner merges, when it is its turn, and what it keeps of its own: a learner that does not
run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kept_groups import digest, memory
from nouns import release
from still_host import still_host

from peers.learner.agreement.merging import Merging, Mine
from peers.learner.agreement.own_release import Had
from peers.learner.checkpoints import Progress
from peers.runtime.host import Host
from swarm.core.agreement.lineage import Fork
from swarm.core.agreement.solo_turns import GOSSIP_SECONDS
from swarm.events import Event, Forked
from swarm.learn.learners.learner import Learner
from swarm.learn.models.tabular import Tabular
from swarm.net.ports import NetError
from swarm.protocol import Role
from swarm.settings.config import Config, Optimizer, Releasing, Run, Window
from swarm.sim.clock import run
from swarm.storage.blocks import Damaged
from swarm.types import Digest, Merge, PeerId

ME, OTHER = PeerId("learner-0"), PeerId("learner-1")
MINE = (8, digest(8))
THEIRS = release(version=9, weights=Digest("9" * 64), parent=digest(1), publisher=OTHER)
LOST = tuple((version, digest(version)) for version in (8, 7, 6))
FORK = Fork(5, LOST, 30, 10)
WINDOW = Window(versions=6, seconds=60.0)


class Parts:
    """What a learner that merges stands on; the first release of its `fork` came `age` seconds ago."""

    def __init__(self, host: Host, fork: Fork | None = FORK, age: float | None = 1.0) -> None:
        self.host, self.learner, self.told = host, Learner(Tabular(), Run(optimizer=Optimizer(lr=0.1))), []
        self.learner.version = 8
        self.asked: list[Any] = []
        self.there: list[PeerId] = []
        self.publishes, self.overtaken, self.settled = [True, True, False], False, True
        host.bus.add(self.told.append)

        async def forked(mine: Any, theirs: Any) -> Fork | None:
            self.asked.append((mine, theirs))
            return fork

        came = [] if age is None else [host.now() - age, host.now() - age - 5.0]
        self.releases: Any = SimpleNamespace(
            lines=SimpleNamespace(fork=forked),
            known=lambda *point: came if fork is not None and point == fork.lost[-1] else [],
            released_here=lambda one: one,
        )
        host.releases = self.releases
        self.own: Any = SimpleNamespace(
            awaited=lambda: THEIRS,
            is_publishing=lambda: self.publishes.pop(0),
            is_overtaken=lambda: self.overtaken,
            is_settled=lambda: self.settled,
        )
        self.falls: list[tuple[float, bool]] = []
        start = host.steady()
        self.others: Any = SimpleNamespace(
            most=9.0,
            incarnation={ME: 2, OTHER: 1}.__getitem__,
            at_point=lambda point: self.there if point == MINE else [],
            set_syncing=lambda falls: self.falls.append((host.steady() - start, falls)),
        )
        self.merging = Merging(host, self.learner, self.own, self.others)

    def had(self, **changes: Any) -> Had:
        return Had(version=8, weights=digest(8), parent=digest(7), members=(), released=MINE)._replace(
            **changes
        )


Promise = Callable[[Parts], Awaitable[None]]


def with_parts(
    promise: Promise, fork: Fork | None = FORK, age: float | None = 1.0, rule: Any = "merge"
) -> None:
    async def main() -> None:
        async with memory() as network:
            config = Config(run=Run(release=Releasing(fork=rule), window=WINDOW))
            await promise(Parts(still_host(network, ME, Role.LEARNER, config), fork, age))

    run(main())


@pytest.mark.parametrize(
    ("fork", "age", "is_merged"),
    [
        (FORK, 1.0, True),
        (FORK._replace(lost=LOST[1:]), 1.0, True),
        (FORK._replace(lost=LOST[2:]), 1.0, False),
        (FORK._replace(groups=0), 1.0, False),
        (FORK, 54.0, True),
        (FORK, 55.0, False),
        (FORK, None, False),
        (FORK._replace(since=4), 1.0, True),
        (FORK._replace(since=3), 1.0, False),
        (None, 1.0, False),
    ],
    ids=[
        "young",
        "of two versions",
        "of one version",
        "of no group",
        "nearly too old",
        "too old",
        "of an age that is not known",
        "nearly too many versions",
        "too many versions",
        "not known",
    ],
)
def test_a_line_of_several_versions_is_merged_while_it_is_younger_than_the_window(
    fork: Fork | None, age: float | None, is_merged: bool
) -> None:
    async def promise(parts: Parts) -> None:
        assert await parts.merging._is_mergeable(parts.had()) == is_merged
        assert parts.asked == [(MINE, THEIRS)]

    with_parts(promise, fork, age)


@pytest.mark.parametrize(
    "changes",
    [{"version": 0}, {"version": 9, "parent": digest(1), "members": (ME, OTHER)}],
    ids=["no version", "of my round"],
)
def test_what_is_no_line_of_mine_is_not_merged(changes: dict[str, Any]) -> None:
    async def promise(parts: Parts) -> None:
        assert not await parts.merging._is_mergeable(parts.had(**changes)) and not parts.asked

    with_parts(promise)


def test_nothing_is_merged_where_the_longest_line_counts_or_no_release_is_ahead() -> None:
    async def never(parts: Parts) -> None:
        assert not await parts.merging._is_mergeable(parts.had())

    async def alone(parts: Parts) -> None:
        parts.own.awaited = lambda: None
        await never(parts)

    with_parts(never, rule="longest")
    with_parts(alone)


@pytest.mark.parametrize(("first", "waits"), [(True, 0.0), (False, 9.0)], ids=["first", "the other is gone"])
def test_the_first_at_the_end_of_a_line_keeps_its_policy_and_the_next_one_after_a_while(
    first: bool, waits: float
) -> None:
    async def promise(parts: Parts) -> None:
        kept, host = list[tuple[Any, float]](), parts.host
        start = host.steady()

        async def copy(point: Any) -> None:
            kept.append((point, host.steady() - start))

        parts.merging._copy = copy  # type: ignore[method-assign]
        parts.there = [] if first else [OTHER]
        await parts.merging.keep(parts.had())
        ((point, at),) = kept
        assert point == MINE and at == pytest.approx(waits, abs=host.config.run.pace.beat)

    with_parts(promise)


def test_a_policy_that_cannot_be_merged_any_more_is_forgotten() -> None:
    async def promise(parts: Parts) -> None:
        parts.merging._mine = Mine(MINE, {})
        await parts.merging.keep(parts.had(version=0))
        assert parts.merging._mine is None
        assert await parts.merging.merge(THEIRS) is None and not parts.falls

    async def old(parts: Parts) -> None:
        parts.merging._mine = Mine(MINE, {})
        assert await parts.merging.merge(THEIRS) is None
        assert parts.merging._mine is None and not parts.falls

    with_parts(promise)
    with_parts(old, age=61.0)


def test_a_merge_is_the_mean_of_both_by_their_groups_and_names_both() -> None:
    async def promise(parts: Parts) -> None:
        theirs = parts.learner.masters()
        mine = {name: value + 4.0 for name, value in theirs.items()}
        parts.merging._mine = Mine(MINE, mine)
        made = await parts.merging.merge(THEIRS)
        assert made == Progress(
            parent=THEIRS.weights, learners=1, groups=30, merged=Merge(version=8, weights=digest(8))
        )
        for name, value in parts.learner.masters().items():
            torch.testing.assert_close(value, theirs[name] + 4.0 * 30 / 40)
        assert [falls for _, falls in parts.falls] == [True] and parts.asked == [(MINE, THEIRS)]

    with_parts(promise)


@pytest.mark.parametrize("settled", [True, False])
def test_the_others_wait_until_a_merge_is_released_and_one_that_was_not_is_tried_again(settled: bool) -> None:
    async def promise(parts: Parts) -> None:
        kept = Mine(MINE, parts.learner.masters())
        parts.merging._mine, parts.settled = kept, settled
        assert await parts.merging.merge(THEIRS) is not None
        parts.told.clear()
        await parts.merging.released()
        beats = 2 * parts.host.config.run.pace.beat
        assert parts.falls[1:] == [(pytest.approx(beats + GOSSIP_SECONDS), False)]
        told: list[Event] = parts.told
        if not settled:
            assert parts.merging._mine is kept and not told
            return
        (forked,) = told
        assert isinstance(forked, Forked) and parts.merging._mine is None
        assert (forked.version, forked.since, forked.versions) == (parts.learner.version, 5, 3)
        assert (forked.groups, forked.first, forked.share) == (30, digest(6), 0.75)

    with_parts(promise)


def test_a_merge_that_another_release_overtakes_is_waited_for_no_longer() -> None:
    async def promise(parts: Parts) -> None:
        parts.overtaken = True
        await parts.merging.released()
        assert parts.falls == [(pytest.approx(GOSSIP_SECONDS), False)]

    with_parts(promise)


def test_what_is_kept_is_the_policy_as_it_was_released_and_the_learner_goes_on_from_its_steps() -> None:
    async def promise(parts: Parts) -> None:
        learner, fetched = parts.learner, list[Any]()
        packed = learner.snapshot().packed()
        then = learner.masters()
        learner.step(torch.ones(learner.size))
        stepped = learner.masters()

        async def fetch(one: Any) -> Any:
            fetched.append(one)
            return packed

        parts.releases.named = lambda *point: point
        parts.releases.fetch = fetch
        await parts.merging._copy(MINE)
        mine = parts.merging._mine
        assert mine is not None and mine.point == MINE and fetched == [MINE]
        for name, value in then.items():
            torch.testing.assert_close(mine.masters[name], value)
            assert torch.equal(learner.masters()[name], stepped[name])
            assert not torch.equal(stepped[name], value)
        assert learner.version == 9
        await parts.merging._copy(MINE)
        assert len(fetched) == 1, "it was tried before"

    with_parts(promise)


@pytest.mark.parametrize("error", [NetError("gone"), Damaged("changed"), None])
def test_a_release_of_mine_that_cannot_be_had_leaves_nothing_to_merge(error: Exception | None) -> None:
    async def promise(parts: Parts) -> None:
        lost = list[Digest]()

        async def fetch(one: Any) -> Any:
            assert error is not None
            raise error

        async def lose(weights: Digest) -> None:
            lost.append(weights)

        parts.releases.named = lambda *point: release(weights=digest(8)) if error is not None else None
        parts.releases.fetch, parts.releases.lose = fetch, lose
        parts.merging._mine = Mine((7, digest(7)), {})
        await parts.merging._copy(MINE)
        assert parts.merging._mine is None
        assert lost == ([digest(8)] if isinstance(error, Damaged) else [])

    with_parts(promise)
