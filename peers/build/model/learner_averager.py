"""Opens a learner's averager, and measures its line.

    limit, what the last start measured --> LearnerLine: refusal, warning, or nothing said
    LearnerLine --rate()--> HiveAverager: announced to the others of a round

The line is measured while the learner runs and remembered for its next start. Not handled here: how the
others use it (swarm.core.agreement.shares), and how it is measured (swarm.net.uplink).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from peers.build.local_peer import CLOSE_TIMEOUT, LocalPeer, kept_number
from peers.build.run_folder import RunFolder
from peers.errors import CannotHere
from peers.fit import rounds
from swarm import events
from swarm.net.libp2p.listening import check_named
from swarm.net.ports import Average
from swarm.net.uplink import Uplink
from swarm.settings.config import Run
from swarm.types import PeerId

if TYPE_CHECKING:
    from swarm.net.averaging.averager import HiveAverager
    from swarm.net.libp2p.node import Node

FASTEST = 1 << 40
"""Bytes per second: a remembered rate above it cannot be that of a line."""


class LearnerLine:
    def __init__(
        self,
        local: LocalPeer,
        run: Run,
        values: int,
        pids: Callable[[], Collection[int | None]],
        limit: float = math.inf,
    ) -> None:
        """A round averages `values`; `pids()` are the processes of the moment that send, `limit` bytes per
        second at most. Raises CannotHere when a round is too long at that limit."""
        if limit < math.inf and (why := rounds.objection(run, values, limit)):
            raise CannotHere(f"this peer's peer.limits.upload is too low to learn: {why}")
        self._local, self._run, self._values = local, run, values
        self._file = local.folder / "uplink"
        self._uplink = Uplink(pids, kept_number(self._file, FASTEST), limit)
        self._warned = False

    def rate(self) -> int:
        """Bytes per second; 0 while it is not known. Warns once where a round is too long for it."""
        rate = self._uplink.rate()
        if rate and not self._warned and (why := rounds.objection(self._run, self._values, rate)):
            self._warned = True
            self._local.bus.emit(
                events.Noted(at=self._local.now(), peer=self._local.keyring.me, level="warning", text=why)
            )
        return rate

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure while the block runs, and remember the result."""
        self.rate()
        watching = asyncio.create_task(self._uplink.watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            if rate := self._uplink.rate():
                self._local.keep(self._file, str(rate), "this line is measured anew")
            if not watching.cancelled():
                watching.result()


@asynccontextmanager
async def open_averager(local: LocalPeer, run: RunFolder, node: Node) -> AsyncIterator[HiveAverager]:
    from peers.build.model import factory
    from swarm.net.averaging.averager import HiveAverager
    from swarm.net.messaging.guard import averaging_prefix

    check_named(node.listen, parts=True)
    settings = run.settings
    numel = factory.size(run.model, settings)
    line = LearnerLine(
        local, settings, numel, lambda: (node.pids().get("p2pd"), averager.pid()), node.limits.up.rate
    )
    averager = HiveAverager(
        daemon=node.control,
        listen=node.listen,
        prefix=averaging_prefix(run.digest),
        numel=numel,
        groups=settings.batch.groups,
        settings=settings.averaging,
        report=local.report,
        uplink=line.rate,
    )
    averager.limits = node.limits
    await averager.start()
    try:
        async with line.measured():
            yield averager
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await averager.close()


class NoAverager:
    """The Averager port of a peer that averages no gradients."""

    def check(self, against: Collection[PeerId], key: int) -> None:
        raise RuntimeError("only a learner of a run in butterfly mode averages")

    def gone(self, peers: Collection[PeerId]) -> None:
        raise RuntimeError("only a learner of a run in butterfly mode averages")

    async def average(self, *its: Any, **named: Any) -> Average | None:
        raise RuntimeError("only a learner of a run in butterfly mode averages")
