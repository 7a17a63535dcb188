"""A learner's admission path in its own process, for the row `groups`: a real node and
`LearnerInbox.receive`, without training: one that keeps admitted groups on the disk, and one that does not.

    python -m lab.processes.admission_server '{"folder": ..., "model": ...}'
                         -> {"addresses", "run", "tcp", "zmq"}
    {"do": "pulled", "frames": 800}   -> {}, once so many frames came over ZMQ since the last time

The same process serves the baselines: on the same event loop Mail with a handler that only acknowledges, and
a bare TCP socket that does the same; in a thread of its own ZMQ's push/pull, which acknowledges nothing
("zmq" is 0 without pyzmq). Admitted groups are taken from the batcher as a training learner takes them.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.processes import hosted
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.intake.inbox import LearnerInbox
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.frames import wire
from swarm.protocol import Service
from swarm.settings import config as configs
from swarm.settings import loading
from swarm.types import Digest, PeerId, Receipt, Release, Verdict

RUN = Digest(hashlib.sha256(b"swarm bench").hexdigest())
SETTINGS = (
    "run.sampling.max_tokens=8192",
    "run.batch.groups=16777216",
    "run.batch.share=1",
    "run.batch.newcomers=1",
    "run.optimizer.lr=1e-3",
    "peer.listen.host=127.0.0.1",
)
"""Completions long enough for frames of 256 KiB, batches that never fill and no shares: admission is
measured, not training. Of as many slots no two senders draw the same one (swarm.core.intake.curriculum)."""

RECEIPT = wire.encode(Receipt(verdict=Verdict.ADMIT, detail="", version=0, credit=320_000))
READ_AHEAD = 1 << 20
"""Bytes of read-ahead, as of p2pd's streams (swarm.net.libp2p.p2pd)."""

AGE = 3600.0
"""Seconds of the release when the server starts: so many draws of a new one would be refused
(swarm.core.intake.admission)."""

TAKE_EVERY = 0.02
SIZE = struct.Struct(">I")
REPLY = struct.Struct(">BI")
"""The framing of swarm.net.messaging.mail."""


def main() -> int:
    setup = opened()
    return run_until_signalled(
        lambda on_signal: _serve(Path(setup["folder"]), Path(setup["model"]), on_signal)
    )


async def _serve(folder: Path, model: Path, _: SignalHandler) -> None:
    import torch

    torch.set_num_threads(1)
    config = loading.load(None, SETTINGS).config
    async with hosted.node(folder, RUN, config.peer.listen) as (node, keyring):
        learner, started = learner_peer(node, keyring, config, model, folder), time.time()
        learner.host.releases.candidates.receive(release_of(learner.host.ports.me, started), b"")
        forgetful = _without_log(learner)
        node.mail.prefer(lambda _: True)  # as whoever has delivered, which all samplers have soon
        taking = asyncio.create_task(_take(learner.inbox, forgetful))
        await node.mail.serve(Service.GROUPS, learner.inbox.receive)
        await node.mail.serve("in memory", forgetful.receive)
        await node.mail.serve("acknowledge", _acknowledge)
        server = await asyncio.start_server(_bare, "127.0.0.1", 0, limit=READ_AHEAD)

        pulled = Pulled()

        async def answer(asked: Answer) -> Answer:
            await asyncio.to_thread(pulled.wait, asked["frames"])
            return {}

        try:
            tcp = server.sockets[0].getsockname()[1]
            say(addresses=node.addresses(), run=RUN, tcp=tcp, zmq=pulled.port, started=started)
            await answer_all(answer)
        finally:
            server.close()
            taking.cancel()


def pyzmq() -> Any:
    """Its module, whose stubs lack its names. Raises ImportError."""
    return import_module("zmq")


class Pulled:
    """Frames that come over a ZMQ socket: a thread takes them and throws them away."""

    def __init__(self) -> None:
        self.port, self._frames = 0, threading.Semaphore(0)
        try:
            zmq = pyzmq()
        except ImportError:
            return
        socket = zmq.Context.instance().socket(zmq.PULL)
        self.port = socket.bind_to_random_port("tcp://127.0.0.1")
        threading.Thread(target=self._take, args=(socket,), daemon=True).start()

    def wait(self, frames: int) -> None:
        for _ in range(frames):
            self._frames.acquire()

    def _take(self, socket: Any) -> None:
        while True:
            socket.recv()
            self._frames.release()


def learner_peer(node: Any, keyring: Any, config: configs.Config, model: Path, folder: Path) -> Any:
    """As peers.build.assembly builds it, journal and log of groups included; at version 0 without a round."""
    from peers.build.model import factory
    from peers.learner.learner import LearnerPeer
    from swarm.protocol import Role
    from swarm.tasks import catalog as tasks

    learner, tokenization = factory.learner(model, config)
    source = tasks.source(config.run.task, config.run.seed)
    host = hosted.host(node, keyring, config, Role.LEARNER, folder)
    peer = LearnerPeer(host, learner, source, tokenization, folder)
    peer.learner.version = 0
    return peer


def _without_log(learner: Any) -> LearnerInbox:
    """A second inbox of the learner, which keeps groups in memory alone."""
    inbox = learner.inbox
    return LearnerInbox(inbox.host, inbox.source, inbox.decoder, lambda: 0, lambda: 1)


def release_of(publisher: PeerId, started: float) -> Release:
    """The release that all senders name, of a server that started then."""
    return Release(
        version=0,
        weights=Digest("0" * 64),
        size=1,
        parent=Digest(""),
        publisher=publisher,
        learners=1,
        groups=0,
        released=started - AGE,
    )


async def _take(*inboxes: LearnerInbox) -> None:
    while True:
        await asyncio.sleep(TAKE_EVERY)
        for inbox in inboxes:
            while len(inbox.batcher):
                inbox.batcher.take(1, 0, time.time())


async def _acknowledge(sender: Any, frame: bytes) -> bytes:
    return RECEIPT


async def _bare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Mail's framing and answer on a TCP connection, without anything else."""
    try:
        while True:
            (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
            await reader.readexactly(size)
            writer.write(REPLY.pack(0, len(RECEIPT)))
            writer.write(RECEIPT)
            await writer.drain()
    except (OSError, EOFError):  # the senders have gone
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
