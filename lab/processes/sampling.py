"""Times one sampler engine in its own process, for the row `engines`: alone, or in the sampler role on a real
node.

    python -m lab.processes.sampling '{"engine": "hf", "model": ..., "folder": ..., "sink": ""}'
    {"do": "size", "tasks": 8, "group": 8}                               from now on so many in one call
    {"do": "sample", "calls": 20}                                        -> {"tokens", "seconds"}
    {"do": "plain", "calls": 20}     the same without this project       -> {"tokens", "seconds"}

With a sink, `sample` runs the whole sampler role: draw, sample, score, seal, deliver to the sink, journal and
gossip. Between two answers its next call waits at a Gate. The first call after the gate opens is not counted,
so that during every counted call the deliveries of the one before run, as in a long run.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lab.processes import baseline_engine as plain
from lab.processes import hosted
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.build.model.process_engine import ProcessEngine
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.protocol import PHASES, Kind, Phase, Role
from swarm.sample.base import Completions, Engine
from swarm.settings import loading
from swarm.settings.config import Config
from swarm.storage.weights import Weights
from swarm.types import Digest, PeerId

RUN = Digest("b" * 64)
CREDIT = 1_000_000
BEAT = 2.0
"""Seconds between two heartbeats of the sink, which this process makes up itself: the sink has no say in a
run."""

PATIENCE = 120.0
"""Seconds for a turn: the row gives up after 180."""


def settings(setup: Answer, *more: str) -> Config:
    """The demo's settings, with the engine and the length of completions of `setup`."""
    own = (
        f"run.sampling.max_tokens={setup['tokens']}",
        f"peer.engine.name={setup['engine']}",
        "peer.listen.host=127.0.0.1",
    )
    return loading.load(None, (*own, *setup.get("settings", ()), *more)).config


class DirectCalls:
    """The engine, called in a row."""

    def __init__(self, engine: Engine, source: Any, plain: Callable[[Sequence[str], int], int]) -> None:
        self.engine, self.source, self._plain = engine, source, plain
        self.tasks, self.group, self._next = 1, 2, 0

    def resize(self, tasks: int, group: int) -> None:
        self.tasks, self.group = tasks, group

    async def sample(self, calls: int) -> Answer:
        return await asyncio.to_thread(self._repeat, calls, self._sampled)

    async def plain(self, calls: int) -> Answer:
        return await asyncio.to_thread(self._repeat, calls, lambda prompts: self._plain(prompts, self.group))

    def _sampled(self, prompts: Sequence[str]) -> int:
        return count(self.engine.sample(prompts, self.group, range(self._next, self._next + len(prompts))))

    def _repeat(self, calls: int, one: Callable[[Sequence[str]], int]) -> Answer:
        tokens, began, cpu = 0, time.perf_counter(), time.process_time()
        for _ in range(calls):
            prompts = [self.source.task(self._next + i).prompt for i in range(self.tasks)]
            self._next += self.tasks
            tokens += one(prompts)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return {"calls": calls, "tokens": tokens, "seconds": seconds, "cpu": cpu}


@dataclass
class Passed:
    """A call for an engine."""

    at: float
    """When the call was made."""
    cpu: float
    """CPU seconds of this process until then."""
    tokens: int = 0


class Gate:
    """An engine that lets so many calls through and holds the next one until more are asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name = engine, engine.name
        self._changed = threading.Condition()
        self._allowed, self._open = 0, False
        self._calls: list[Passed] = []
        """Calls since the last `through`."""

    def load(self, weights: Weights) -> None:
        self.engine.load(weights)

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        call = Passed(time.perf_counter(), cpu(self.engine))
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or self._allowed > 0)
            self._allowed -= 1
        out = self.engine.sample(prompts, group_size, seeds)
        call.tokens = count(out)
        return out

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        return self.engine.greedy(prompts)

    def stop(self) -> None:
        self.engine.stop()

    def statistics(self) -> dict[str, float]:
        return self.engine.statistics()

    def close(self) -> None:
        """Let all waiting calls through."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def through(self, calls: int) -> Answer:
        """Let 1 + `calls` through, and wait until the one after them is asked for. The first is not
        counted."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._calls), PATIENCE):
                raise RuntimeError(f"the sampler asked for nothing in {PATIENCE:.0f} s")
            del self._calls[:-1]
            self._allowed = 1 + calls
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: len(self._calls) == 2 + calls, PATIENCE):
                raise RuntimeError(
                    f"the sampler made {len(self._calls) - 1} of {1 + calls} calls in {PATIENCE:.0f} s"
                )
            _, *counted, after = self._calls
        return {
            "calls": calls,
            "tokens": sum(call.tokens for call in counted),
            "seconds": after.at - counted[0].at,
            "cpu": after.cpu - counted[0].cpu,
        }


def cpu(engine: Engine) -> float:
    """CPU seconds of this process and of the one that the engine has."""
    if not isinstance(engine, ProcessEngine):
        return time.process_time()
    return time.process_time() + time.clock_gettime(~engine.pid << 3 | 2)  # clock_getcpuclockid of Linux


def count(groups: Sequence[Completions]) -> int:
    return sum(len(group.tokens) for group in groups)


class Swarmed:
    """The engine behind a sampler's role, which runs until the gate opens."""

    def __init__(self, host: Any, gate: Gate) -> None:
        self.host, self.gate = host, gate

    def resize(self, tasks: int, group: int) -> None:
        """Of the calls after the one that waits: that one is not counted."""
        run, peer = self.host.config.run, self.host.config.peer
        run = msgspec.structs.replace(run, sampling=msgspec.structs.replace(run.sampling, group_size=group))
        peer = msgspec.structs.replace(peer, engine=msgspec.structs.replace(peer.engine, tasks=tasks))
        self.host.config = Config(run=run, peer=peer)

    async def sample(self, calls: int) -> Answer:
        return await asyncio.to_thread(self.gate.through, calls)


