"""The engine `hf` in a process of its own: `python -m peers.build.model.engine_worker FOLDER`, calls on its
standard input, answers on its standard output.

    Fit    -> Fitted          which role and precision fit this machine
    Setup  -> Ready           the model, without a policy
    Load   -> Done            Greedy -> Texts                Sample -> Sampled        any of them -> Failed
    Render -> Rendered        at any time, beside a call that samples, too

Frames (swarm.processes.process) hold msgpack. One call at a time but for Render, each gets one answer; before
it come signs of life (Alive) from a call that samples; SIGUSR1 ends such a call, which has failed then. The
process ends when its standard input does: nothing of it outlives the peer. Only its parent talks to it; what
comes in is believed. An error that is not an answer (a bug) ends it with a traceback. Not handled here:
deadlines, restarts (process_engine.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from peers.errors import explain
from swarm.processes.allocation import keep_freed
from swarm.processes.process import ChildLost, Pipe
from swarm.protocol import Role
from swarm.sample.base import Completions, EngineError, NoRoom
from swarm.settings.config import Config, EngineSettings
from swarm.storage.blocks import Blocks, Damaged, read_leaf_list
from swarm.storage.image import ReadOnly
from swarm.storage.weights import Weights
from swarm.types import Digest, Heads, Noise, Task

if TYPE_CHECKING:
    from swarm.learn.models.tokenization import Tokenization
    from swarm.sample.hf import HfEngine

ALIVE = 2.0
"""Seconds between two signs of life: far below every timeout, far above a step of a small model."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """What passes between the peer and this process."""


class Fit(Message, frozen=True):
    model: str
    config: Config
    asked: Role | None
    """The role that the person or the word names."""
    allowed: list[Role]


class Fitted(Message, frozen=True):
    role: Role
    engine: EngineSettings
    said: str


class Setup(Message, frozen=True):
    model: str
    """The run's model folder."""
    config: Config


class Load(Message, frozen=True):
    path: str
    """The release's bytes."""
    version: int
    root: Digest
    leaves: bytes
    size: int
    step: int

    @classmethod
    def of(cls, path: Path, weights: Weights) -> Load:
        blocks = weights.blocks
        leaves = bytes.fromhex("".join(blocks.leaves))
        return cls(str(path), weights.version, blocks.root, leaves, blocks.size, blocks.step)

    @property
    def weights(self) -> Weights:
        source = ReadOnly(Path(self.path), self.size)
        leaves = read_leaf_list(self.leaves, self.size, self.step)
        return Weights(self.version, Blocks(source, leaves, self.root, self.step))


class Sample(Message, frozen=True):
    prompts: Sequence[str]
    group: int
    seeds: Sequence[int]


class Greedy(Message, frozen=True):
    prompts: Sequence[str]


class Render(Message, frozen=True):
    tasks: Sequence[Task]


class Ready(Message, frozen=True):
    templated: bool
    """Prompts go through the chat template; else the model reads them as they are."""


class Done(Message, frozen=True):
    pass


class Alive(Message, frozen=True):
    pass


class Texts(Message, frozen=True):
    texts: list[str]


class SampledGroup(msgspec.Struct, frozen=True):
    """Completions as they travel."""

    lengths: tuple[int, ...]
    tokens: bytes
    """int32, one completion after the other."""
    logprobs: bytes
    """float32, likewise."""
    texts: tuple[str, ...]
    noise: Noise
    heads: Heads | None

    @classmethod
    def of(cls, one: Completions) -> SampledGroup:
        arrays = one.tokens.tobytes(), one.logprobs.tobytes()
        return cls(one.lengths, *arrays, one.texts, one.noise, one.heads)


class Sampled(Message, frozen=True):
    groups: list[SampledGroup]


class Failed(Message, frozen=True):
    kind: str
    """A key of KINDS; empty: a person can fix it, and `code` is the exit code."""
    reason: str
    code: int = 0


class Rendered(Message, frozen=True):
    """It may come before the answer to a call that was sent first."""

    answer: Texts | Failed


KINDS: dict[str, type[Exception]] = {
    "room": NoRoom,
    "engine": EngineError,
    "damaged": Damaged,
    "value": ValueError,
}
"""Errors that a call may end with, as the protocol of engines has them."""

