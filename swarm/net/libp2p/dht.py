"""hivemind's DHT in a forked child process, over the p2pd of its parent.

    ChildDHT(rules)            a fork, which waits
    launch(daemon, options)    --pipe--> DHTNode on that p2pd
    ask(coroutine, arguments)  --pipe--> coroutine(node, arguments), beside the DHTNode --pipe--> its result

The child has what its parent had imported at the fork: forked early, it has no torch. Coroutine functions
cross the pipe by name, arguments and results as msgpack. Invariants: every call ends within ANSWER_SECONDS;
the child ends with its parent. Not handled here: replacing a child that died (swarm.net.libp2p.supervision).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P
from hivemind.utils.multiaddr import Multiaddr

from swarm.net.libp2p.p2pd import Daemon
from swarm.net.messaging.board import ANSWER_SECONDS
from swarm.net.ports import NetError, Silent
from swarm.processes import process
from swarm.processes.event_loop import EventLoop

T = TypeVar("T")

START_SECONDS = 20.0
"""Seconds for the child to answer; on an idle machine it forks and answers in 0.3 s."""


class DhtCall(msgspec.Struct, frozen=True, array_like=True):
    number: int
    function: str
    """`module:name` of a coroutine function."""
    args: tuple[Any, ...]


class DhtAnswer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    result: Any = None
    failed: str = ""
    """The coroutine's exception."""


encode = msgspec.msgpack.encode


class ChildDHT:
    """The parent's side."""

    def __init__(self, rules: Any) -> None:
        """`rules` is the RecordValidatorBase of its records. Forks. Raises OSError."""
        self._child = process.Child(partial(_live, rules), echo=True)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._listening: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def pid(self) -> int:
        return self._child.pid

    async def launch(self, daemon: Daemon, options: dict[str, Any]) -> None:
        """Make its DHTNode over this p2pd; the child is ended when that fails. Raises NetError, and Silent
        where the child died."""
        self._listening = asyncio.create_task(self._listen())
        place = int(options.pop("node_id"))
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._asked(
                    "", str(daemon.daemon_listen_maddr), place.to_bytes(DHTID.HASH_NBYTES, "big"), options
                )
        except BaseException as error:
            await self.stop()
            if isinstance(error, Exception):
                kind = Silent if isinstance(error, Silent) else NetError
                raise kind(f"the DHT did not start: {error or type(error).__name__}") from error
            raise

    async def ask(self, coroutine: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run `coroutine(node, *args)` in the child. Raises Silent when it does not answer, RuntimeError with
        the coroutine's exception."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._asked(f"{coroutine.__module__}:{coroutine.__qualname__}", *args)  # type: ignore[no-any-return]
        except TimeoutError as error:
            raise Silent(f"the DHT did not answer within {ANSWER_SECONDS:g} s") from error

    async def stop(self) -> None:
        """End the child with SIGKILL: it holds nothing that others lack, and a hung one reacts to nothing
        else."""
        if not self._ended:
            self._ended = True
            if self._listening is not None:
                self._listening.cancel()
                await asyncio.wait({self._listening})
            self._lose("is ended")
            await asyncio.to_thread(self._child.end)

    def is_alive(self) -> bool:
        return not self._ended and self._child.alive

    async def _asked(self, function: str, *args: Any) -> Any:
        if not self.is_alive():
            raise Silent("the DHT's process is gone")
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._child.send(encode(DhtCall(number, function, args)))
            return await future
        finally:
            del self._answers[number]

    async def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(DhtAnswer)
        try:
            while True:
                answer = decoder.decode(await self._child.awaited())
                if (future := self._answers.get(answer.number)) is None or future.done():
                    continue  # its caller no longer waits
                if answer.failed:
                    future.set_exception(RuntimeError(f"in the DHT's process: {answer.failed}"))
                else:
                    future.set_result(answer.result)
        except process.ChildLost as lost:
            self._lose(str(lost))

    def _lose(self, why: str) -> None:
        for future in self._answers.values():
            if not future.done():
                future.set_exception(Silent(f"the DHT's process {why}"))


# --- the child's side ---------------------------------------------------------------------------------------


def _live(rules: Any) -> None:
    """All of the child's life; it ends when its parent's end of the pipe does."""
    pipe = process.Pipe()
    frames = pipe.listen()
    first = msgspec.msgpack.decode(frames(), type=DhtCall)
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(_serve(rules, pipe, frames, first))


async def _serve(rules: Any, pipe: process.Pipe, frames: Callable[[], bytes], first: DhtCall) -> None:
    address, place, options = first.args
    node = await DHTNode.create(
        p2p=await P2P.replicate(Multiaddr(address)),
        node_id=DHTID.from_bytes(place),
        record_validator=rules,
        **options,
    )
    pipe.send(encode(DhtAnswer(first.number)))
    decoder = msgspec.msgpack.Decoder(DhtCall)
    async with asyncio.TaskGroup() as tasks:
        while True:
            ask = decoder.decode(await asyncio.to_thread(frames))
            tasks.create_task(_answer(node, pipe, ask))


async def _answer(node: DHTNode, pipe: process.Pipe, ask: DhtCall) -> None:
    module, _, name = ask.function.partition(":")
    try:
        answer = DhtAnswer(ask.number, await getattr(importlib.import_module(module), name)(node, *ask.args))
    except Exception as error:
        answer = DhtAnswer(ask.number, failed=f"{type(error).__name__}: {error}")
    pipe.send(encode(answer))
