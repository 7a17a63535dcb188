"""Which patches are taken: what a liar says of them changes nothing, and what cannot be had is gone round."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest
from patch_swarms import BYTES, SIZE, Swarm, among

from swarm.core.agreement.patch_path import RUNG
from swarm.sim.links import SimLinks
from swarm.storage.blocks import Blocks
from swarm.types import Digest, Patch, PeerId, Release


def lie(about: Blocks, base: Release, root: Digest, size: int) -> Release:
    """An announcement of the same weights by another member, with a patch of its own."""
    patch = Patch(base=base.weights, root=root, size=size)
    return msgspec.structs.replace(
        base, version=base.version + 1, weights=about.root, publisher=PeerId("liar"), patches=(patch,)
    )


def test_a_lie_about_a_step_is_not_in_the_rung_of_who_made_that_step() -> None:
    async def promise(swarm: Swarm) -> None:
        far_behind = swarm.host("far behind")
        await swarm.release(BYTES[0])
        await swarm.take(far_behind, swarm.released[0])
        await swarm.release(*BYTES[1 : RUNG - 1])
        # The lie is told first: members of a round have the same bytes at the same time.
        other = swarm.released[3].patches[0]
        false = lie(Blocks.of(BYTES[RUNG - 1]), swarm.released[-1], other.root, other.size)
        swarm.learner.releases.candidates.receive(false)
        await swarm.release(*BYTES[RUNG - 1 : RUNG + 1])
        assert len(swarm.released[-1].patches) == 2
        assert await swarm.take(far_behind, swarm.released[-1]) < SIZE / 50
        assert not swarm.blamed

    among(promise)


@pytest.mark.parametrize("held", [False, True], ids=["of nobody", "of no patch"])
def test_a_useless_patch_beside_a_good_one_does_not_cost_the_whole(held: bool) -> None:
    async def promise(swarm: Swarm) -> None:
        sampler, junk = swarm.host("sampler"), Blocks.of(b"junk")
        await swarm.release(*BYTES[:3])
        await swarm.take(sampler, swarm.released[1])
        if held:
            swarm.learner.releases.patches.files.hold(2, junk)
        false = lie(Blocks.of(BYTES[2]), swarm.released[1], junk.root, junk.size)
        sampler.releases.candidates.receive(false)
        assert await swarm.take(sampler, swarm.released[2]) < SIZE / 50
        assert [who for who, _ in swarm.blamed] == (["liar"] if held else [])

    among(promise)


def test_a_rung_that_nobody_has_is_gone_round_by_its_steps() -> None:
    async def promise(swarm: Swarm) -> None:
        far_behind, other = swarm.host("far behind"), swarm.host("other")
        await other.releases.serve()
        await swarm.release(BYTES[0])
        for host in (far_behind, other):
            await swarm.take(host, swarm.released[0])
        for version in BYTES[1 : RUNG + 1]:
            await swarm.release(version)
            await swarm.take(other, swarm.released[-1])
        swarm.network.crash(swarm.learner.ports.me)
        gives = msgspec.structs.replace(swarm.released[-1], publisher=other.ports.me)
        assert len(gives.patches) == 2
        assert await swarm.take(far_behind, gives) < SIZE / 10
        assert not swarm.blamed

    among(promise)


def test_useless_patches_are_remembered_as_long_as_their_releases() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler = swarm.host("sampler")
        await swarm.release(*BYTES[:2])
        await swarm.take(sampler, swarm.released[0])
        step = swarm.released[1]
        for k in range(60):
            junk = Blocks.of(b"junk %d" % k)
            swarm.learner.releases.patches.files.hold(1, junk)
            false = lie(Blocks.of(BYTES[1]), swarm.released[0], junk.root, junk.size)
            known = {step.weights: [false, step]}
            await sampler.releases.patches.fetch(step, known, [swarm.learner.ports.me])
            sampler.releases.blobs.clear()
            sampler.releases.blobs.hold(0, Blocks.of(BYTES[0]))
        assert len(swarm.blamed) == 60
        assert len(sampler.releases.patches._useless) <= 2

    among(promise)


def test_who_has_a_patch_by_now_gives_it_where_its_publisher_is_not_reached() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler, mirror, other = swarm.host("sampler"), swarm.host("mirror"), swarm.host("other")
        await other.releases.serve()
        await swarm.release(BYTES[0])
        for host in (sampler, mirror, other):
            await swarm.take(host, swarm.released[0])
        await swarm.release(BYTES[1])
        last = swarm.released[1]
        away = [sampler.ports.me, mirror.ports.me]
        cast(SimLinks, swarm.network.links).oneway([swarm.learner.ports.me], away)
        sampler.releases._beating_holders = mirror.releases._beating_holders = lambda release: (
            [other.ports.me] if other.releases.has(release.weights) else []
        )

        async def take_later() -> None:
            await asyncio.sleep(1.0)
            await swarm.take(other, last)

        async with asyncio.timeout(5.0), asyncio.TaskGroup() as group:
            group.create_task(take_later())
            patches = group.create_task(mirror.releases.take_patches(last))
            assert await swarm.take(sampler, last) < SIZE / 50
            await patches
        assert mirror.releases.patches.files.is_whole(last.patches[0].root)

    among(promise)
