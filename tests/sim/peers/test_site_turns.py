"""When a site contributes, closes a list and waits for one, and what it undoes: parts of a still learner."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kept_groups import digest, heard, memory, scored, trained_in, waiting
from nouns import beat, group, release
from still_host import still_host

from peers.learner.checkpoints import Progress
from peers.learner.learner import LearnerPeer
from peers.learner.site_exchange import Taken
from peers.learner.sites import LEAST_PATIENCE, LocalSteps, SiteLearnerPeer
from swarm.core.agreement.rounds import Cause
from swarm.core.agreement.site_lists import Gathered
from swarm.core.agreement.state_sync import GOSSIP_SECONDS
from swarm.core.agreement.trained import mark
from swarm.events import Averaged, Dropped, Event, Returned, RoundBroke
from swarm.frames.site_types import Contribution, ListEntry
from swarm.learn.learners.site_learner import CountedContribution, SiteLearner
from swarm.learn.models.tabular import Tabular
from swarm.protocol import Kind, Role
from swarm.settings.config import Averaging, Config, ObjectiveSettings, Optimizer, Releasing, Run
from swarm.sim.clock import run
from swarm.tasks.toy import Toy
from swarm.types import PeerId

ME, OTHER, THIRD = map(PeerId, ("learner-0", "learner-1", "learner-2"))


def test_what_was_trained_is_counted_by_steps_and_its_figures_are_means_over_the_groups_that_have_them() -> (
    None
):
    trained = LocalSteps()
    trained.add(2, 1.5, {"reward": 1.0}, {"learn": 1.0})
    trained.add(6, 6.0, {"reward": 0.0, "kl": 0.5}, {"learn": 2.0, "step": 0.5})
    assert (trained.steps, trained.groups, trained.weight) == (2, 8, 7.5)
    assert trained.metrics() == {"reward": 0.25, "kl": 0.5}
    assert trained.seconds == {"learn": 3.0, "step": 0.5}


def site(host: Any, **parts: Any) -> SiteLearnerPeer:
    """At version 7."""
    peer = SiteLearnerPeer.__new__(SiteLearnerPeer)
    incarnations = {ME: 2, OTHER: 1, THIRD: 3}
    others = SimpleNamespace(ready=lambda: [*host.roster.learners()], incarnation=incarnations.__getitem__)
    its: dict[str, Any] = {"version": 7, "has_steps": True}
    own = SimpleNamespace(weights=digest(7))
    peer.host, peer.learner, peer.other_learners, peer.own_release = host, SimpleNamespace(**its), others, own  # type: ignore[assignment]
    peer._trained = LocalSteps()
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

            async def place() -> None:
                await trained._host.ports.clock.sleep(1.0)
                await trained.stepped({OTHER}, (), {OTHER: mark(group(2).id)})
                trained.placing = 0
                trained._host.move()

            trained.placing = 1
            network.tasks.create_task(place())
            peer = site(
                trained._host,
                trained=trained,
                checkpoints=SimpleNamespace(written=written),
                exchange=None,
                _trained=LocalSteps(steps=1, groups=2, batches=scored(trained, 1, 2)),
            )
            peer.learner.undo_steps = lambda: done.append("undone")  # type: ignore[method-assign]
            why = await peer._contribute()
            assert why is not None and "my version has some of the groups" in why
            assert done == ["written", "undone"] and waiting(trained) == [1]
            assert [type(event) for event in told] == [Returned, Dropped] and told[1].groups == (group(2).id,)
            assert peer._trained == LocalSteps()

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
            mine = LocalSteps(steps=2, groups=2, weight=1.5, batches=batches)
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
                host.roster.receive(peer, beat(name=peer, version=version), host.now())
            begun, steady = host.now(), host.steady()
            heard_at = {peer: begun + at for peer, at in gathered.received.items()}
            gathered.received.update(heard_at)
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
    one = site(SimpleNamespace(config=config), _trained=LocalSteps(steps=steps, seconds={"learn": learn}))
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


# --- steps --------------------------------------------------------------------------------------------------


def noting(calls: list[Any], name: str) -> Any:
    """An async function that notes its call."""

    async def noted(*args: Any) -> None:
        calls.append((name, *args))

    return noted


@pytest.mark.parametrize(
    ("steps", "others", "cause"),
    [
        (0, (), Cause.STEPPED_LOCALLY),
        (0, (ME,), Cause.STEPPED_LOCALLY),
        (0, (ME, OTHER), Cause.CONTRIBUTION_READY),
        (1, (), Cause.CONTRIBUTION_READY),
    ],
    ids=["one of two", "I contributed before", "another one waits", "two of two"],
)
def test_a_site_contributes_after_its_local_steps_or_when_another_one_waits(
    steps: int, others: tuple[PeerId, ...], cause: Cause
) -> None:
    calls = list[Any]()

    async def main() -> None:
        async with memory() as network:
            settings = Averaging(mode="sites", local_steps=2)
            host = still_host(network, ME, Role.LEARNER, Config(run=Run(averaging=settings)))

            async def stepped(*args: Any) -> dict[str, float]:
                calls.append(("step", *args))
                await host.ports.clock.sleep(4.0)
                return {"grad_norm": 2.0}

            one = site(
                host,
                exchange=SimpleNamespace(gathered=lambda: named(*others)),
                checkpoints=SimpleNamespace(written=noting(calls, "written")),
                inbox=SimpleNamespace(scored=list, report=lambda: calls.append("told")),
                _gradient=SimpleNamespace(weight=1.5, metrics={"kl": 0.5}),
                _gradients=SimpleNamespace(step=stepped),
                _batch=["a", "b"],
                _checks={},
                _faults=SimpleNamespace(recovered=lambda: calls.append("recovered")),
                _report=SimpleNamespace(
                    seconds={"gather": 1.0},
                    of_all=lambda gradient: gradient.metrics,
                    count=lambda *args: calls.append(("count", *args)),
                ),
                _drop_batch=lambda: calls.append("dropped"),
                _trained=LocalSteps(steps=steps, batches=["before"]),  # type: ignore[list-item]
            )
            one.learner.step_locally = "local"  # type: ignore[assignment, method-assign]
            begun = host.now()
            assert await one.step_locally() is cause
            assert calls == [
                ("written",),
                ("step", "local", one._gradient, one._batch),
                "recovered",
                ("count", one._batch, {}, one._gradient, 8, begun),
                "dropped",
                "told",
            ]
            mine = one._trained
            assert (mine.steps, mine.groups, mine.weight) == (steps + 1, 2, 1.5)
            assert mine.metrics() == {"kl": 0.5, "grad_norm": 2.0}
            assert mine.seconds == {"gather": 1.0, "step": 4.0} and mine.batches == ["before", "a", "b"]

    run(main())


def test_a_local_step_that_fails_counts_for_nothing() -> None:
    calls = list[Any]()

    async def main() -> None:
        async def failed(*args: Any) -> Cause:
            return Cause.OUT_OF_MEMORY

        one = site(
            SimpleNamespace(now=lambda: 0.0),
            checkpoints=SimpleNamespace(written=noting(calls, "written")),
            _gradient=object(),
            _gradients=SimpleNamespace(step=failed),
            _batch=["a"],
            _forget_batch=lambda: calls.append("forgotten"),
        )
        one.learner.step_locally = None  # type: ignore[assignment, method-assign]
        assert await one.step_locally() is Cause.OUT_OF_MEMORY
        assert calls == [("written",), "forgotten"] and one._trained == LocalSteps()

    run(main())


def test_a_sites_advantages_are_those_of_its_own_batch() -> None:
    async def main() -> None:
        async with memory() as network:
            objective, optimizer = ObjectiveSettings(name="ppo_clip"), Optimizer(lr=0.1)
            run_ = Run(averaging=Averaging(mode="sites"), objective=objective, optimizer=optimizer)
            host = still_host(network, ME, Role.LEARNER, Config(run=run_))
            host.roster.receive(OTHER, beat(name=OTHER, version=-1), host.now())
            decoder: Any = SimpleNamespace(vocabulary=8, decode_batch=list)
            one = SiteLearnerPeer(host, SiteLearner(Tabular(), run_), Toy(1, {}), decoder, None)
            begun = host.now()
            assert one.round_totals.of_round and not await one.round_totals.collect(-1)
            assert host.now() == begun and not one.round_totals.collected

    run(main())


def taken_of(*learners: PeerId) -> Taken:
    entries = [
        ListEntry(
            learner=one, root=digest(7), size=1, groups=4, weight=4.0, share=0.123456 if one == OTHER else 1.0
        )
        for one in learners
    ]
    return Taken(tuple(entries), (CountedContribution(b"counted", 1.0),), (1.0,), {OTHER: b"marks   "})


def stepping(host: Any, calls: list[Any], mine: bool, error: str = "") -> SiteLearnerPeer:
    """At version 7, with two steps that it contributed."""

    def outer_step(*args: Any) -> dict[str, float]:
        calls.append(("outer", *args))
        if error:
            raise ValueError(error)
        one.learner.version += 1
        return {"grad_norm": 2.0}

    def note(name: str) -> Any:
        return lambda *args: calls.append((name, *args))

    one = site(
        host,
        exchange=SimpleNamespace(mine=lambda _: mine, used=note("used"), refuse=note("refuse")),
        trained=SimpleNamespace(placed=noting(calls, "placed"), stepped=noting(calls, "stepped")),
        checkpoints=SimpleNamespace(written=noting(calls, "written")),
        _report=SimpleNamespace(seconds=None, trained=note("trained")),
        _trained=LocalSteps(
            steps=2,
            groups=8,
            sums={"reward": (8, 4.0)},
            seconds={"average": 3.0, "step": 0.5},
            contributed=True,
            batches=["batch"],  # type: ignore[list-item]
        ),
        _taken="the list",
    )
    one.learner.outer_step, one.learner.snapshot = outer_step, lambda: "snapshot"  # type: ignore[assignment, method-assign, return-value]
    own: Any = one.own_release
    own.begin, own.packed, own.wait_turns = note("begin"), noting(calls, "packed"), note("turns")
    return one


@pytest.mark.parametrize(
    ("mine", "members"), [(True, (OTHER, ME)), (False, (OTHER, ME)), (False, (OTHER, THIRD))]
)
def test_an_outer_step_counts_what_is_mine_in_its_list_and_leaves_the_rest_for_the_next(
    mine: bool, members: tuple[PeerId, ...]
) -> None:
    calls, taken = list[Any](), taken_of(*members)

    async def main() -> None:
        async with memory() as network:
            host = still_host(network, ME, Role.LEARNER, price=lambda kind: 4.0 if kind == Kind.STEP else 0.0)
            told = list[Averaged]()
            host.bus.add(lambda event: told.append(event) if isinstance(event, Averaged) else None)
            one = stepping(host, calls, mine)
            before = one._trained
            one._taken, one._save_in_turn = taken, noting(calls, "saved")  # type: ignore[method-assign]
            assert await one.step() is Cause.STEPPED
            made_of = Progress(parent=digest(7), learners=2, groups=8, stepped=True)
            metrics = {"reward": 0.5, "grad_norm": 2.0} if mine else {"grad_norm": 2.0}
            begun = [("begin", "snapshot", made_of, {*members})]
            if ME not in members:
                begun = [("begin", "snapshot", made_of), ("packed",), ("turns", 2)]
            assert calls == [
                ("placed",),
                ("stepped", {*members}, ["batch"] if mine else (), taken.marks),
                ("written",),
                ("outer", taken.counted, mine),
                ("used", taken),
                ("trained", 8 if mine else 0, metrics, 8, 2, 4.5 if mine else 4.0),
                *begun,
                ("saved",),
            ]
            assert one._report.seconds == (before.seconds if mine else {})
            assert not one._trained.contributed and one._taken is None
            assert (one._trained == LocalSteps()) if mine else (one._trained is before and before.steps == 2)
            (averaged,) = told
            assert (averaged.version, averaged.members) == (7, tuple(sorted(members)))
            assert (averaged.seconds, averaged.scaled) == (3.0, {OTHER: 0.123})

    run(main())


def test_a_list_that_makes_no_step_is_refused_and_changes_nothing() -> None:
    calls, taken = list[Any](), taken_of(ME)

    async def main() -> None:
        async with memory() as network:
            one = stepping(still_host(network, ME, Role.LEARNER), calls, True, "nothing fits")
            before = one._trained
            one._taken = taken
            assert await one.step() is Cause.ROUND_BROKE
            assert calls[-1] == ("refuse", "nothing fits") and [call[0] for call in calls].count("begin") == 0
            assert one._trained is before and before.contributed and before.steps == 2

    run(main())


# --- between versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "settled", "trained", "others", "found"),
    [
        (Cause.STOP, True, LocalSteps(steps=1), (OTHER,), Cause.STOP),
        (None, True, LocalSteps(steps=1), (OTHER,), Cause.CONTRIBUTION_READY),
        (None, True, LocalSteps(steps=1), (ME,), None),
        (None, True, LocalSteps(steps=1, contributed=True), (ME,), Cause.CONTRIBUTION_READY),
        (None, False, LocalSteps(steps=1), (OTHER,), None),
        (None, True, LocalSteps(), (OTHER,), None),
        (None, True, LocalSteps(), (ME,), None),
    ],
)
def test_who_gathers_contributes_what_it_has_when_another_one_waits(
    cause: Cause | None,
    settled: bool,
    trained: LocalSteps,
    others: tuple[PeerId, ...],
    found: Cause | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LearnerPeer, "_interrupted", lambda self, settled: cause)
    host: Any = SimpleNamespace(ports=SimpleNamespace(me=ME))
    one = site(host, _trained=trained, exchange=SimpleNamespace(gathered=lambda: named(*others)))
    assert one._interrupted(settled) is found
    assert one._closes_early() == (not trained.steps and OTHER in others), "a batch, while it has no step"


@pytest.mark.parametrize("settles", [0.0, 4.0])
def test_a_site_contributes_once_its_version_is_released_and_closes_the_list_in_its_turn(
    settles: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[Any]()

    async def main() -> None:
        async with memory() as network:
            host = still_host(network, ME, Role.LEARNER, Config(run=Run(averaging=Averaging(mode="sites"))))
            begun, listed = host.now(), SimpleNamespace(closed=False)

            async def take() -> Any:
                return "the list" if listed.closed else None

            async def close() -> None:
                calls.append(("close", host.now() - begun))
                listed.closed = True

            async def contribute() -> None:
                calls.append(("contribute", host.now() - begun))
                one._trained.contributed = True

            one = site(
                host,
                exchange=SimpleNamespace(
                    take=take, close=close, undecided=True, give_up=lambda: calls.append("given up")
                ),
                inbox=SimpleNamespace(credit=lambda: None),
            )
            one._contribute, one._may_close = contribute, lambda since: host.now() >= since + 10.0  # type: ignore[assignment, method-assign]
            own: Any = one.own_release
            own.is_settled = lambda: host.now() >= begun + settles
            own.is_overtaken = lambda: False
            assert await one.average() is Cause.AVERAGED and one._taken == "the list"  # type: ignore[comparison-overlap]
            (first, at), (last, until) = (call for call in calls if call != "given up")
            assert (first, last) == ("contribute", "close") and "given up" in calls
            beat = host.config.run.pace.beat
            assert settles <= at < settles + beat and 10.0 <= until < 10.0 + 2 * beat
            assert one._trained.seconds == {"average": until}

    run(main())


def test_a_site_closes_no_list_while_it_waits_for_what_another_one_names() -> None:
    async def main() -> None:
        async with memory() as network:
            host = still_host(network, ME, Role.LEARNER)
            begun = host.now()

            async def take() -> Any:
                return "the list" if host.now() >= begun + 9.0 else None

            exchange = SimpleNamespace(take=take, close=None, undecided=False, give_up=lambda: None)
            one = site(host, exchange=exchange, inbox=SimpleNamespace(credit=lambda: None))
            one._trained.contributed, one._may_close = True, lambda since: True  # type: ignore[method-assign]
            own: Any = one.own_release
            own.is_settled, own.is_overtaken = lambda: True, lambda: False
            assert await one.average() is Cause.AVERAGED

    run(main())


@pytest.mark.parametrize("ahead", [True, False])
def test_a_site_contributes_nothing_where_a_release_is_ahead_and_says_why_it_cannot(ahead: bool) -> None:
    async def main() -> None:
        async with memory() as network:
            host = still_host(network, ME, Role.LEARNER)
            told = list[Event]()
            host.bus.add(told.append)

            async def contribute() -> str:
                assert not ahead
                return "not finite"

            async def take() -> None:
                return None

            one = site(host, exchange=SimpleNamespace(take=take))
            one._contribute = contribute  # type: ignore[method-assign]
            own: Any = one.own_release
            own.is_settled, own.is_overtaken = lambda: True, lambda: ahead
            assert await one.average() is (Cause.AHEAD_SEEN if ahead else Cause.ROUND_BROKE)
            broke = [(event.version, event.reason) for event in told if isinstance(event, RoundBroke)]
            assert broke == ([] if ahead else [(7, "not finite")])

    run(main())


@pytest.mark.parametrize(
    ("missed", "steps", "loads", "contributed", "has_steps", "left"),
    [
        ("list", True, Cause.STOP, True, True, "as it was"),
        ("list", False, Cause.LOADED, True, True, "nothing"),
        (None, True, Cause.LOADED, True, True, "nothing"),
        (None, True, Cause.LOADED, False, True, "goes on"),
        (None, True, Cause.LOADED, False, False, "returned"),
        (None, True, Cause.FETCH_FAILED, True, False, "as it was"),
    ],
)
def test_what_a_site_trained_goes_on_from_what_it_takes_unless_that_may_have_it(
    missed: str | None,
    steps: bool,
    loads: Cause,
    contributed: bool,
    has_steps: bool,
    left: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[Any]()

    async def main() -> None:
        async def fetch(self: LearnerPeer) -> Cause:
            return loads

        async def find() -> Any:
            return missed

        async def outer(taken: Any) -> bool:
            assert taken == "list"
            return steps

        monkeypatch.setattr(LearnerPeer, "fetch", fetch)
        mine = LocalSteps(steps=1, contributed=contributed, batches=["batch"])  # type: ignore[list-item]
        one = site(
            SimpleNamespace(beat_now=lambda: calls.append("beat")),
            _trained=mine,
            _give_back_batch=lambda: calls.append("batch back"),
            trained=SimpleNamespace(undone=lambda batches: calls.append(("back", *batches))),
        )
        one._missed, one._outer_step = find, outer  # type: ignore[method-assign]
        one.learner.has_steps = has_steps  # type: ignore[misc]
        own: Any = one.own_release
        own.packed = noting(calls, "packed")
        took = missed is not None and steps
        assert await one.fetch() is (Cause.LOADED if took else loads)
        made = ["batch back", ("packed",), "beat"] if took else []
        assert calls == made + ([("back", "batch")] if left == "returned" else [])
        if left in ("as it was", "goes on"):
            assert one._trained is mine and mine.contributed == (left == "as it was" and contributed)
        else:
            assert one._trained == LocalSteps()

    run(main())
