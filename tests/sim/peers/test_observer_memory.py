"""What a window keeps of a swarm: over a restart, from a seed when it comes late, and with a bad file or a
full disk."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nouns import beat
from still_host import membership, still_host

from dashboard.fold import snapshot
from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from peers import observer as module
from peers.observer import ANSWER_LIMIT, SAVE, Observer
from peers.runtime.host import Host
from swarm import events
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.net.memory.network import EPOCH, MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import Config, DelayLaw, Run
from swarm.sim.clock import VirtualLoop
from swarm.sim.links import SimLinks
from swarm.types import PeerId

SEED, LEARNER = PeerId("seed"), PeerId("learner")
YEAR = 365 * 86400.0
CONFIG = Config(run=Run(name="watch"))


class World:
    """Peers in memory, on a clock that jumps; `journal` has everybody's events."""

    def __init__(self, network: MemoryNetwork, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.journal: list[events.Event] = []

    @asynccontextmanager
    async def window(
        self, name: str = "window", role: Role = Role.OBSERVER, member: bool = True
    ) -> AsyncIterator[tuple[Host, Observer]]:
        """A host that observes, and its watch, for as long as the block runs."""
        host = still_host(
            self.network,
            name,
            role,
            CONFIG,
            price=lambda kind: 0.01,
            membership=membership(name, role) if member else None,
            observes=True,
        )
        host.bus.add(self.journal.append)
        watch = Observer(host, self.folder / name)
        async with watch.running(), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(host.run(host.stop.wait))
            try:
                yield host, watch
            finally:
                host.leave()
                await running
        self.network.crash(PeerId(name))

    def warnings(self) -> list[str]:
        return [
            event.text
            for event in self.journal
            if isinstance(event, events.Noted) and event.level == "warning"
        ]


def in_world(folder: Path, body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.02), 12.5e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            await body(World(network, folder))

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def trained(version: int, at: float, groups: int = 8) -> events.Trained:
    return events.Trained(
        at=at,
        peer=LEARNER,
        version=version,
        groups=groups,
        members=1,
        metrics={"reward": version / 10},
        gather=1,
        learn=1,
        average=0,
        step=0,
    )


def train(host: Host, versions: range) -> None:
    for version in versions:
        host.bus.emit(trained(version, host.now()))


def curve(state: SwarmState) -> list[int]:
    return [point[0] for point in state.series["reward"].points()] if "reward" in state.series else []


def groups(watch: Observer) -> int:
    return watch.state.tally.trained


def test_a_window_that_starts_again_knows_what_was(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window() as (host, _):
            train(host, range(1, 6))
        async with world.window() as (host, watch):
            assert curve(watch.state) == [1, 2, 3, 4, 5]
            train(host, range(6, 8))
            assert curve(watch.state) == [1, 2, 3, 4, 5, 6, 7]
            assert groups(watch) == 7 * 8

    in_world(tmp_path, body)


def test_a_window_that_is_killed_has_lost_no_more_than_one_pause(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window() as (host, _):
            train(host, range(1, 4))
            await asyncio.sleep(SAVE + 1)
            kept = snapshot.load((tmp_path / "window" / "history").read_bytes(), CONFIG.run)
            assert curve(kept) == [1, 2, 3]

    in_world(tmp_path, body)


@pytest.mark.parametrize("content", [b"", b"no history", bytes(range(256)) * 40])
def test_a_damaged_history_is_a_warning_and_the_window_begins_anew(tmp_path: Path, content: bytes) -> None:
    async def body(world: World) -> None:
        (tmp_path / "window").mkdir()
        (tmp_path / "window" / "history").write_bytes(content)
        async with world.window() as (host, watch):
            assert [text for text in world.warnings() if "history" in text and "begins anew" in text]
            train(host, range(1, 3))
            assert curve(watch.state) == [1, 2]

    in_world(tmp_path, body)


def test_a_full_disk_is_one_fault_until_there_is_room_and_the_window_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    async def body(world: World) -> None:
        async with world.window() as (host, watch):
            monkeypatch.setattr(module, "write_durably", full)
            for version in (1, 2):  # within a minute, after which it is told again
                train(host, range(version, version + 1))
                await asyncio.sleep(SAVE)
            monkeypatch.undo()
            train(host, range(3, 4))
            await asyncio.sleep(SAVE)
            kinds = (events.Faulted, events.Recovered)
            fault, back = [event for event in world.journal if isinstance(event, kinds)]
            assert isinstance(fault, events.Faulted) and "No space left on device" in fault.detail
            assert isinstance(back, events.Recovered) and fault.part == back.part == "disk"
            assert curve(watch.state) == [1, 2, 3]

    in_world(tmp_path, body)


def test_a_late_window_has_the_curves_of_before_it_came(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window("seed", Role.SEED) as (seed, _):
            train(seed, range(1, 30))
            await asyncio.sleep(60)
            async with world.window() as (host, watch):
                since = host.now()
                assert await watch.catch_up([SEED])
                assert host.now() - since < 5
                assert curve(watch.state) == list(range(1, 30))
                assert {SEED, LEARNER} <= set(watch.state.peers)

    in_world(tmp_path, body)


@pytest.mark.parametrize("claims", [None, membership("seed", Role.SEED)], ids=["nothing", "another's"])
def test_a_stranger_s_history_is_not_taken_whether_a_member_is_here_or_not(
    tmp_path: Path, claims: Membership | None
) -> None:
    async def lie(sender: PeerId, request: bytes) -> bytes:
        state = SwarmState(CONFIG.run)
        fold(state, trained(10**6, EPOCH + 1e4, groups=10**9))
        return wire.encode(module.Past(age=0.0, state=snapshot.dump(state), membership=claims))

    async def body(world: World) -> None:
        async with world.window("a-stranger", member=False) as (stranger, _):
            await stranger.ports.mail.serve("history", lie)
            async with world.window("first", member=False) as (_, watch):
                assert not await watch.catch_up([PeerId("a-stranger")])
                assert groups(watch) == 0
            (refused,) = [event for event in world.journal if isinstance(event, events.Rejected)]
            assert refused.sender == "a-stranger" and "no membership" in refused.reason
            async with world.window("seed", Role.SEED) as (seed, _):
                train(seed, range(1, 5))
                async with world.window("second", member=False) as (_, watch):
                    assert await watch.catch_up([PeerId("a-stranger"), SEED])
                    assert groups(watch) == 4 * 8

    in_world(tmp_path, body)


def test_a_seed_that_was_not_heard_yet_shows_its_membership_with_the_history(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window("seed", Role.SEED) as (seed, _):
            train(seed, range(1, 5))
            async with world.window(member=False) as (host, watch):
                host.trust._good.clear()
                host.presence.receive = lambda data: None  # type: ignore[method-assign]
                assert await watch.catch_up([SEED])
                assert groups(watch) == 4 * 8

    in_world(tmp_path, body)


def test_what_happens_while_a_seed_answers_is_folded_once(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window("seed", Role.SEED) as (seed, known), world.window() as (host, watch):
            train(seed, range(1, 5))
            catching = asyncio.create_task(watch.catch_up([SEED]))
            await asyncio.sleep(0.5)
            both = trained(5, host.now())
            seed.bus.emit(both)
            host.bus.emit(both)
            await asyncio.sleep(1.0)
            later = trained(6, host.now())
            seed.bus.emit(later)
            host.bus.emit(later)
            assert await catching
            assert curve(watch.state) == [1, 2, 3, 4, 5, 6]
            assert groups(watch) == groups(known) == 6 * 8

    in_world(tmp_path, body)


def test_a_seed_that_lost_its_history_does_not_take_mine(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window() as (host, _):
            train(host, range(1, 20))
        async with world.window("seed", Role.SEED) as (seed, _), world.window() as (_, watch):
            await asyncio.sleep(30)
            train(seed, range(20, 22))
            assert await watch.catch_up([SEED])
            assert curve(watch.state)[:19] == list(range(1, 20))

    in_world(tmp_path, body)


def test_a_seed_that_knows_more_is_believed_over_an_old_file(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window("seed", Role.SEED) as (seed, _):
            train(seed, range(1, 5))
            async with world.window() as (_, watch):
                assert await watch.catch_up([SEED])
            train(seed, range(5, 12))
            await asyncio.sleep(5)
            async with world.window() as (_, watch):
                assert curve(watch.state) == [1, 2, 3, 4]
                assert await watch.catch_up([SEED])
                assert curve(watch.state) == list(range(1, 12))

    in_world(tmp_path, body)


@pytest.mark.parametrize(
    "answer", [b"", b"lies", bytes(4096), wire.encode(module.Past(age=-1e300, state=b"lies"))]
)
def test_a_seed_that_sends_rubbish_is_named_and_the_window_goes_on(tmp_path: Path, answer: bytes) -> None:
    async def lie(sender: PeerId, request: bytes) -> bytes:
        return answer

    async def body(world: World) -> None:
        async with world.window("seed", Role.SEED) as (seed, _), world.window() as (host, watch):
            await seed.ports.mail.serve("history", lie)
            assert not await watch.catch_up([SEED])
            assert [
                event
                for event in world.journal
                if isinstance(event, events.Rejected) and event.kind == "history"
            ]
            train(host, range(1, 3))
            assert curve(watch.state) == [1, 2]

    in_world(tmp_path, body)


def test_a_window_whose_seed_is_silent_begins_within_five_seconds(tmp_path: Path) -> None:
    async def silent(sender: PeerId, request: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    async def body(world: World) -> None:
        async with world.window("seed", Role.SEED) as (seed, _), world.window() as (host, watch):
            await seed.ports.mail.serve("history", silent)
            since = host.now()
            catching = asyncio.create_task(watch.catch_up([SEED]))
            await asyncio.sleep(2)
            train(host, range(1, 3))
            assert not await catching
            assert host.now() - since <= 5.1
            assert curve(watch.state) == [1, 2]

    in_world(tmp_path, body)


def test_a_silent_bootstrap_leaves_time_for_another(tmp_path: Path) -> None:
    async def silent(sender: PeerId, request: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    async def body(world: World) -> None:
        async with (
            world.window("seed", Role.SEED) as (seed, _),
            world.window("stuck") as (stuck, _),
            world.window() as (_, watch),
        ):
            await stuck.ports.mail.serve("history", silent)
            train(seed, range(1, 5))
            assert await watch.catch_up([PeerId("stuck"), SEED])
            assert curve(watch.state) == [1, 2, 3, 4]

    in_world(tmp_path, body)


def test_a_history_of_a_clock_that_was_a_year_ahead_does_not_stop_time(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        state = SwarmState(CONFIG.run)
        told = beat(role=Role.SAMPLER, state="sampling", phase=Phase.SAMPLING, at=EPOCH + YEAR)
        fold(state, events.Heard(at=EPOCH + YEAR, peer=PeerId("window"), subject=PeerId("gone"), beat=told))
        (tmp_path / "window").mkdir()
        (tmp_path / "window" / "history").write_bytes(snapshot.dump(state))
        async with world.window() as (host, watch):
            await asyncio.sleep(60)
            assert watch.state.last <= host.now()
            assert watch.state.peers[PeerId("gone")].status(host.now(), CONFIG.run.pace.patience) == "lost"
            assert watch.state.series["peers"].xs[-1] <= host.now()

    in_world(tmp_path, body)


def test_many_windows_that_come_at_once_cost_one_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, dumps = snapshot.dump, []

    def counted(state: SwarmState, limit: int | None = None) -> bytes:
        dumps.append(limit)
        return dump(state, limit)

    async def body(world: World) -> None:
        async with world.window("seed", Role.SEED) as (seed, _), world.window() as (host, _):
            train(seed, range(1, 3))
            monkeypatch.setattr(snapshot, "dump", counted)
            answers = await asyncio.gather(*(host.ports.mail.send(SEED, "history", b"") for _ in range(40)))
            assert len(set(answers)) == 1
            assert dumps == [ANSWER_LIMIT]
            monkeypatch.undo()

    in_world(tmp_path, body)


def test_an_answer_fits_a_frame_whatever_the_swarm_said(tmp_path: Path) -> None:
    state = SwarmState(CONFIG.run)
    for number in range(state.bounds.events):
        fold(
            state,
            events.Noted(
                at=EPOCH + number, peer=LEARNER, level="info", text=random.Random(number).randbytes(300).hex()
            ),
        )
    assert len(snapshot.dump(state, ANSWER_LIMIT)) <= ANSWER_LIMIT


def test_a_window_that_is_alone_hears_nobody(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        async with world.window() as (host, watch):
            await host.ports.clock.sleep(60.0)
            host.emit(events.Noted, level="info", text="nobody is here")
            assert watch.feed.moment().quiet > 59.0
            train(host, range(1, 2))
            assert watch.feed.moment().quiet == 0.0

    in_world(tmp_path, body)
