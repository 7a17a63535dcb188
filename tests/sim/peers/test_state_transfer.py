"""A learner's whole state is made off the loop, held in a store of one entry that does not stay, and waited
for by its size."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from nouns import beat
from still_host import RUN, still_host

from peers.learner.agreement import state_transfer
from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.agreement.state_transfer import HELD_FOR, StateTransfer
from swarm.limits import FRAME_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import Config, DelayLaw, EngineSettings, Peer, Run
from swarm.sim.clock import run
from swarm.sim.flows import AccessLine
from swarm.sim.links import SimLinks
from swarm.storage import blocks
from swarm.storage.weights import Weights
from swarm.types import Digest, PeerId, Release

STATE = random.Random(3).randbytes(3 * blocks.BLOCK + 9)


class Model:
    """A learner as StateTransfer see it: a number is its state, and its weights follow from that."""

    def __init__(self, version: int) -> None:
        self.version, self.more = version, b""

    def weights(self) -> Weights:
        return Weights.of(b"%d" % self.version * (1 << 18), self.version)

    def digest(self) -> Digest:
        return self.weights().digest

    def state(self) -> bytes:
        return b"%9d" % self.version + STATE + self.more

    def load_state(self, state: bytes) -> None:
        self.version = int(state[:9])

    def restorer(self) -> Callable[[], None]:
        return partial(self.load_state, self.state())


class Learner:
    def __init__(
        self, network: MemoryNetwork, name: str, version: int, price: Callable[[str], float]
    ) -> None:
        config = Config(run=Run(name="twins"), peer=Peer(engine=EngineSettings(name="toy", tasks=1)))
        self.model = Model(version)
        self.host = still_host(network, name, Role.LEARNER, config, price=price)
        self.in_round = False
        self.transfer = StateTransfer(
            self.host,
            self.model,  # type: ignore[arg-type]
            lambda: None if self.in_round else (self.model.version, self.model.digest()),
            OtherLearners(self.host, lambda: self.model.version),
        )

    async def takes_from(self, old: Learner, release: Release, seconds: float = 225.0) -> bool:
        """Whether it has the state of the release after that."""
        self.host.releases.candidates.receive(release)
        taken = await self.transfer.take(old.me, release, self.host.steady() + seconds, at_once)
        return taken is not None and self.model.digest() == taken.weights

    @property
    def me(self) -> PeerId:
        return self.host.ports.me

    async def serve(self, *others: PeerId) -> None:
        for k, other in enumerate(others):
            assert self.host.roster.receive(other, beat(name=other, seq=k), self.host.now())
        await self.host.releases.blobs.serve()
        await self.transfer.serve()

    def release(self) -> Release:
        weights = self.model.weights()
        self.host.releases.blobs.hold(self.model.version, weights.blocks)
        return Release(
            version=self.model.version,
            weights=weights.digest,
            size=len(weights.data),
            parent=weights.digest,
            publisher=self.me,
            learners=1,
            groups=1,
            released=0.0,
        )


def among(promise: Callable[..., Awaitable[None]], line: float = math.inf, **prices: float) -> None:
    """`line`: bytes a second that the giver sends."""

    async def main() -> None:
        lines = {PeerId("old"): AccessLine(line, line)}
        links = SimLinks(DelayLaw(law="constant", seconds=0.02), 12.5e6, random.Random(1), lines)
        async with MemoryNetwork(random.Random(2), links) as network:
            price = lambda kind: prices.get(kind, 0.0)  # noqa: E731
            peers = [
                Learner(network, name, version, price)
                for name, version in (("old", 7), ("new", 3), ("newer", 2))
            ]
            await peers[0].serve(peers[1].me, peers[2].me)
            await promise(*peers)

    run(main())


async def at_once() -> None:
    """Nothing uses the learner."""


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_state_is_hashed_and_cut_beside_the_loop_and_beside_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        release, where, hashed, real, work = (
            old.release(),
            [""],
            list[str](),
            blocks.digest_of,
            old.host.ports.work,
        )

        def digest_of(data: bytes) -> Digest:
            if len(data) == blocks.BLOCK:  # of the state: the weights are smaller
                hashed.append(where[0])
            return real(data)

        class Watched:
            async def run(self, kind: str, function: Callable[..., Any], *args: Any) -> Any:
                def watched() -> Any:
                    where[0] = kind
                    try:
                        return function(*args)
                    finally:
                        where[0] = "the loop"

                return await work.run(kind, watched)

        monkeypatch.setattr(blocks, "digest_of", digest_of)
        old.host.ports = replace(old.host.ports, work=Watched())
        assert await new.takes_from(old, release)
        assert new.model.version == 7 and set(hashed) == {"cut"}

    among(promise)


def test_a_state_is_not_on_the_releases_shelf_and_does_not_stay() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        release = old.release()
        shelves = [peer.host.releases.blobs.statistics() for peer in (old, new)]
        assert await new.takes_from(old, release)
        assert [peer.host.releases.blobs.statistics() for peer in (old, new)] == shelves
        assert old.transfer._states.statistics() == {"releases": 1, "blobs": 5}
        await asyncio.sleep(2 * HELD_FOR)
        assert old.transfer._states.statistics() == {"releases": 0, "blobs": 0}
        assert await newer.takes_from(old, release), "it is made anew"

    among(promise)


def test_the_state_of_a_later_version_takes_the_place_of_an_earlier_one() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        for version in (7, 8, 9):
            old.model.version = version
            assert await new.takes_from(old, old.release())
            assert old.transfer._states.statistics() == {"releases": 1, "blobs": 5}

    among(promise)


def test_two_newcomers_take_one_copy_and_a_third_version_waits_for_them() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        copies = list[int]()
        state = old.model.state
        old.model.state = lambda: copies.append(1) or state()  # type: ignore[method-assign, func-returns-value]
        release = old.release()
        assert await asyncio.gather(new.takes_from(old, release), newer.takes_from(old, release)) == [
            True,
            True,
        ]
        assert len(copies) == 1
        old.model.version = 8

        def says(seq: int, phase: Phase) -> None:
            assert old.host.roster.receive(
                newer.me, beat(name=newer.me, seq=seq, phase=phase), old.host.now()
            )

        says(10, Phase.SYNCING)
        assert not await new.takes_from(old, old.release()), "the other one takes the earlier state"
        await asyncio.sleep(state_transfer.TAKER_SILENT)
        assert await new.takes_from(old, old.release()), "it asks for no more of it"
        assert await newer.takes_from(old, old.release())
        old.model.version = 9
        says(11, Phase.GATHERING)
        assert await new.takes_from(old, old.release()), "it has it"

    among(promise)


def test_a_large_state_is_waited_for_as_long_as_it_takes_to_make() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        assert await new.takes_from(old, old.release())
        assert new.model.version == 7 and now() > 25.0

    among(promise, copy=20.0, cut=5.0)


def test_a_state_is_there_by_the_time_that_its_taker_has_or_it_goes_without() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        assert not await new.takes_from(old, old.release(), seconds=15.0)
        assert new.model.version == 3 and now() == pytest.approx(15.0, abs=0.1)

    among(promise, copy=20.0)


def test_a_state_that_comes_too_slowly_is_given_up_before_its_time() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        old.model.more = random.Random(4).randbytes(60 << 20)
        old.model.weights = new.model.weights = lambda: Weights.of(b"%d" % 7 * (4 << 20), 7)  # type: ignore[method-assign]
        assert not await new.takes_from(old, old.release(), seconds=45.0)
        assert new.model.version == 3 and now() < 30.0

    among(promise, line=1e6)


def test_a_learner_in_a_round_gives_the_state_that_comes_of_it() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        before, old.in_round = old.release(), True
        taking = asyncio.ensure_future(new.takes_from(old, before))
        await asyncio.sleep(3.0)
        old.model.version, old.in_round = 8, False
        new.host.releases.candidates.receive(old.release())
        assert await taking and new.model.version == 8
        old.in_round = True
        assert not await newer.takes_from(old, before), "a round without an end"

    among(promise)


def test_a_state_stays_that_of_the_version_at_which_it_was_asked_for() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        release = old.release()
        taking = asyncio.ensure_future(new.takes_from(old, release))
        await asyncio.sleep(1.0)
        old.model.version = 9
        assert await taking and new.model.version == 7

    among(promise, line=1e6)


def test_a_state_of_weights_that_its_learner_did_not_release_is_not_waited_for() -> None:
    """Its step made other bytes than the round's release, which it took meanwhile."""

    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        release, began = old.release(), now()
        old.model.version = 8
        taking = asyncio.ensure_future(new.takes_from(old, release))
        await asyncio.sleep(5.0)
        assert not taking.done(), "it may be announced yet"
        took = beat(name=old.me, role=Role.LEARNER, seq=1, version=8, weights=Digest("f" * 64))
        assert new.host.roster.receive(old.me, took, new.host.now())
        assert not await taking and now() - began < 10.0 and new.model.version == 3

    among(promise)


def test_a_state_out_of_all_proportion_is_not_fetched() -> None:
    async def promise(old: Learner, new: Learner, newer: Learner) -> None:
        old.model.weights = new.model.weights = lambda: Weights.of(b"small", 3)  # type: ignore[method-assign]
        assert not await new.takes_from(old, old.release())
        assert new.model.version == 3

    among(promise)


def test_a_state_has_no_limit_of_its_own() -> None:
    """The state of 1.7 billion parameters is 20 GB, and one mail has its leaf list."""
    size = 12 * 1_700_000_000
    assert blocks.block_size(size) == blocks.BLOCK and size < blocks.LARGEST
    assert len(blocks.leaf_list((RUN,) * blocks.MOST)) <= blocks.CARRIED < FRAME_LIMIT
    assert blocks.block_size(blocks.LARGEST) <= blocks.CARRIED