Call = Fit | Setup | Load | Sample | Greedy
Answer = Fitted | Ready | Done | Alive | Texts | Sampled | Rendered | Failed


class EngineWorker:
    """Answers calls. `alive` is called after every token that is sampled."""

    def __init__(self, alive: Callable[[], None]) -> None:
        self._alive = alive
        self._engine: HfEngine | None = None
        self._tokens: Tokenization | None = None

    def answer(self, call: Call) -> Answer:
        """Raises what is a bug."""
        try:
            return self._answer(call)
        except Exception as error:
            if (failed := _failed(call, error)) is None:
                raise
            return failed

    def _answer(self, call: Call) -> Answer:
        if isinstance(call, Fit):
            return self._fit(call)
        if isinstance(call, Setup):
            return self._set_up(call)
        assert self._engine is not None and self._tokens is not None, "a Setup comes first"
        match call:
            case Load():
                self._engine.load(call.weights)
                return Done()
            case Sample():
                groups = self._engine.sample(call.prompts, call.group, call.seeds)
                return Sampled([SampledGroup.of(group) for group in groups])
            case Greedy():
                return Texts(self._engine.greedy(call.prompts))

    def render(self, call: Render) -> Rendered:
        """From any thread."""
        assert self._tokens is not None, "a Setup comes first"
        try:
            return Rendered(Texts(self._tokens.render_all(call.tasks)))
        except ChildLost as overrun:
            return Rendered(Failed("engine", str(overrun)))
        except ValueError as error:  # the template cannot write one of them
            return Rendered(Failed("value", str(error)))

    def stop(self) -> None:
        """End the call that samples now."""
        if self._engine is not None:
            self._engine.stop()

    def _fit(self, call: Fit) -> Fitted:
        from peers.fit.fits import choose_here

        return Fitted(*choose_here(Path(call.model), call.config, call.asked, call.allowed))

    def _set_up(self, call: Setup) -> Ready:
        from peers.build.model import factory
        from swarm.learn.models import tokenization

        self._tokens = tokenization.of_run(Path(call.model), call.config.run)
        self._engine = factory.hf(Path(call.model), call.config, self._alive)
        keep_freed()  # not what loading the model took, which may be as much as the model
        return Ready(self._tokens.templated)


def _failed(call: Call, error: Exception) -> Failed | None:
    """What the peer is told of an error; None for a bug."""
    if isinstance(call, Fit | Setup):
        told = explain(error)
        return None if told is None else Failed("", told[1], told[0])
    return next((Failed(name, str(error)) for name, kind in KINDS.items() if isinstance(error, kind)), None)


class SignsOfLife:
    """Sends Alive, at most every ALIVE seconds."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._frame = pipe, msgspec.msgpack.encode(Alive())
        self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last > ALIVE:
            self._pipe.send(self._frame)
            self._last = time.monotonic()


class Beside:
    """Answers Render on the thread that reads what the peer sends, whatever else is computed."""

    def __init__(self, worker: EngineWorker, pipe: Pipe) -> None:
        self._worker, self._pipe = worker, pipe
        self._decoder = msgspec.msgpack.Decoder(Call | Render)

    def __call__(self, frame: bytes) -> bool:
        """False for another call."""
        if not isinstance(call := self._decoder.decode(frame), Render):
            return False
        try:
            self._pipe.send(msgspec.msgpack.encode(self._worker.render(call)))
        except BaseException:  # a bug: nobody else sees an exception of this thread
            traceback.print_exc()
            os._exit(1)
        return True


def main(scratch: str) -> int:
    """`scratch`, the folder with the weights, is removed when the peer ends without a word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the peer, which leaves in order
    pipe, decoder = Pipe(), msgspec.msgpack.Decoder(Call)
    worker = EngineWorker(SignsOfLife(pipe))
    call = pipe.listen(lambda: shutil.rmtree(scratch, ignore_errors=True), Beside(worker, pipe))
    signal.signal(signal.SIGUSR1, lambda *_: worker.stop())
    while True:
        pipe.send(msgspec.msgpack.encode(worker.answer(decoder.decode(call()))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
