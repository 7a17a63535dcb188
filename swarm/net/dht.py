"""hivemind's DHT in a forked child process, over the p2pd of its parent.

In come coroutine functions that run in the child beside its DHTNode; arguments and results cross its pipe.
Invariant: every call ends within ANSWER_SECONDS, and the child ends with its parent. hivemind's futures
between processes need torch: an observer uses swarm.net.board's LoopDHT. Not handled here:
replacing a child that died (swarm.net.supervision).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from hivemind.dht import DHT
from hivemind.dht.node import DHTNode
from hivemind.utils import mpfuture

from swarm.net.board import ANSWER_SECONDS
from swarm.net.p2pd import Daemon
from swarm.net.ports import NetError, Silent
from swarm.process_start import forget_parent

T = TypeVar("T")

START_SECONDS = 20.0
"""Seconds for the child to answer; on an idle machine it forks and answers in 0.3 s."""

STOP_SECONDS = 3.0
"""Seconds for a killed child to be gone."""


class ChildDHT(DHT):
    """hivemind.DHT that ends with its parent and shares none of its signal handlers and locks."""

    @classmethod
    async def launch(cls, daemon: Daemon, rules: Any, options: dict[str, Any]) -> ChildDHT:
        """Fork it and wait until it serves. Raises NetError."""
        # A child that is killed while it answers keeps this lock: the next one gets a fresh one.
        mpfuture.MPFuture._update_lock = multiprocessing.Lock()
        dht = cls(start=False, p2p=daemon, record_validators=[rules], **options)
        dht.start()
        try:
            await asyncio.wait_for(dht._ready, START_SECONDS)
        except BaseException as error:  # any failure of the child's start
            await dht.stop()
            if isinstance(error, Exception):
                raise NetError(f"the DHT did not start: {error or type(error).__name__}") from error
            raise
        return dht

    def run(self) -> None:
        forget_parent(self._parent_pid)
        # Shared by fork and taken in the parent's loop: a child killed while it holds it would stop the
        # parent.
        mpfuture.SharedBytes._lock = threading.Lock()
        super().run()

    async def ask(self, coroutine: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run `coroutine(node, *args)` in the child. Raises Silent when it does not answer."""
        try:
            future = self.run_coroutine(partial(_in_child, coroutine, args), return_future=True)
            return await asyncio.wait_for(future, ANSWER_SECONDS)  # type: ignore[no-any-return]
        except (TimeoutError, OSError, EOFError) as error:
            raise Silent(f"the DHT did not answer within {ANSWER_SECONDS:g} s") from error

    async def stop(self) -> None:
        """End the child with SIGKILL: it holds nothing that others lack, and a hung one reacts to nothing
        else."""
        if self.is_alive():
            self.kill()
        deadline = time.monotonic() + STOP_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)


async def _in_child(
    coroutine: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...], _dht: DHT, node: DHTNode
) -> T:
    return await coroutine(node, *args)
