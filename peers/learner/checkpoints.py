"""Writes a learner's checkpoints and restores the learner from one after a restart.

    after a step      -> save: the disk has it while the next gradient is computed
    before a change   -> written: of weights or moments, which are written from where they are

Not handled here: the files themselves (swarm.learn.files.checkpoint), the use of an outdated version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from peers.runtime.host import Host
from swarm import events
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.learners.base_learner import BaseLearner
from swarm.protocol import Kind, Part
from swarm.types import Digest, Release, Struct


class Progress(Struct):
    """The origin of a learner's version: its groups, members and parent. A checkpoint holds it besides
    weights and optimizer, so that the learner can release that version as it would have been released
    before."""

    parent: Digest
    """Of the version before."""
    learners: int = 0
    """How many averaged for it; 0 where that is not known."""
    groups: int = 0
    """How many were trained on for it."""
    stepped: bool = False
    """By a step of this learner; otherwise it loaded the version."""


class Begun(NamedTuple):
    """A checkpoint that is being written."""

    write: Callable[[], None]
    version: int
    start: float


def progress_of(release: Release) -> Progress:
    """The origin of a release."""
    return Progress(release.parent, release.learners, release.groups)


class Checkpoints:
    def __init__(
        self,
        host: Host,
        learner: BaseLearner,
        folder: Path | None,
        saved: Callable[[int], Awaitable[None]],
    ) -> None:
        """Checkpoints are written to `folder`; None writes none. `saved(version)`: one is on the disk."""
        self._host, self._learner, self._folder, self._saved = host, learner, folder, saved
        self._begun = asyncio.Queue[Begun]()

    def resume(self) -> Progress | None:
        """Restore the learner. Returns the origin of the restored version, None when there is no checkpoint.

        A checkpoint that cannot be used costs the optimizer's moments only.
        """
        if self._folder is None or not self._folder.exists():
            return None
        try:
            return cast(
                Progress, self._learner.restore(self._folder, partial(msgspec.convert, type=Progress))
            )
        except (OSError, ValueError, RankLost) as error:
            text = f"{error}: going on from the newest release with a fresh optimizer"
            self._host.emit(events.Noted, level="warning", text=text)
            return None

    async def save(self, progress: Progress) -> None:
        """Write a checkpoint, beside the next computation where the learner supports it: its state is
        unchanged until that is `written`. A full disk costs the checkpoint; training continues."""
        if self._folder is None or self._learner.version < 0:
            return
        await self.written()
        extra, start = msgspec.to_builtins(progress), self._host.now()
        # (copies the random state of torch, which the next gradient may change)
        write = await self._host.ports.work.run(Kind.COPY, self._learner.checkpoint, extra)
        self._begun.put_nowait(Begun(partial(write, self._folder), self._learner.version, start))
        if not self._learner.saves_beside:
            await self.written()

    async def written(self) -> None:
        """Wait until no checkpoint is being written."""
        await self._begun.join()

    async def run(self) -> None:
        """Write pending checkpoints, beside the round, until cancelled."""
        while True:
            await self._write(*await self._begun.get())
            self._begun.task_done()

    async def _write(self, write: Callable[[], None], version: int, start: float) -> None:
        host = self._host
        kind = Kind.SAVE if self._learner.saves_beside else Kind.COPY
        try:
            if not await host.disk.write("checkpoint", f"no checkpoint of version {version}", kind, write):
                return
        except RankLost as error:
            host.emit(events.Faulted, part=Part.LEARNER, detail=f"no checkpoint of the last version: {error}")
            return
        host.emit(events.Saved, version=version, seconds=round(host.now() - start, 3))
        await self._saved(version)
