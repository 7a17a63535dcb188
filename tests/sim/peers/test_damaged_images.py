"""A release whose file somebody changes on the disk is not loaded: what is damaged is fetched again, and
nobody is blamed for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from patch_swarms import BYTES, SIZE, Swarm, among

from peers.runtime.host import Host
from peers.sampler.engine_calls import EngineCalls
from swarm.learn.files import weights
from swarm.sample.toy import ToyEngine
from swarm.settings.config import Config
from swarm.storage.blocks import BLOCK, Blocks, Damaged
from swarm.storage.weights import Weights


def on_disk(swarm: Swarm, folder: Path) -> Host:
    host = swarm.host("sampler", shelf=folder)
    host.releases.blobs._disk = host.releases.patches.files._disk = None  # virtual time knows no threads
    return host


def change(path: Path, at: int) -> None:
    content = os.open(path, os.O_RDWR)
    os.pwrite(content, bytes([os.pread(content, 1, at)[0] ^ 1]), at)
    os.close(content)


@pytest.mark.parametrize("damage", ["changed", "cut off"])
def test_an_engine_loads_no_damaged_release_and_what_is_damaged_is_fetched_again(
    tmp_path: Path, damage: str
) -> None:
    table = weights.to_bytes({"logits": torch.randn(5, 400, 400)})

    async def promise(swarm: Swarm) -> None:
        sampler, engine = on_disk(swarm, tmp_path), ToyEngine(weights.from_bytes)
        await swarm.release(table)
        release = swarm.released[0]
        await swarm.take(sampler, release)
        ready = await sampler.releases.fetch(release)
        if damage == "changed":
            change(tmp_path / release.weights, BLOCK + 9)
        else:
            os.truncate(tmp_path / release.weights, BLOCK + 9)
        with pytest.raises(Damaged):
            await EngineCalls(sampler).load(engine, ready)
        assert engine.version == -1 and not sampler.releases.has(release.weights)
        assert await swarm.take(sampler, release) < 1.1 * BLOCK
        await EngineCalls(sampler).load(engine, await sampler.releases.fetch(release))
        assert engine.version == 0 and not swarm.blamed

    among(promise)


def test_a_damaged_base_is_no_fault_of_a_patch(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        sampler = on_disk(swarm, tmp_path)
        await swarm.release(BYTES[0])
        await swarm.take(sampler, swarm.released[0])
        await swarm.release(BYTES[1])
        change(tmp_path / swarm.released[0].weights, BLOCK + 9)
        await swarm.take(sampler, swarm.released[1])
        assert not swarm.blamed and sampler.releases.has(swarm.released[1].weights)
        assert not sampler.releases.has(swarm.released[0].weights)

    among(promise)


def test_a_damaged_patch_file_is_no_fault_of_its_publisher(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        sampler = on_disk(swarm, tmp_path)
        await swarm.release(BYTES[0])
        await swarm.take(sampler, swarm.released[0])
        await swarm.release(BYTES[1])
        patch, ladder = swarm.released[1].patches[0], sampler.releases.patches
        await ladder.files.fetch(1, patch.root, patch.size, [swarm.learner.ports.me])
        change(tmp_path / "patches" / patch.root, patch.size - 9)
        assert await swarm.take(sampler, swarm.released[1]) < SIZE / 50
        assert not swarm.blamed and not ladder._useless

    among(promise)


def test_a_learners_base_that_was_damaged_costs_its_next_patch_alone(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        swarm.learner = on_disk(swarm, tmp_path)
        await swarm.release(BYTES[0])
        change(tmp_path / Blocks.of(BYTES[0]).root, BLOCK + 9)
        await swarm.release(BYTES[1], BYTES[2])
        assert [len(release.patches) for release in swarm.released] == [0, 0, 1]

    among(promise)


def test_peers_but_seeds_hold_two_versions_and_write_none_into_memory(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        assert Config().run.release.keep == 4
        sampler = on_disk(swarm, tmp_path)
        for k, version in enumerate(BYTES[:4]):
            await swarm.release(version)
            await swarm.take(sampler, swarm.released[k])
        names = [release.weights for release in swarm.released]
        assert {name for name in os.listdir(tmp_path) if "." not in name} == {*names[2:], "patches"}
        for held in map(sampler.releases.blobs.blocks, names[2:]):
            assert held is not None and held.source.path is not None

    among(promise)


def test_weights_that_are_made_into_a_draft_are_not_copied(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        learner = on_disk(swarm, tmp_path)
        state = {"a": torch.randn(700, 700)}
        draft = weights.write(state, learner.releases.draft)
        packed = await learner.releases.pack(lambda: Weights(3, draft.done()))
        assert packed.blocks.source.path == tmp_path / packed.digest
        assert packed.data == weights.to_bytes(state)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("new-")]

    among(promise)
