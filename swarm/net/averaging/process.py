"""Main of the averager process: one thread reads the pipe, rounds run in a second one.

    peer --- Order, Gone, Leave ---> serve ---> swarm.net.averaging.hivemind_averager

Invariant: the process ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch

from swarm.net.averaging.hivemind_averager import Rounds, Setup
from swarm.net.averaging.messages import FromParent, Gone, Leave, Order, encode
from swarm.processes.allocation import keep_freed
from swarm.processes.event_loop import EventLoop
from swarm.processes.process import Pipe
from swarm.processes.processors import processors

LEAVE = 1.0
"""Seconds for a process to take its handlers back when it leaves; then it is killed."""

KEPT = 32 << 20
"""Bytes that each of the C library's arenas keeps: some parts at each stage. Pages that it gives back and
asks for again cost more than all that is computed on them."""


def serve(setup: Setup) -> None:
    """Main of the averager process, a fork of its peer's.

    torch on a second thread makes an OpenMP pool of its own: the one inherited through the fork is dead.
    """
    pipe = Pipe()
    logging.getLogger("hivemind").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    keep_freed(KEPT)
    loop = EventLoop()
    rounds = Rounds(setup, lambda message: pipe.send(encode(message)))
    threading.Thread(target=_run_rounds, args=(loop, rounds), daemon=True).start()
    decoder = msgspec.msgpack.Decoder(FromParent)
    while (frame := pipe.receive()) is not None:
        match decoder.decode(frame):
            case Order() as order:
                loop.call_soon_threadsafe(rounds.take, order)
            case Gone() as gone:
                loop.call_soon_threadsafe(rounds.gone, gone)
            case Leave():
                with contextlib.suppress(OSError):  # p2pd is gone, or late
                    asyncio.run_coroutine_threadsafe(rounds.close(), loop).result(LEAVE)
                return


def _run_rounds(loop: asyncio.AbstractEventLoop, rounds: Rounds) -> None:
    try:
        asyncio.set_event_loop(loop)
        # Its threads compute: more than there are cores wait for each other.
        loop.set_default_executor(ThreadPoolExecutor(processors()))
        loop.run_until_complete(rounds.open())
        loop.run_forever()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the parent sees the pipe close, and why
