"""A file system of a few megabytes under a whole swarm: it fills up and has room again, or dies."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_disks import fill, mounted_by
from swarm_processes import SETTINGS, UNHURRIED, Program, started_swarm

from swarm import events

SIZE = 24 << 20
SHUTDOWN = 0x8004587D
"""The ioctl after which an ext4 answers with errors alone."""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of its own."""
    image, target = tmp_path / "image", tmp_path / "disk"
    with open(image, "wb") as file:
        file.truncate(SIZE)
    make = ["mkfs.ext4", "-q", "-m", "0", str(image)]
    with mounted_by(target, make, ["mount", "-o", "loop", str(image), str(target)]) as disk:
        yield disk


def end(disk: Path) -> None:
    """From now on it fails at everything."""
    folder = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", 1))
    os.close(folder)


def test_a_disk_that_fills_up_under_everybody_stops_nobody_and_what_it_refused_is_written_later(
    tmp_path: Path, mounted: Path
) -> None:
    with started_swarm(mounted, SETTINGS) as it:
        seed = it.seed()
        words = ["--serve", "mirror", "--folder", str(tmp_path / "elsewhere")]
        watcher = it.run(
            "watcher",
            "join",
            it.invite("observer"),
            *words,
            folder=tmp_path / "elsewhere",
        )

        def goes_on(why: str, versions: int = 5) -> None:
            """The swarm makes so many versions more, seen from another disk."""
            since = time.time()
            it.wait_until(
                lambda: len({e.version for e in watcher.saw(events.Trained, since)}) >= versions, 90, why
            )

        def on_disk(role: str) -> Program:
            return it.join(role, *UNHURRIED * (role == "sampler"), folder=mounted / role)

        learner, sampler = on_disk("learner"), on_disk("sampler")
        it.wait_until(lambda: learner.saw(events.Saved), 90, "the learner did not save")
        goes_on("nothing was trained", 2)
        full_since = time.time()
        fill(mounted)
        goes_on("the training stopped when the disk was full")
        peers = {"seed": seed.peer, "learner": learner.peer}
        for role, peer in peers.items():
            it.wait_until(
                lambda peer=peer: watcher.saw(events.Faulted, full_since, part="disk", peer=peer),
                60,
                f"the {role} did not tell of its disk",
            )
        fill(mounted)
        for again in (learner, sampler, seed):
            again.kill()
        fill(mounted)  # what they wrote last has gone with them
        seed = it.run("seed", "start", str(it.config), "--folder", str(it.folder))
        learner, sampler = on_disk("learner"), on_disk("sampler")
        goes_on("nobody came back on a full disk")
        assert all(program.process.poll() is None for program in (seed, learner, sampler, watcher))
        told = watcher.saw(events.Faulted, full_since, part="disk")
        minutes = (time.time() - full_since) / 60 + 1
        assert len(told) <= 20 * minutes * len({event.peer for event in told}), "not in each try"
        room_since = time.time()
        (mounted / "ballast").unlink()
        for role, peer in peers.items():
            it.wait_until(
                lambda peer=peer: watcher.saw(events.Recovered, room_since, part="disk", peer=peer),
                60,
                f"the {role} did not tell that its disk takes what it gets",
            )
        it.wait_until(lambda: learner.saw(events.Saved, room_since), 60, "no checkpoint when there was room")
        goes_on("the training stopped when there was room")


def test_a_disk_that_dies_under_everybody_stops_nobody(tmp_path: Path, mounted: Path) -> None:
    with started_swarm(tmp_path, SETTINGS) as it:
        it.folder = mounted / "run"
        seed = it.seed()
        words = ["--serve", "mirror", "--folder", str(tmp_path / "elsewhere")]
        watcher = it.run("watcher", "join", it.invite("observer"), *words, folder=tmp_path / "elsewhere")
        learner = it.join("learner", folder=mounted / "learner")
        sampler = it.join("sampler", *UNHURRIED, folder=mounted / "sampler")
        it.wait_until(lambda: learner.saw(events.Saved), 90, "the learner did not save")
        it.wait_until(lambda: watcher.saw(events.Trained), 60, "nothing was trained")
        before = {version.version for version in watcher.saw(events.Trained)}
        peers = (seed.peer, learner.peer, sampler.peer)
        since = time.time()
        end(mounted)
        it.wait_until(
            lambda: len({event.version for event in watcher.saw(events.Trained, since)} - before) >= 8,
            90,
            "the training stopped when the disk was gone",
        )
        for peer in peers:
            it.wait_until(
                lambda peer=peer: watcher.saw(events.Faulted, since, part="disk", peer=peer),
                60,
                f"{peer} did not tell of its disk",
            )
        for program in (seed, learner, sampler):
            assert program.process.poll() is None and "bug" not in program.log.read_text()
