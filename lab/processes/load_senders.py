"""Sends real groups from several simulated samplers in one process, for the row `groups`; each sender has its
own key and node.

    python -m lab.processes.load_senders '{"folder": ..., "model": ..., "server": {...}}'
    {"do": "join", "senders": 16}                                   nodes for so many
    {"do": "seal", "senders": 4, "frames": 2000, "tokens": 0}       fresh groups -> {"bytes": of all frames}
    {"do": "send", "way": a key of WAYS, "tcp" or "zmq", "repeat": 1}  those frames -> {"admitted", "refused"}

Sealing is not timed: the server is measured, and a real sampler seals while it waits for its engine. All ways
send the same frames with the same number in flight, but for ZMQ, which keeps as many as it likes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from lab.processes.admission_server import READ_AHEAD, REPLY, SETTINGS, SIZE, pyzmq, release_of
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.core.intake.curriculum import Draws
from swarm.frames import wire
from swarm.protocol import Service
from swarm.settings import config as configs
from swarm.settings import loading
from swarm.types import Digest, Noise, PeerId, Receipt, Times, Verdict

UNDER_WAY = 4
"""Groups of one sender without a receipt: sixteen senders fill the 64 calls that Mail serves at once
(swarm.net.messaging.mail)."""

PATIENCE = 60.0

WAYS = {"admit": Service.GROUPS, "memory": "in memory", "mail": "acknowledge"}
"""Way -> service of the server."""


@dataclass
class Sender:
    node: Any
    keyring: Any
    frames: list[bytes]
    made: int = 0
    """Groups."""


class LoadSenders:
    def __init__(self, folder: Path, model: Path, server: dict[str, Any]) -> None:
        from swarm.learn.models.pretrained import load_tokenizer
        from swarm.tasks import catalog as tasks

        self.folder, self.server, self.config = folder, server, loading.load(None, SETTINGS).config
        self.run = Digest(server["run"])
        self.learner = PeerId(server["addresses"][0].rsplit("/p2p/", 1)[1])
        self.tokenizer = load_tokenizer(model)
        self.source = tasks.source(self.config.run.task, self.config.run.seed)
        self.senders: list[Sender] = []
        self.active: list[Sender] = []
        self.refused: Counter[str] = Counter()
        """Why groups were not admitted."""
        self.draws = Draws(self.run, self.config.run.batch.groups)

    async def answer(self, asked: Answer) -> Answer:
        match asked["do"]:
            case "join":
                while len(self.senders) < asked["senders"]:
                    self.senders.append(await self._join(len(self.senders)))
                return {}
            case "seal":
                self.active = self.senders[: asked["senders"]]
                each = asked["frames"] // asked["senders"]
                for sender in self.active:
                    sender.frames = [self.seal(sender, asked["tokens"]) for _ in range(each)]
                return {
                    "frames": each * len(self.active),
                    "bytes": sum(len(f) for s in self.active for f in s.frames),
                }
            case "send" if asked["way"] == "zmq":
                return {"admitted": await asyncio.to_thread(self._push, asked["repeat"]), "refused": []}
            case _:
                counts = await asyncio.gather(
                    *(self._send(s, asked["way"], asked["repeat"]) for s in self.active)
                )
                return {"admitted": sum(counts), "refused": [why for why, _ in self.refused.most_common(1)]}

    async def close(self) -> None:
        await asyncio.gather(*(sender.node.close() for sender in self.senders))

    async def _join(self, number: int) -> Sender:
        from swarm.membership.identity import open_key
        from swarm.net.libp2p.node import Node

        key = self.folder / f"sender-{number}"
        keyring, listen = open_key(key), configs.Listen(host="127.0.0.1", dial_only=True)
        node = await Node.start(
            keyring=keyring,
            key_path=key,
            run=self.run,
            listen=listen,
            bootstrap=self.server["addresses"][:1],
            report=lambda *_: None,
        )
        return Sender(node, keyring, [])

    def seal(self, sender: Sender, tokens: int) -> bytes:
        """A group as a sampler would send it: right answers and wrong ones, or `tokens` random digits each
        for large frames."""
        import numpy as np

        from peers.sampler.new_group import make_group
        from swarm.sample.base import Completions

        release, now = release_of(self.learner, self.server["started"]), time.time()
        drawn = self.draws.of(release.weights, sender.keyring.me, sender.made)
        sender.made += 1
        rng = np.random.default_rng(drawn.seed)
        task = self.source.task(drawn.task)
        size = self.config.run.sampling.group_size
        digits = tokens or len(task.answer)
        texts = ["".join(map(str, rng.integers(0, 10, digits))) for _ in range(size)]
        if not tokens:
            texts[: size // 2] = [task.answer] * (size // 2)
        rows = [[*ids, self.tokenizer.eos_token_id] for ids in self.tokenizer(texts).input_ids]
        flat = np.array([token for row in rows for token in row], np.int32)
        logprobs = -rng.exponential(0.5, len(flat)).astype(np.float32)
        completions = Completions(tuple(map(len, rows)), flat, logprobs, tuple(texts), noise=Noise.GUMBEL)
        times = Times(released=release.released, fetched=now, used=now, finished=now, sent=now)
        rewards = self.source.rewards(task, texts)
        group = make_group(sender.keyring.me, release, drawn, completions, rewards, times)
        return wire.seal(group, self.run, sender.keyring)

    def _push(self, repeat: int) -> int:
        """All frames of all senders in turn, each over a socket of its own -> how many."""
        zmq = pyzmq()
        sockets = [zmq.Context.instance().socket(zmq.PUSH) for _ in self.active]
        for socket in sockets:
            socket.connect(f"tcp://127.0.0.1:{self.server['zmq']}")
        rounds = zip(*(sender.frames for sender in self.active), strict=True)
        frames = [*zip(cycle(sockets), chain.from_iterable(rounds), strict=False)] * repeat
        for socket, frame in frames:
            socket.send(frame)
        for socket in sockets:
            socket.close()  # queued messages are still sent
        return len(frames)

    async def _send(self, sender: Sender, way: str, repeat: int) -> int:
        """All of a sender's frames, UNDER_WAY at a time -> how many were admitted."""
        frames = islice(cycle(sender.frames), repeat * len(sender.frames))
        lanes = [await self._lane(sender, way) for _ in range(UNDER_WAY)]

        async def drive(exchange: Callable[[bytes], Awaitable[bytes]]) -> int:
            receipts = [wire.decode(await exchange(frame), Receipt) for frame in frames]
            self.refused.update(one.detail for one in receipts if one.verdict is not Verdict.ADMIT)
            return sum(one.verdict is Verdict.ADMIT for one in receipts)

        return sum(await asyncio.gather(*map(drive, lanes)))

    async def _lane(self, sender: Sender, way: str) -> Callable[[bytes], Awaitable[bytes]]:
        if way != "tcp":
            return lambda frame: sender.node.mail.send(self.learner, WAYS[way], frame, PATIENCE)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server["tcp"], limit=READ_AHEAD)

        async def exchange(frame: bytes) -> bytes:
            writer.write(SIZE.pack(len(frame)))
            writer.write(frame)
            await writer.drain()
            _, size = REPLY.unpack(await reader.readexactly(REPLY.size))
            return await reader.readexactly(size)

        return exchange


async def _program(setup: dict[str, Any], _: SignalHandler) -> None:
    import torch

    torch.set_num_threads(1)
    senders = LoadSenders(Path(setup["folder"]), Path(setup["model"]), setup["server"])
    say()
    try:
        await answer_all(senders.answer)
    finally:
        await senders.close()


def main() -> int:
    setup = opened()
    return run_until_signalled(lambda on_signal: _program(setup, on_signal))


if __name__ == "__main__":
    sys.exit(main())
