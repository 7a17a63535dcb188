"""Averaging with the other learners: the Averager port over hivemind, in a process of its own, under
supervision.

    average() -> Order --pipe--> averager process: matching -> butterfly all-reduce -> buffer -> RoundEnded
         ^                               |                            (float32, flat, one per peer)
         +------ kill -9 and replace <---+ no answer by the deadline, or the process is gone

In come a version, tensors, a weight and the peers that may take part; out comes the weighted mean with the
same bytes at every member, or None, or RoundLost. Invariants: the deadline always holds; tensors change only
after a complete round; uninvited peers are refused at the join and not served; members of a group all invited
each other and are at the same version.

This file is the peer's side. The other one: hivemind_averager.py (the process), matching.py (the members),
allreduce.py (the mean). Not handled: that all members *apply* the same average (a member may die after it
sent its parts): releases settle that.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import torch

from swarm.core.gradient_checks.norm_screening import Usual
from swarm.net.averaging.announcing import MAX_WEIGHT
from swarm.net.averaging.codec import ENCODINGS
from swarm.net.averaging.hivemind_averager import LEAVE, AveragerSetup, serve
from swarm.net.averaging.messages import (
    AveragerReady,
    FromChild,
    Gone,
    GroupFormed,
    Leave,
    Listening,
    Order,
    RoundEnded,
    encode,
)
from swarm.net.averaging.sketch import Sketches
from swarm.net.ports import Average, NotFinite, RoundLost
from swarm.net.rate import UNLIMITED, RateLimits
from swarm.processes import process
from swarm.protocol import Part
from swarm.settings.config import Averaging, Listen
from swarm.types import PeerId

T = TypeVar("T")

START = 20.0
"""Seconds until a new averager process must be ready; 0.2 is usual."""

LATE = 10.0
"""Seconds by which a process on a busy machine may be late before it counts as stopped, where the run sets no
deadline."""

STALE = 8
"""Addresses of dead processes that are remembered: one would do unless starts fail in a row."""


class AveragerProcess:
    """One averager process, seen from its parent: a child whose frames become futures."""

    def __init__(self, setup: AveragerSetup, gone: Callable[[AveragerProcess, str], None]) -> None:
        """`gone(self, why)` when it died by itself. Raises OSError."""
        self._loop, self._gone = asyncio.get_running_loop(), gone
        self.daemon, self.address = setup.daemon, ""
        self.ready: asyncio.Future[PeerId] = self._loop.create_future()
        self.ended: asyncio.Future[RoundEnded] | None = None
        self._met: Callable[[float], None]
        self._lost = ""
        self._process = process.Child(partial(serve, setup), echo=True)
        self._listening = self._loop.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, order: Order, met: Callable[[float], None]) -> RoundEnded:
        """`met(seconds)`: a group has formed, and how long its round may take. Raises RoundLost when the
        process is or gets lost."""
        if self._lost:
            raise RoundLost(self._lost)
        self.ended, self._met = self._loop.create_future(), met
        self._process.send(encode(order))
        return await self.ended

    async def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(FromChild)
        try:
            while True:
                self._take(decoder.decode(await self._process.awaited()))
        except process.ChildLost as lost:
            how = f"{lost.how}{lost.hint}{lost.after}" if isinstance(lost, process.Ended) else str(lost)
            self._lose(f"the averager process {how}")
            self._gone(self, self._lost)

    def _take(self, message: FromChild) -> None:
        match message:
            case Listening():
                self.address = message.address
            case AveragerReady():
                self.ready.set_result(PeerId(message.me))
            case GroupFormed():
                self._met(message.seconds)
            case RoundEnded():
                if self.ended is not None and not self.ended.done():
                    self.ended.set_result(message)

    def _lose(self, why: str) -> None:
        """Whoever waits for this process learns why it will not answer."""
        self._lost = self._lost or why
        for future in (self.ready, self.ended):
            if future is not None and not future.done():
                future.set_exception(RoundLost(why))
                future.exception()  # retrieved, also when it is not awaited

    def leave_out(self, gone: Gone) -> None:
        if self.ended is not None and not self.ended.done():
            self._process.send(encode(gone))

    async def leave(self) -> None:
        if not self._lost:
            self._process.send(encode(Leave()))
        await self.end("the averager is closed", 2 * LEAVE)

    async def end(self, why: str, grace: float = 0.0) -> None:
        """Nothing of it is left afterwards; see swarm.processes.process.Child.end."""
        self._lose(why)
        self._listening.cancel()
        await asyncio.wait({self._listening})
        await _in_thread(self._process.end, grace)
        if self.address:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.removeprefix("/unix"))


class HiveAverager:
    """The Averager port."""

    def __init__(
        self,
        daemon: Callable[[], Awaitable[str]],
        listen: Listen,
        prefix: str,
        numel: int,
        groups: int,
        settings: Averaging,
        report: Callable[[str, str, float | None], None],
        uplink: Callable[[], int] = int,
    ) -> None:
        """`daemon()` is p2pd's control address: when that changed, the process is replaced before the next
        round.

        `listen`: where others reach p2pd, and this averager past it. `prefix` names the run in calls to
        others.

        `numel` float32 values are averaged, in memory shared with the averager process (anonymous: not
        bounded by /dev/shm); `groups` make the run's whole batch, which bounds the weights.
        `report("averager", why, None)` reports a process given up, `report("averager", "", seconds)` the next
        one ready. `uplink()`: bytes per second of this peer's line, 0 while that is unknown.
        """
        if settings.compression not in ENCODINGS:
            raise ValueError(
                f"compression {settings.compression!r} is unknown: take one of {', '.join(ENCODINGS)}"
            )
        self._daemon, self._listen, self._prefix, self._settings, self._report = (
            daemon,
            listen,
            prefix,
            settings,
            report,
        )
        self._groups, self._usual = groups, Usual()
        self._check: tuple[tuple[str, ...], int] = (), 0
        self._uplink = uplink
        self.limits: RateLimits = UNLIMITED
        """Of the peer's line, to which its mail keeps as well; they may be set before `start`."""
        self._buffer = torch.frombuffer(mmap.mmap(-1, 4 * max(numel, 1)), dtype=torch.float32)[:numel]
        self._one_round = asyncio.Lock()
        self._stale: tuple[str, ...] = ()
        self._child: AveragerProcess | None = None
        self._replacement: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Raises RoundLost, TimeoutError or OSError when the process does not become ready, killed or not."""
        for left in reversed(range(process.STARTS)):
            try:
                self._child = await self._spawn()
                return
            except RoundLost as error:
                if not left:
                    raise
                self._report(Part.AVERAGER, f"while this peer starts: {error}", None)

    async def close(self) -> None:
        self._closed = True
        if self._replacement is not None:
            self._replacement.cancel()
            await asyncio.wait({self._replacement})
        if self._child is not None:
            await self._child.leave()

    def pid(self) -> int | None:
        """Of the averager process of the moment."""
        return self._child.pid if self._child is not None else None

    def check(self, against: Collection[PeerId], key: int) -> None:
        """See the port."""
        self._check = tuple(sorted(against)), key

    def gone(self, peers: Collection[PeerId]) -> None:
        """See the port."""
        if self._child is not None:
            self._child.leave_out(Gone(tuple(sorted(peers))))

    async def average(
        self,
        version: int,
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        deadline: float,
        marks: bytes = b"",
        weights: str = "",
        patience: float = 0.0,
    ) -> Average | None:
        """See the port. `weight` in [0, 1e6]; the tensors hold `numel` values in all."""
        if sum(tensor.numel() for tensor in tensors) != self._buffer.numel():
            raise ValueError(
                f"the tensors do not hold the {self._buffer.numel()} values that this averager was made for"
            )
        if not 0 <= weight <= MAX_WEIGHT:
            raise ValueError(f"the weight {weight} is not in [0, {MAX_WEIGHT:g}]")
        if not peers:
            return None
        loop = asyncio.get_running_loop()
        began = loop.time()
        until = began + deadline
        try:
            async with asyncio.timeout_at(until) as limit, self._one_round:
                child = await self._healthy()
                await _in_thread(self._copy_in, tensors)
                left = until - loop.time()
                order = Order(
                    version,
                    float(weight),
                    self._usual.norm(),
                    self._uplink(),
                    tuple(sorted(peers)),
                    left,
                    marks,
                    weights,
                    patience,
                    *self._check,
                )

                def within(seconds: float) -> None:
                    limit.reschedule(min(until, loop.time() + seconds + LATE))

                if not self._settings.deadline:
                    within(self._settings.match + patience + self._settings.request)
                ended = await self._supervised(child, order, within)
        except TimeoutError:
            raise RoundLost(
                f"version {version}: the averager did not answer within {loop.time() - began:.0f} s and is"
                " replaced"
            ) from None
        if ended.lost:
            kind = NotFinite if ended.not_finite else RoundLost
            raise kind(f"version {version}: {ended.lost}")
        if not ended.members:
            return None
        await _in_thread(self._copy_out, tensors)
        self._usual.add(ended.norms.values())
        return _outcome(ended, order.key, loop.time() - began)

    async def _supervised(
        self, child: AveragerProcess, order: Order, met: Callable[[float], None]
    ) -> RoundEnded:
        try:
            return await child.run(order, met)
        # the deadline, or the caller gave up: the process is still busy with the round
        except asyncio.CancelledError:
            self._replace("a round did not end by its deadline")
            raise

    async def _healthy(self) -> AveragerProcess:
        """The process at the p2pd of the moment; waits for a replacement."""
        if self._child is not None and self._child.daemon != await self._daemon():
            self._replace("the p2pd below it was replaced")
        while self._replacement is not None:
            await asyncio.wait({self._replacement})
        if self._child is None:
            raise RoundLost("the averager is not running")
        return self._child

    def _replace(self, why: str) -> None:
        if self._replacement is None and not self._closed:
            self._report(Part.AVERAGER, why, None)
            self._replacement = asyncio.get_running_loop().create_task(self._revive(why))

    async def _revive(self, why: str) -> None:
        began = asyncio.get_running_loop().time()
        try:
            while True:
                if self._child is not None:
                    await self._bury(self._child, why)
                try:
                    self._child = await self._spawn()
                    break
                except (RoundLost, TimeoutError, OSError) as error:
                    self._report(
                        Part.AVERAGER, f"a new process did not start: {error or type(error).__name__}", None
                    )
                    await asyncio.sleep(1.0)
            self._report(Part.AVERAGER, "", asyncio.get_running_loop().time() - began)
        finally:
            self._replacement = None

    async def _bury(self, child: AveragerProcess, why: str) -> None:
        await child.end(why)
        self._child = None
        if child.address:
            self._stale = (*self._stale, child.address)[-STALE:]

    async def _spawn(self) -> AveragerProcess:
        """Raises RoundLost, TimeoutError or OSError; the process that did not start is gone then."""
        async with asyncio.timeout(START):
            daemon = await self._daemon()
        setup = AveragerSetup(
            self._prefix,
            self._settings,
            self._groups,
            self._buffer,
            daemon,
            self._listen,
            self._stale,
            self.limits.in_averager(),
        )
        child = AveragerProcess(setup, self._on_gone)
        try:
            async with asyncio.timeout(START):
                await child.ready
        except BaseException:
            await self._bury(child, "the averager process did not become ready")
            raise
        return child

    def _on_gone(self, child: AveragerProcess, why: str) -> None:
        if child is self._child:
            self._replace(why)

    def _copy_in(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, part in zip(tensors, self._parts(tensors), strict=True):
            part.copy_(tensor.detach().reshape(-1))

    @torch.no_grad()
    def _copy_out(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, part in zip(tensors, self._parts(tensors), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def _parts(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self._buffer.split([tensor.numel() for tensor in tensors])


def _outcome(ended: RoundEnded, key: int, seconds: float) -> Average:
    """Of a complete round; `key` as in Averager.check."""
    return Average(
        members=frozenset(map(PeerId, ended.members)),
        seconds=seconds,
        exchanged={PeerId(peer): size for peer, size in ended.exchanged.items()},
        scaled={PeerId(peer): share for peer, share in ended.scaled.items()},
        marks={PeerId(peer): marks for peer, marks in ended.marks.items()},
        false=frozenset(map(PeerId, ended.false)),
        named={PeerId(peer): [*map(PeerId, by)] for peer, by in ended.named.items()},
        sketches=_sketches(key, ended) if key else None,
        recipe=ended.recipe,
        through=frozenset(map(PeerId, ended.through)),
    )


def _sketches(key: int, ended: RoundEnded) -> Sketches:
    """The process's sketches of the others' values."""
    kept = {
        PeerId(peer): torch.frombuffer(bytearray(data), dtype=torch.float64)
        for peer, data in ended.sketches.items()
    }
    return Sketches(key, ended.spans, kept)


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    """Off the loop, and never left half done: a cancellation waits for it."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
