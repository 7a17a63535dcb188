"""What a seed makes of a disk that lost or changed something: what is damaged is left out and told, the next
best serves."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from still_host import membership, still_host

from peers.build.joining.adopted_releases import take_releases
from peers.runtime.host import Host
from peers.runtime.peer_folder import RELEASES
from peers.seed import Seed
from swarm import events
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import Config, DelayLaw, Pace, Releasing, Run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import BLOCK, Blocks, digest_of
from swarm.storage.durable import write_durably
from swarm.storage.weights import Weights
from swarm.types import Digest

GENESIS = b"version 0"


def weights(version: int) -> bytes:
    return GENESIS if version == 0 else random.Random(version).randbytes(BLOCK + 1000)


class House:
    """A seed and a learner's host on the ports of memory; the seed's folder outlives them."""

    def __init__(self, network: MemoryNetwork, folder: Path, genesis: bytes) -> None:
        self.network = network
        self.told: list[events.Event] = []
        self.learner = self._host("learner-0", Role.LEARNER, None)
        self.host = self._host("seed-0", Role.SEED, folder / "blobs")
        self.seed = Seed(self.host, Weights.of(genesis, 0))

    def _host(self, name: str, role: Role, shelf: Path | None) -> Host:
        config = Config(run=Run(release=Releasing(keep=4), pace=Pace(beat=0.05, patience=1.0)))
        bus = events.Bus()
        bus.add(self.told.append)
        return still_host(
            self.network,
            name,
            role,
            config,
            shelf=shelf,
            bus=bus,
            membership=membership(name, role),
            observes=role is Role.SEED,
            genesis=Blocks.of(GENESIS).root,
        )

    async def live(self, versions: Sequence[int]) -> None:
        """The seed comes up; the learner makes these versions one after the other; both are gone again."""
        async with asyncio.TaskGroup() as tasks:
            lives = [
                tasks.create_task(self.learner.run(self.learner.stop.wait)),
                tasks.create_task(self.host.run(self.seed.run)),
            ]
            await self._until(lambda: self.host.status.phase is Phase.SERVING)
            for version in versions:
                await self.learner.releases.publish(
                    Weights.of(weights(version), version), parent=Digest("0" * 64), learners=1, groups=1
                )
                await self._until(lambda version=version: self.host.status.version == version)  # type: ignore[misc]
            await asyncio.sleep(0.1)
            for life in lives:
                life.cancel()

    async def _until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not done():
                await asyncio.sleep(0.01)

    @property
    def offers(self) -> int | None:
        """As `offered`, of a seed whose life is over."""

        async def ask() -> int | None:
            return self.offered()

        return asyncio.run(ask())

    def offered(self) -> int | None:
        """The version that it answers with, whose bytes it has."""
        if not self.host.releases.sealed_newest():
            return None
        held = self.host.releases.held
        assert held is not None
        blobs, leaves = self.host.releases.blobs, Blocks.of(weights(held.version)).leaves
        assert held.weights == Blocks.of(weights(held.version)).root
        assert b"".join(blobs.get(leaf) or b"" for leaf in leaves) == weights(held.version)
        return held.version

    @property
    def texts(self) -> str:
        """All that either of them told, as a person reads it."""
        fields = ("text", "detail", "reason")
        return "\n".join(
            str(getattr(event, name)) for event in self.told for name in fields if hasattr(event, name)
        )


def lived(
    folder: Path, *versions: int, genesis: bytes = GENESIS, look: Callable[[House], None] = lambda _: None
) -> House:
    """A seed's life on this folder; `look` at its end."""

    async def main() -> House:
        links = SimLinks(DelayLaw(law="constant", seconds=0.001), 1e9, random.Random(1))
        async with MemoryNetwork(random.Random(2), links, epoch=time.time()) as network:
            house = House(network, folder, genesis)
            await house.live(versions)
            look(house)
        return house

    return asyncio.run(main())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a seed that held versions 0 to 5, of which the newest four are kept."""
    assert lived(tmp_path, 1, 2, 3, 4, 5).offers == 5
    assert len(list((tmp_path / RELEASES).iterdir())) == 4
    return tmp_path


def file(folder: Path, version: int) -> Path:
    return folder / "blobs" / Blocks.of(weights(version)).root


def word(folder: Path, version: int) -> Path:
    return next(
        path
        for path in (folder / RELEASES).iterdir()
        if f"{Blocks.of(weights(version)).root}".encode() in path.read_bytes()
    )


def test_a_seed_goes_on_from_the_newest_release_on_its_disk(folder: Path) -> None:
    house = lived(folder)
    assert house.offers == 5 and "damaged" not in house.texts


@pytest.mark.parametrize("damage", ["cut", "changed", "deleted"])
def test_a_damaged_release_is_left_out_told_and_the_one_before_serves(folder: Path, damage: str) -> None:
    path, content = file(folder, 5), weights(5)
    path.write_bytes(content[:-100] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    if damage == "deleted":
        path.unlink()
    house = lived(folder)
    assert house.offers == 4
    assert "release 5 is not whole on this disk: version 4 is offered" in house.texts
    assert damage == "deleted" or f"{path} is damaged" in house.texts


def test_without_its_blobs_a_seed_offers_version_0_and_holds_what_comes(folder: Path) -> None:
    shutil.rmtree(folder / "blobs")
    house = lived(folder)
    assert house.offers == 0 and "release 5 is not whole on this disk: version 0 is offered" in house.texts
    assert lived(folder, 6).offers == 6


def test_a_damaged_word_is_told_and_the_release_before_serves(folder: Path) -> None:
    path = word(folder, 5)
    path.write_bytes(path.read_bytes()[:200])
    house = lived(folder)
    assert house.offers == 4 and f"{path} is damaged" in house.texts and not path.exists()


def test_without_any_word_version_0_is_offered_though_newer_bytes_are_there(folder: Path) -> None:
    for path in (folder / RELEASES).iterdir():
        path.write_bytes(b"")
    assert lived(folder).offers == 0
    assert lived(folder).offers == 0, "and kept"


@pytest.mark.parametrize("damage", ["emptied", "changed"])
def test_a_block_that_is_damaged_while_the_seed_runs_costs_its_release_alone(
    folder: Path, damage: str
) -> None:
    def look(house: House) -> None:
        if damage == "emptied":
            os.truncate(file(folder, 5), 0)
        else:
            with file(folder, 5).open("r+b") as content:
                content.write(bytes([weights(5)[0] ^ 1]))
        assert house.host.releases.blobs.get(digest_of(weights(5)[:BLOCK])) is None
        assert house.offered() == 4

    house = lived(folder, look=look)
    assert f"{file(folder, 5)} is damaged" in house.texts


def test_a_release_that_lost_a_block_is_whole_again_when_that_block_is_fetched(folder: Path) -> None:
    with file(folder, 5).open("r+b") as content:
        content.write(bytes([weights(5)[0] ^ 1]))
    house = lived(folder, 5)
    assert house.offers == 5 and file(folder, 5).read_bytes() == weights(5)
    assert lived(folder).offers == 5


def test_a_version_0_that_is_not_the_runs_is_believed_by_nobody(tmp_path: Path) -> None:
    house = lived(tmp_path, genesis=b"version 0, damaged")
    assert house.learner.releases.held is None and not house.learner.releases.known(
        0, Blocks.of(b"version 0, damaged").root
    )
    assert "release 0 has the weights" in house.texts


class Killed(BaseException):
    """Ends a process at once, as a kill does."""


def household(path: Path, *roots: str) -> Path:
    """A learner's folder that holds these releases -> that of a seed beside it, which has none."""
    learner = path / "peers" / "learner-1"
    for root in roots:
        for name in (f"blobs/{root}", f"blobs/{root}.release", f"{RELEASES}/{root}"):
            write_durably(learner / name, root.encode())
    return path / "peers" / "seed"