@asynccontextmanager
async def swarmed(setup: Answer, config: Config) -> AsyncIterator[Swarmed]:
    """A sampler as peers.build.assembly makes it, on a node that is connected to the sink, with the folder's
    weights as its release."""
    folder = Path(setup["folder"])
    async with (
        hosted.node(folder, RUN, config.peer.listen, [setup["sink"]]) as (node, keyring),
        asyncio.TaskGroup() as tasks,
    ):
        host = hosted.host(node, keyring, config, Role.SAMPLER, folder)
        engine, source = await node.work.run(Kind.LOAD, parts, setup, config, True)
        weights = (Path(setup["model"]) / "model.safetensors").read_bytes()
        await host.releases.publish(Weights.of(weights, 0), learners=1)
        sink = tasks.create_task(_sink_beats(host, PeerId(setup["sink"].rsplit("/p2p/", 1)[1])))
        gate = Gate(engine)
        from peers.sampler.sampler import Sampler

        role = tasks.create_task(host.run(Sampler(host, gate, source, None).run))
        try:
            yield Swarmed(host, gate)
        finally:
            host.leave()
            gate.close()  # a call that waited for ever would keep this process
        await role
        sink.cancel()
        engine.close()


async def _sink_beats(host: Any, sink: PeerId) -> None:
    from swarm.types import Beat, Lag

    for seq in range(1 << 30):
        beat = Beat(
            name="sink",
            role=Role.LEARNER,
            incarnation=1,
            seq=seq,
            version=0,
            weights=Digest(""),
            state=PHASES[Phase.GATHERING],
            phase=Phase.GATHERING,
            credit=CREDIT,
            takers=1,
            inbox=0,
            done=0,
            refused=0,
            rate=0.0,
            tokens=0.0,
            busy=0.0,
            lag=Lag(),
            addresses=(),
            hardware="",
            at=host.now(),
        )
        host.roster.hear(sink, beat, host.now())
        host.move()
        await asyncio.sleep(BEAT)


def parts(setup: Answer, config: Config, apart: bool = False) -> tuple[Engine, Any]:
    """The engine with version 0, and the tasks as it reads them; `apart`: in a process of its own, as peers
    have it."""
    from lab.processes.training import genesis
    from peers.build.model import engine_choice, factory
    from swarm.learn.models import tokenization
    from swarm.tasks import catalog as tasks
    from swarm.tasks.rendered import Rendered

    run, model = config.run, Path(setup["model"])
    engine: Engine
    if apart and engine_choice.chosen(model, config).name == "hf":
        engine = process = ProcessEngine(config.peer.engine)
        process.set_up(model, config)
        source = Rendered(tasks.source(run.task, run.seed), process.render_all, slow=True)
    else:
        engine, render = factory.engine(model, config), tokenization.of_run(model, run).render_all
        source = Rendered(tasks.source(run.task, run.seed), render)
    engine.load(Weights.of(genesis(model, config), 0))
    return engine, source


async def _program(setup: Answer, _: SignalHandler) -> None:
    import torch

    torch.set_num_threads(1)
    async with AsyncExitStack() as stack:
        config = settings(setup)
        ours: DirectCalls | Swarmed
        if setup["sink"]:
            ours = await stack.enter_async_context(swarmed(setup, config))
        else:
            engine, source = parts(setup, config)
            stack.callback(engine.close)
            ours = DirectCalls(engine, source, plain.way(setup, config))

        async def answer(asked: Answer) -> Answer:
            if asked["do"] == "size":
                ours.resize(asked["tasks"], asked["group"])
                return {}
            if asked["do"] == "sample":
                return await ours.sample(asked["calls"])
            assert isinstance(ours, DirectCalls)
            return await ours.plain(asked["calls"])

        say()
        await answer_all(answer)


def main() -> int:
    setup = opened()
    return run_until_signalled(lambda on_signal: _program(setup, on_signal))


if __name__ == "__main__":
    sys.exit(main())
