"""Releases by patches between exchanges over simulated lines: what changed travels, and whatever is wrong
with a patch costs the whole release and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
from liars import lie
from patch_swarms import BYTES, GENESIS, SIZE, Swarm, among

from peers.runtime.host import Host
from peers.runtime.releases.missed import TIMEOUT, MissedReleases
from swarm import events
from swarm.core.agreement.patch_path import KEPT, RUNG
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT, WAY_STEPS
from swarm.net.ports import Refused
from swarm.protocol import Role, Service
from swarm.sim.links import SimLinks
from swarm.storage import patch_files
from swarm.storage.blocks import Blocks, file_block
from swarm.types import Digest, Patch, PeerId, Release, Way


def test_a_version_costs_what_changed() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler = swarm.host("sampler")
        await swarm.release(BYTES[0])
        assert await swarm.take(sampler, swarm.released[0]) > SIZE
        await swarm.release(BYTES[1])
        assert 0 < await swarm.take(sampler, swarm.released[1]) < SIZE / 100
        assert not swarm.blamed

    among(promise)


def test_who_skipped_versions_takes_the_steps_or_the_rung() -> None:
    async def promise(swarm: Swarm) -> None:
        two_behind, far_behind = swarm.host("two behind"), swarm.host("far behind")
        await swarm.release(BYTES[0])
        await swarm.take(far_behind, swarm.released[0])
        await swarm.release(*BYTES[1 : RUNG - 1])
        await swarm.take(two_behind, swarm.released[-1])
        await swarm.release(*BYTES[RUNG - 1 : RUNG + 1])
        last = swarm.released[-1]
        assert last.version == RUNG and [patch.base for patch in last.patches] == [
            swarm.released[RUNG - 1].weights,
            swarm.released[0].weights,
        ]
        steps = sum(release.patches[0].size for release in swarm.released[1:])
        rung = last.patches[1].size
        assert rung < 0.9 * steps
        assert await swarm.take(far_behind, last) < 1.1 * rung
        assert await swarm.take(two_behind, last) < 3 * last.patches[0].size

    among(promise)


def test_two_steps_that_change_the_same_have_one_file_that_is_fetched_once() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler, steps = swarm.host("sampler"), [np.frombuffer(BYTES[0][: SIZE - 1], "<u2").copy()]
        for _ in range(2):
            steps.append(steps[-1].copy())
            steps[-1][5] += 1
        whole = [step.tobytes() + BYTES[0][-1:] for step in steps]
        await swarm.release(whole[0])
        await swarm.take(sampler, swarm.released[0])
        await swarm.release(*whole[1:])
        one, other = (release.patches[0].root for release in swarm.released[1:])
        assert one == other
        assert 0 < await swarm.take(sampler, swarm.released[2]) < 4 * swarm.released[2].patches[0].size

    among(promise)


def test_who_was_away_asks_a_holder_for_the_way() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler = swarm.host("sampler")
        await swarm.release(BYTES[0])
        await swarm.take(sampler, swarm.released[0])
        await swarm.release(*BYTES[1:4])
        heard_of_the_last = swarm.released[-1]
        assert await swarm.fetch(sampler, heard_of_the_last) < SIZE / 30
        assert sampler.releases.named(2, swarm.released[2].weights) == swarm.released[2]
        assert not swarm.blamed

    among(promise)


def test_a_publisher_that_is_gone_is_not_asked_for_the_way_where_others_have_its_release() -> None:
    async def promise(swarm: Swarm) -> None:
        holder, lates = swarm.host("holder"), [swarm.host(f"late-{k}") for k in range(4)]
        await holder.releases.serve()
        await swarm.release(BYTES[0])
        for host in (holder, *lates):
            await swarm.take(host, swarm.released[0])
        for data in BYTES[1:4]:
            await swarm.release(data)
            sealed = swarm.learner.releases.sealed(swarm.released[-1])
            holder.releases.candidates.receive(swarm.released[-1], sealed)
            assert await holder.releases.obtain((swarm.released[-1].version,)) is not None
        holder.status.version, holder.status.weights = 3, swarm.released[3].weights
        cast(SimLinks, swarm.network.links).oneway(
            [swarm.learner.ports.me], [late.ports.me for late in lates]
        )
        for k, late in enumerate(lates):
            late.rng.seed(k)  # who is asked first
            late.roster.receive(holder.ports.me, holder.beats._beat(), late.now())
            began = late.now()
            assert await swarm.fetch(late, swarm.released[-1]) < SIZE / 30
            assert late.now() - began < TIMEOUT / 5
        assert not swarm.blamed

    among(promise)


class Holders:
    """Three of whom a sampler that holds version 0 asks for the way to version 3; `asked` are those that
    were. Each answers as `says` tells, and by default knows none."""

    def __init__(self, swarm: Swarm) -> None:
        self.says: Callable[[], bytes] = lambda: wire.encode(Way(releases=()))
        self.asked, self._swarm = list[PeerId](), swarm
        self.sampler, self.all = swarm.host("sampler"), [swarm.host(f"holder-{k}") for k in range(3)]
        candidates, remember = self.sampler.releases.candidates, self.sampler.releases.remember
        self.held = [GENESIS]
        self.missed = MissedReleases(self.sampler, candidates, lambda: self.held, remember)

    async def ask(self, release: Release) -> None:
        for host in self.all:
            await host.ports.mail.serve(Service.WAY, partial(self._answer, host.ports.me))
        self.sampler.releases.candidates.receive(release, self._swarm.learner.releases.sealed(release))
        await self.missed.ask(release, [host.ports.me for host in self.all])

    async def _answer(self, me: PeerId, _sender: PeerId, _question: bytes) -> bytes:
        self.asked.append(me)
        return self.says()

    def way(self) -> bytes:
        known = self._swarm.released[1:]
        return wire.encode(Way(releases=tuple(map(self._swarm.learner.releases.sealed, known))))


def test_two_holders_are_asked_for_the_way_and_once_for_each_release() -> None:
    async def promise(swarm: Swarm) -> None:
        holders = Holders(swarm)
        await swarm.release(*BYTES[:5])
        await holders.ask(swarm.released[3])
        assert len(set(holders.asked)) == len(holders.asked) == 2
        await holders.ask(swarm.released[3])
        assert len(holders.asked) == 2
        await holders.ask(swarm.released[4])
        assert len(holders.asked) == 4

    among(promise)


@pytest.mark.parametrize("first", [b"junk", None], ids=["junk", "refusal"])
def test_a_holder_that_knows_no_way_costs_a_question_and_the_first_that_does_is_the_last(
    first: bytes | None,
) -> None:
    async def promise(swarm: Swarm) -> None:
        holders = Holders(swarm)
        await swarm.release(*BYTES[:4])

        def says() -> bytes:
            if len(holders.asked) > 1:
                return holders.way()
            if first is None:
                raise Refused("not today")
            return first

        holders.says = says
        await holders.ask(swarm.released[3])
        assert len(holders.asked) == 2
        assert holders.sampler.releases.named(2, swarm.released[2].weights) == swarm.released[2]
        holders.asked.clear()
        await swarm.release(BYTES[4])
        holders.says = holders.way
        await holders.ask(swarm.released[4])
        assert not holders.asked, "one step leads on from what is known now"

    among(promise)


def test_nobody_is_asked_for_a_way_from_nothing_to_what_is_here_or_that_is_known() -> None:
    async def promise(swarm: Swarm) -> None:
        holders = Holders(swarm)
        await swarm.release(*BYTES[:4])
        holders.held = []
        await holders.ask(swarm.released[3])
        holders.held = [swarm.released[3].weights]
        await holders.ask(swarm.released[3])
        holders.held = [swarm.released[2].weights]
        await holders.ask(swarm.released[3])
        assert not holders.asked
        holders.held, holders.says = [GENESIS], holders.way
        await holders.ask(swarm.released[3])
        assert len(holders.asked) == 1, "the first one knew the way"

    among(promise)


def test_the_longest_way_fits_its_answer() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler, values = swarm.host("sampler"), np.frombuffer(BYTES[0], "<u2", SIZE // 2).copy()
        await swarm.release(BYTES[0], values.tobytes())
        await swarm.take(sampler, swarm.released[1])
        for version in range(2, KEPT):
            values[version * 100 : version * 100 + 100] += 1
            await swarm.release(values.tobytes())
        steps = (RUNG - 1) + (RUNG - 2) + (RUNG - 1)  # up to version 8, rungs to 56, down to 63
        assert 16 < steps <= WAY_STEPS
        assert await swarm.fetch(sampler, swarm.released[-1]) < SIZE / 30
        assert not swarm.blamed

    among(promise)


def test_a_way_of_forged_releases_costs_the_whole() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler, stranger = swarm.host("sampler"), swarm.host("stranger")
        await swarm.release(BYTES[0])
        await swarm.take(sampler, swarm.released[0])
        await swarm.release(*BYTES[1:4])
        forged = [
            stranger.seal(msgspec.structs.replace(release, publisher=stranger.ports.me), RELEASE_LIMIT)
            for release in swarm.released[1:]
        ]

        async def lie(sender: PeerId, question: bytes) -> bytes:
            return wire.encode(Way(releases=tuple(forged)))

        await swarm.learner.ports.mail.serve(Service.WAY, lie)
        assert await swarm.fetch(sampler, swarm.released[-1]) > SIZE
        assert [sender for sender, _ in swarm.blamed] == [sampler.ports.me] * 3

    among(promise)


def test_who_took_a_patch_serves_it_and_the_whole() -> None:
    async def promise(swarm: Swarm) -> None:
        first, second, late = swarm.host("first"), swarm.host("second"), swarm.host("late")
        await swarm.release(BYTES[0])
        for host in (first, second):
            await host.releases.serve()
            await swarm.take(host, swarm.released[0])
        await swarm.release(BYTES[1])
        await swarm.take(first, swarm.released[1])
        swarm.network.crash(swarm.learner.ports.me)
        gives = msgspec.structs.replace(swarm.released[1], publisher=first.ports.me)
        assert await swarm.take(second, gives) < SIZE / 100
        assert await swarm.take(late, gives) > SIZE

    among(promise)


def test_a_disk_goes_on_by_patches_after_a_restart(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        await swarm.release(BYTES[0])
        for k, version in enumerate(BYTES[1:3]):
            seed = swarm.host(f"seed-{k}", Role.SEED, tmp_path)
            seed.releases.blobs._disk = None  # virtual time knows no threads
            seed.releases.patches.files._disk = None
            await swarm.take(seed, swarm.released[0]) if k == 0 else None
            await swarm.release(version)
            assert await swarm.take(seed, swarm.released[-1]) < SIZE / 100

    among(promise)


def test_a_peer_that_comes_back_alone_offers_what_its_disk_holds(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        def sampler(name: str) -> Host:
            host = swarm.host(name, shelf=tmp_path / "blobs")
            host.releases.blobs._disk = host.releases.patches.files._disk = None  # virtual time, no threads
            return host

        before = sampler("sampler")
        for version in BYTES[:4]:
            await swarm.release(version)
            release = swarm.released[-1]
            before.releases.candidates.receive(release, swarm.learner.releases.sealed(release))
            assert await before.releases.obtain((release.version,)) is not None
        swarm.network.crash(swarm.learner.ports.me)

        again, late = sampler("sampler again"), swarm.host("late")
        await again.ports.clock.sleep(100.0)
        again.releases.restore()
        await again.releases.serve()
        await again.queries.serve()
        assert again.releases.held == swarm.released[3]
        assert [release.version for release in again.releases.announced()] == [2, 3], "whose bytes are here"
        await late.queries.ask_newest([again.ports.me])
        again.status.version, again.status.weights = 3, swarm.released[3].weights
        late.roster.receive(again.ports.me, again.beats._beat(), late.now())
        found = await late.releases.obtain(())
        assert found is not None and found[1].data == BYTES[3]
        ages = [host.now() - host.releases.released_here(found[0]) for host in (again, late)]
        assert ages[0] > 100.0 and ages[1] < 10.0, "on a disk its publisher's time is all that is left"

    among(promise)


def damage(file: Path, how: str) -> None:
    """In place: whoever has it open reads it."""
    if how == "cut":
        os.truncate(file, file.stat().st_size // 2)
    else:
        with open(file, "r+b") as content:
            content.seek(file.stat().st_size // 2)
            byte = content.read(1)
            content.seek(-1, os.SEEK_CUR)
            content.write(bytes([byte[0] ^ 255]))


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_step_whose_file_is_damaged_here_makes_no_rung_and_ends_nobody(tmp_path: Path, how: str) -> None:
    async def promise(swarm: Swarm) -> None:
        swarm.learner = swarm.host("on a disk", Role.LEARNER, tmp_path / "blobs")
        patches, far = swarm.learner.releases.patches, swarm.host("far")
        swarm.learner.releases.blobs._disk = patches.files._disk = None  # virtual time, no threads
        await swarm.learner.releases.serve()
        await swarm.release(BYTES[0])
        await swarm.take(far, swarm.released[0])
        await swarm.release(*BYTES[1:RUNG])
        step = swarm.released[3].patches[0].root
        damage(tmp_path / "blobs" / "patches" / step, how)
        await swarm.release(BYTES[RUNG])
        last = swarm.released[-1]
        assert [patch.base for patch in last.patches] == [swarm.released[-2].weights]
        assert not patches.files.is_whole(step), "what is damaged is given to nobody"
        await swarm.take(far, last)
        assert not swarm.blamed

    among(promise)


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_parent_that_is_damaged_here_makes_no_patch_and_is_given_to_nobody(
    tmp_path: Path, how: str
) -> None:
    async def promise(swarm: Swarm) -> None:
        swarm.learner = swarm.host("on a disk", Role.LEARNER, tmp_path / "blobs")
        wholes, files = swarm.learner.releases.blobs, swarm.learner.releases.patches.files
        wholes._disk = files._disk = None  # virtual time, no threads
        await swarm.release(BYTES[0])
        damage(tmp_path / "blobs" / GENESIS, how)
        await swarm.release(BYTES[1])
        assert not swarm.released[1].patches
        assert not wholes.is_whole(GENESIS) and wholes.is_whole(swarm.released[1].weights)
        assert any("damaged" in event.detail for event in swarm.seen if isinstance(event, events.Faulted))

    among(promise)


def test_the_newest_steps_are_remembered_and_no_more_of_them_than_of_files() -> None:
    async def promise(swarm: Swarm) -> None:
        patches = swarm.learner.releases.patches
        made = [Digest(f"{number:064x}") for number in range(KEPT + 2)]
        for number in (*range(KEPT), 0, KEPT, KEPT + 1):  # the first one is made again
            patches._remember(made[number], Patch(base=GENESIS, root=made[number], size=1))
        assert {*patches._steps} == {made[0], *made[3:]}

    among(promise)


def test_a_disk_that_refuses_patches_is_told() -> None:
    async def promise(swarm: Swarm) -> None:
        swarm.learner.releases.patches.files.on_disk("No space left on device")
        (fault,) = swarm.seen
        assert isinstance(fault, events.Faulted) and "No space left on device" in fault.detail

    among(promise)


def test_a_patch_that_is_cut_here_is_fetched_again(tmp_path: Path) -> None:
    async def promise(swarm: Swarm) -> None:
        taker = swarm.host("taker", shelf=tmp_path / "blobs")
        patches = taker.releases.patches
        taker.releases.blobs._disk = patches.files._disk = None  # virtual time, no threads
        await swarm.release(BYTES[0])
        await swarm.take(taker, swarm.released[0])
        await swarm.release(BYTES[1])
        await patches.take(swarm.released[1], [swarm.learner.ports.me])
        step = swarm.released[1].patches[0].root
        damage(tmp_path / "blobs" / "patches" / step, "cut")
        assert 0 < await swarm.take(taker, swarm.released[1]) < SIZE / 100
        assert patches.files.is_whole(step) and not swarm.blamed

    among(promise)


async def _useless(swarm: Swarm, sampler: Host, file: bytes | None, base: bytes = BYTES[0]) -> Release:
    """Version 1, whose only patch is `file`; a file of nobody when that is None."""
    await swarm.release(BYTES[0])
    await swarm.take(sampler, swarm.released[0])
    await swarm.release(BYTES[1])
    good = swarm.released.pop()
    blocks = Blocks.of(file or b"nobody has this", file_block)
    if file is not None:
        swarm.learner.releases.patches.files.hold(1, blocks)
    patch = Patch(base=Blocks.of(base).root, root=blocks.root, size=blocks.size)
    return msgspec.structs.replace(good, patches=(patch,))


RIGHT = patch_files.make(Blocks.of(BYTES[0]), Blocks.of(BYTES[1]))
USELESS = {
    "of another version": patch_files.make(Blocks.of(BYTES[1]), Blocks.of(BYTES[2])),
    "cut off": RIGHT[:-5],
    "of random bytes": random.Random(5).randbytes(5000),
    "of one byte": b"?",
}


@pytest.mark.parametrize("file", USELESS.values(), ids=USELESS)
def test_a_patch_that_makes_other_bytes_costs_the_whole_once_and_names_its_publisher(file: bytes) -> None:
    async def promise(swarm: Swarm) -> None:
        sampler = swarm.host("sampler")
        release = await _useless(swarm, sampler, file)
        assert await swarm.take(sampler, release) > SIZE
        assert [who for who, _ in swarm.blamed] == ["learner"]
        assert "patch to version 1" in swarm.blamed[0][1] and "not tried again" in swarm.blamed[0][1]
        other = msgspec.structs.replace(release, weights=Blocks.of(BYTES[2]).root)
        assert not sampler.releases.patches._useless.isdisjoint(patch.root for patch in other.patches)

    among(promise)


def test_a_patch_that_nobody_has_costs_the_whole_and_names_nobody() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler = swarm.host("sampler")
        assert await swarm.take(sampler, await _useless(swarm, sampler, None)) > SIZE
        assert not swarm.blamed

    among(promise)


def test_a_liar_beside_an_honest_holder_costs_a_question() -> None:
    async def promise(swarm: Swarm) -> None:
        sampler, liar = swarm.host("sampler"), swarm.host("liar", Role.LEARNER)
        await swarm.release(BYTES[0])
        await swarm.take(sampler, swarm.released[0])
        await swarm.release(BYTES[1])

        await lie(liar.ports.mail, bytes(1000), Service.PATCHES)
        found = await sampler.releases.patches.fetch(
            swarm.released[1],
            {swarm.released[1].weights: [swarm.released[1]]},
            [liar.ports.me, swarm.learner.ports.me],
        )
        assert found is not None and found.whole == BYTES[1]
        assert [who for who, _ in swarm.blamed] == ["liar"]

    among(promise)


def test_where_the_parent_is_not_here_a_release_has_no_patch() -> None:
    async def promise(swarm: Swarm) -> None:
        await swarm.release(BYTES[0], BYTES[1])
        assert not swarm.released[0].patches and len(swarm.released[1].patches) == 1
        await swarm.release(BYTES[2][:-1])
        assert not swarm.released[2].patches, "another size is another model"

    among(promise)


def test_a_release_in_which_all_is_new_is_not_a_patch() -> None:
    async def promise(swarm: Swarm) -> None:
        await swarm.release(BYTES[0], random.Random(9).randbytes(SIZE))
        assert not swarm.released[1].patches

    among(promise)


def test_files_of_older_versions_take_no_more_room_than_a_release() -> None:
    async def promise(swarm: Swarm) -> None:
        rng = np.random.default_rng(3)
        values = np.frombuffer(BYTES[0], "<u2", SIZE // 2).copy()
        for _ in range(6):
            await swarm.release(values.tobytes())
            values[rng.choice(len(values), len(values) // 3, replace=False)] += 1
        files = swarm.learner.releases.patches.files
        held = sum(one.size for one in files._whole.values())
        newest = swarm.released[-1].patches[0].size
        assert newest < held <= SIZE + newest

    among(promise)


def test_a_release_with_two_patches_fits_its_frame() -> None:
    async def promise(swarm: Swarm) -> None:
        rng = random.Random(7)
        patches = tuple(
            Patch(base=Digest(rng.randbytes(32).hex()), root=Digest(rng.randbytes(32).hex()), size=1 << 40)
            for _ in range(2)
        )
        await swarm.release(BYTES[0])
        release = msgspec.structs.replace(
            swarm.released[0],
            version=1 << 31,
            weights=Digest(rng.randbytes(32).hex()),
            parent=Digest(rng.randbytes(32).hex()),
            publisher=PeerId("12D3KooW" + rng.randbytes(22).hex()),
            patches=patches,
        )
        sealed = swarm.learner.seal(release, RELEASE_LIMIT)
        assert swarm.learner.read(sealed, RELEASE_LIMIT, Release)[1] == release

    among(promise)