def adopted(seed: Path) -> list[str]:
    """Roots of the releases that are here whole; nothing else is."""
    words = sorted(path.name for path in (seed / RELEASES).iterdir())
    assert sorted(path.name for path in (seed / "blobs").iterdir() if path.suffix != ".new") == sorted(
        name for root in words for name in (root, f"{root}.release")
    )
    assert not (seed / "adopting").exists()
    return words


@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_seed_that_ends_while_it_takes_the_releases_of_its_folder_takes_the_rest_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    rename, roots, ended = os.rename, ["1" * 64, "a" * 64], False
    for last in range(1, 20):
        path, left = tmp_path / str(last), last
        seed = household(path, *roots)

        def failing(source: Path, to: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise error
            rename(source, to)

        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", failing)
            try:
                take_releases(path, seed)
            except type(error):
                ended = True
            else:
                break
        take_releases(path, seed)
        assert adopted(seed) == roots, f"ended at rename {last}"
    assert ended and last > 6


def test_a_seed_with_releases_of_its_own_takes_no_others_and_no_drafts(tmp_path: Path) -> None:
    seed = household(tmp_path, "1" * 64, "a" * 64 + ".new")
    take_releases(tmp_path, seed)
    assert adopted(seed) == ["1" * 64]
    household(tmp_path, "b" * 64)
    take_releases(tmp_path, seed)
    assert adopted(seed) == ["1" * 64], "it has been here: what it dropped does not come back"
