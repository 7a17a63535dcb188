"""Imports what computes (torch, transformers, engines) in a thread, beside the peer's way into the network.

    ModelCode() --begin()--> a thread imports    --await ready()--> `peers.build.factory` is there

It takes seconds of processor, which the dialling of addresses leaves. `begin` comes after the node has forked
its DHT's process, which then has none of it, and `ready` before a learner forks its averager's, which needs
it. Not handled: which model is loaded (peers.build.factory).
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor

from peers.errors import say


class ModelCode:
    def __init__(self) -> None:
        self._imported: Future[None] | None = None

    def begin(self) -> None:
        thread = ThreadPoolExecutor(1, thread_name_prefix="imports")
        self._imported = thread.submit(_import)
        thread.shutdown(wait=False)

    async def ready(self) -> None:
        """Waits for the thread, and says so where it is not done. Raises what its imports raised."""
        if self._imported is None:
            self.begin()
        assert self._imported is not None
        if not self._imported.done():
            say("loading what computes: torch and transformers (some seconds; longer the first time)")
        await asyncio.wrap_future(self._imported)


def _import() -> None:
    one_thread()
    # What loading a model of any kind imports, so that it is not left for the loop.

    from peers.build import factory  # noqa: F401


def one_thread() -> None:
    """Limit torch to one thread before it computes anything: its threads do not survive a fork."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)  # on a machine that peers share, two threads are six times slower than one
