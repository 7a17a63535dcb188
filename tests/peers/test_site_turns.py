"""When a site contributes, closes a list and waits for one, and what it undoes: parts of a still learner."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nouns import beat, group, release
from still_host import still_host
from test_kept_groups import digest, heard, memory, scored, trained_in, waiting

from peers.roles.sites import LEAST_PATIENCE, SiteLearnerPeer, Trained
from swarm.config import Averaging, Config, Releasing, Run
from swarm.core.site_lists import Gathered
from swarm.core.solo_turns import GOSSIP_SECONDS
from swarm.core.trained import mark
from swarm.events import Dropped, Returned
from swarm.protocol import Role
from swarm.sim.clock import run
from swarm.site_types import Contribution
from swarm.types import PeerId

ME, OTHER, THIRD = map(PeerId, ("learner-0", "learner-1", "learner-2"))


def test_what_was_trained_is_counted_by_steps_and_its_figures_are_means_over_groups() -> None:
    trained = Trained()
    trained.add(2, 1.5, {"reward": 1.0}, {"learn": 1.0})
    trained.add(6, 6.0, {"reward": 0.0, "kl": 0.5}, {"learn": 2.0, "step": 0.5})
    assert (trained.steps, trained.groups, trained.weight) == (2, 8, 7.5)
    assert trained.metrics() == {"reward": 0.25, "kl": 0.375}
    assert trained.seconds == {"learn": 3.0, "step": 0.5}


def site(host: Any, **parts: Any) -> SiteLearnerPeer:
    """At version 7."""
    peer = SiteLearnerPeer.__new__(SiteLearnerPeer)
    incarnations = {ME: 2, OTHER: 1, THIRD: 3}
    others = SimpleNamespace(ready=lambda: [*host.roster.learners()], incarnation=incarnations.__getitem__)
    its: dict[str, Any] = {"version": 7, "has_steps": True}
    own = SimpleNamespace(weights=digest(7))
    peer.host, peer.learner, peer.other_learners, peer.own_release = host, SimpleNamespace(**its), others, own  # type: ignore[assignment]
    peer._trained = Trained()
    for name, part in parts.items():
        setattr(peer, name, part)
    return peer


def test_a_site_undoes_steps_on_groups_that_its_version_has_and_trains_the_others_again() -> None:
    done = list[str]()

    async def written() -> None:
        done.append("written")

    async def main() -> None:
        async with memory() as network:
            trained = trained_in(network, None, [7])
            told = heard(trained, Returned, Dropped)
            await trained.stepped({OTHER}, (), {OTHER: mark(group(2).id)})
            peer = site(
                trained._host,
                trained=trained,
                checkpoints=SimpleNamespace(written=written),
                exchange=None,
                _trained=Trained(steps=1, groups=2, batches=scored(trained, 1, 2)),
            )
            peer.learner.undo_steps = lambda: done.append("undone")  # type: ignore[method-assign]
            why = await peer._contribute()
            assert why is not None and "my version has some of the groups" in why
            assert done == ["written", "undone"] and waiting(trained) == [1]
            assert [type(event) for event in told] == [Returned, Dropped] and told[1].groups == (group(2).id,)
            assert peer._trained == Trained()

    run(main())


@pytest.mark.parametrize("finite", [True, False])
def test_what_a_site_contributes_is_kept_as_contributed_and_once_named_never_again(
    tmp_path: Path, finite: bool
) -> None:
    said = list[tuple[int, float, bytes]]()

    async def contribute(*what: Any) -> None:
        if not finite:
            raise ValueError("not finite")
        said.append(what)  # type: ignore[arg-type]

    async def main() -> None:
        async with memory() as network:
            trained = trained_in(network, tmp_path, [7])
            batches = scored(trained, 1, 2)
            mine = Trained(steps=2, groups=2, weight=1.5, batches=batches)
            peer = site(
                trained._host,
                trained=trained,
                exchange=SimpleNamespace(contribute=contribute),
                _trained=mine,
                _batch=[],
                next_gradient=SimpleNamespace(batch=[]),
            )
            assert peer._under_way() == [item for item, _ in batches]
            assert await peer._contribute() == (None if finite else "not finite")
            marks = mark(group(1).id) + mark(group(2).id)
            assert said == ([(2, 1.5, marks)] if finite else []) and mine.contributed == finite
            assert (peer._under_way() == []) == finite
            (step,) = trained._ledger.mine
            assert (step.version, step.parent, step.members, step.groups) == (8, digest(7), (), marks)

    run(main())


def named(*learners: PeerId, here: int = 9, at: float = 0.0) -> Gathered:
    """Contributions of these to version 7, of which the first `here` are here."""
    gathered = Gathered(digest(7))
    for k, learner in enumerate(learners):
        one = Contribution(
            version=7, weights=digest(7), learner=learner, root=digest(k), size=1, groups=1, weight=1.0
        )
        gathered.name(one, at)
        if k < here:
            gathered.norms[learner] = 1.0
    return gathered


@pytest.mark.parametrize(
    ("gathered", "versions", "closes"),
    [
        (named(ME), {}, 0.0),
        (named(ME, THIRD), {THIRD: 7}, 0.0),
        (named(ME), {THIRD: 7}, 30.0),
        (named(ME), {THIRD: 6}, 30.0),
        (named(ME), {THIRD: 5}, 0.0),
        (named(ME), {THIRD: 8}, 0.0),
        (named(OTHER, ME), {OTHER: 7}, 34.0),
        (named(ME, THIRD, here=1), {THIRD: 7}, 30.0),
        (named(ME, THIRD, here=1, at=55.0), {THIRD: 7}, 65.0),
    ],
    ids=[
        "alone",
        "all are here",
        "one did not contribute",
        "nor one that is about to hear of the release",
        "one that is behind",
        "one that is ahead",
        "an older one contributed",
        "one does not come",
        "one is on its way",
    ],
)
def test_a_list_is_closed_in_turn_when_all_are_here_or_the_time_is_up(
    gathered: Gathered, versions: dict[PeerId, int], closes: float
) -> None:
    run_ = Run(averaging=Averaging(mode="sites", deadline=30.0), release=Releasing(timeout=4.0))

    async def main() -> None:
        async with memory() as network:
            host = still_host(network, ME, Role.LEARNER, Config(run=run_))
            for peer, version in versions.items():
                host.roster.hear(peer, beat(name=peer, version=version), host.now())
            begun, steady = host.now(), host.steady()
            heard_at = {peer: begun + at for peer, at in gathered.heard.items()}
            gathered.heard.update(heard_at)
            one = site(host, exchange=SimpleNamespace(gathered=lambda: gathered))
            while not one._may_close(begun):
                await host.ports.clock.sleep(0.25)
            assert host.steady() - steady == pytest.approx(closes, abs=0.26)

    run(main())


@pytest.mark.parametrize(
    ("deadline", "learn", "steps", "seconds"),
    [(7.0, 90.0, 3, 7.0), (0.0, 9.0, 3, LEAST_PATIENCE), (0.0, 90.0, 3, 60.0), (0.0, 90.0, 0, 180.0)],
)
def test_a_site_waits_for_the_others_as_long_as_two_of_its_gradients_take(
    deadline: float, learn: float, steps: int, seconds: float
) -> None:
    config = Config(run=Run(averaging=Averaging(mode="sites", deadline=deadline)))
    one = site(SimpleNamespace(config=config), _trained=Trained(steps=steps, seconds={"learn": learn}))
    assert one._patience() == seconds


@pytest.mark.parametrize(
    ("ahead", "parent", "undecided", "comes", "waits"),
    [
        (None, 7, False, None, 0.0),
        (8, 6, False, 0.0, 0.0),
        (8, 7, True, None, GOSSIP_SECONDS),
        (8, 7, False, None, 30.0),
        (9, 6, False, None, 30.0),
        (8, 7, False, 3.0, 3.0),
    ],
    ids=["nothing is ahead", "of another line", "no list", "a list in part", "two ahead", "a list"],
)
def test_a_site_that_is_behind_waits_for_the_list_that_the_release_was_made_of(
    ahead: int | None, parent: int, undecided: bool, comes: float | None, waits: float
) -> None:
    run_ = Run(averaging=Averaging(mode="sites", deadline=30.0))

    async def main() -> None:
        async with memory() as network:
            host = still_host(network, ME, Role.LEARNER, Config(run=run_))
            start, taken = host.steady(), object()

            async def take() -> object | None:
                return taken if comes is not None and host.steady() - start >= comes else None

            def awaited(above: tuple[int]) -> Any:
                assert above == (8,)
                return None if ahead is None else release(version=ahead, parent=digest(parent))

            one = site(host, exchange=SimpleNamespace(take=take, undecided=undecided))
            one.own_release.next = SimpleNamespace(awaited=awaited)  # type: ignore[assignment]
            found = await one._missed()
            assert found is (taken if waits == 3.0 else None)
            assert host.steady() - start == pytest.approx(waits, abs=host.config.run.pace.beat)

    run(main())
