"""An engine in a process of its own: `python -m peers.build.model.engine_worker FOLDER`, calls on its
standard input, answers on its standard output.

    FitCall -> Fitted               which role and precision fit this machine
    SetUpCall -> SetUp              the engine that it names, of the run's model, without a policy
    LoadCall -> Loaded              SampleCall -> SampledGroups       GreedyCall -> Texts
    any of them -> CallFailed       RenderCall -> RenderAnswer        at any time, beside a call that samples

An engine is what swarm.sample.base says; factory.py makes the two that there are. Completions travel as they
are. Frames (swarm.processes.process) hold msgpack. One call at a time but for RenderCall, each gets one
answer; before it come signs of life (Alive) from a call that samples; SIGUSR1 ends such a call, which has
failed then. The process ends when its standard input does: nothing of it outlives the peer. Only its parent
talks to it; what comes in is believed. Not handled here: deadlines, restarts (engine_process.py).
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
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from peers.errors import explain
from swarm.processes.process import ChildLost, Pipe
from swarm.protocol import Role
from swarm.sample.base import Completions, Engine, EngineBroken, EngineError, NoRoom, StaleWeights
from swarm.settings.config import Config, EngineSettings
from swarm.storage.blocks import Blocks, Damaged, read_leaf_list
from swarm.storage.image import ReadOnly
from swarm.storage.weights import Weights
from swarm.types import Digest, Task

if TYPE_CHECKING:
    from swarm.learn.models.tokenization import Tokenization

ALIVE = 2.0
"""Seconds between two signs of life: far below every timeout, far above a step of a small model."""

OWN = "engine"
"""In FOLDER: what the engine itself makes of a release."""


class EngineMessage(msgspec.Struct, frozen=True, tag=True):
    """What passes between the peer and this process."""


class FitCall(EngineMessage, frozen=True):
    model: str
    config: Config
    asked: Role | None
    """The role that the command line or the invite names."""
    allowed: list[Role]


class Fitted(EngineMessage, frozen=True):
    role: Role
    engine: EngineSettings
    reason: str


class SetUpCall(EngineMessage, frozen=True):
    engine: str
    """`hf` or `vllm`."""
    model: str
    """The run's model folder."""
    config: Config


class SetUp(EngineMessage, frozen=True):
    templated: bool
    """Prompts go through the chat template; else the model reads them as they are."""


class LoadCall(EngineMessage, frozen=True):
    path: str
    """The release's bytes."""
    version: int
    root: Digest
    leaves: bytes
    size: int
    step: int

    @classmethod
    def of(cls, path: Path, weights: Weights) -> LoadCall:
        blocks = weights.blocks
        leaves = bytes.fromhex("".join(blocks.leaves))
        return cls(str(path), weights.version, blocks.root, leaves, blocks.size, blocks.step)

    @property
    def weights(self) -> Weights:
        source = ReadOnly(Path(self.path), self.size)
        leaves = read_leaf_list(self.leaves, self.size, self.step)
        return Weights(self.version, Blocks(source, leaves, self.root, self.step))


class Loaded(EngineMessage, frozen=True):
    pass


class SampleCall(EngineMessage, frozen=True):
    prompts: Sequence[str]
    group: int
    seeds: Sequence[int]


class SampledGroups(EngineMessage, frozen=True):
    groups: list[Completions]


class GreedyCall(EngineMessage, frozen=True):
    prompts: Sequence[str]


class RenderCall(EngineMessage, frozen=True):
    tasks: Sequence[Task]


class Texts(EngineMessage, frozen=True):
    texts: list[str]


class CallFailed(EngineMessage, frozen=True):
    kind: str
    """A key of KINDS; empty: a user can fix it, and `code` is the exit code."""
    reason: str
    code: int = 0


class RenderAnswer(EngineMessage, frozen=True):
    """It may come before the answer to a call that was sent first."""

    answer: Texts | CallFailed


class Alive(EngineMessage, frozen=True):
    done: int = 0
    """Completions of the current call, as `alive` of the engine counts them."""


KINDS: dict[str, type[Exception]] = {
    "room": NoRoom,
    "stale": StaleWeights,
    "broken": EngineBroken,
    "engine": EngineError,
    "damaged": Damaged,
    "value": ValueError,
}
"""Errors that a call may end with, as the protocol of engines has them: the first that fits."""

Call = FitCall | SetUpCall | LoadCall | SampleCall | GreedyCall
Answer = Fitted | SetUp | Loaded | SampledGroups | Texts | RenderAnswer | CallFailed | Alive


def _array(kind: Any, data: bytes) -> np.ndarray:
    """Of an NDArray[...]."""
    return np.frombuffer(data, kind.__args__[1].__args__[0])


encode = msgspec.msgpack.Encoder(enc_hook=lambda array: array.tobytes()).encode
decode_answer = msgspec.msgpack.Decoder(Answer, dec_hook=_array).decode


class EngineWorker:
    """Answers calls. `alive` is called before every step that samples, with how many of the call's
    completions are done."""

    def __init__(self, folder: Path, alive: Callable[[int], None]) -> None:
        self._folder, self._alive = folder, alive
        self._engine: Engine | None = None
        self._tokens: Tokenization | None = None

    def answer(self, call: Call) -> Answer:
        try:
            return self._answer(call)
        except Exception as error:
            return _failed(call, error)

    def _answer(self, call: Call) -> Answer:
        if isinstance(call, FitCall):
            return self._fit(call)
        if isinstance(call, SetUpCall):
            return self._set_up(call)
        assert self._engine is not None, "a SetUpCall comes first"
        match call:
            case LoadCall():
                self._engine.load(call.weights)
                return Loaded()
            case SampleCall():
                return SampledGroups(self._engine.sample(call.prompts, call.group, call.seeds))
            case GreedyCall():
                return Texts(self._engine.greedy(call.prompts))

    def render(self, call: RenderCall) -> RenderAnswer:
        """From any thread."""
        assert self._tokens is not None, "a SetUpCall comes first"
        try:
            return RenderAnswer(Texts(self._tokens.render_all(call.tasks)))
        except ChildLost as overrun:
            return RenderAnswer(CallFailed("engine", str(overrun)))
        except ValueError as error:  # the template cannot write one of them
            return RenderAnswer(CallFailed("value", str(error)))

    def stop(self) -> None:
        """End the call that samples now."""
        if self._engine is not None:
            self._engine.stop()

    def _fit(self, call: FitCall) -> Fitted:
        from peers.fit.fits import choose_here

        return Fitted(*choose_here(Path(call.model), call.config, call.asked, call.allowed))

    def _set_up(self, call: SetUpCall) -> SetUp:
        from peers.build.model import factory
        from swarm.learn.models import tokenization

        model, config = Path(call.model), call.config
        self._tokens = tokenization.of_run(model, config.run)
        self._engine = factory.hosted(call.engine, model, config, self._folder, self._alive)
        return SetUp(self._tokens.templated)


def _failed(call: Call, error: Exception) -> CallFailed:
    """What the peer is told of an error; its traceback is printed where it is no answer."""
    if isinstance(call, FitCall | SetUpCall):
        if (told := explain(error)) is not None:
            return CallFailed("", told[1], told[0])
        error = EngineBroken.by(error)
    elif not isinstance(error, (*KINDS.values(),)):
        error = EngineBroken.by(error)
    if isinstance(error, EngineBroken):
        traceback.print_exc()
    return CallFailed(next(name for name, kind in KINDS.items() if isinstance(error, kind)), str(error))


class SignsOfLife:
    """Sends Alive, at most every ALIVE seconds."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._last = pipe, time.monotonic()

    def __call__(self, done: int) -> None:
        if time.monotonic() - self._last > ALIVE:
            self._pipe.send(encode(Alive(done)))
            self._last = time.monotonic()


class Beside:
    """Answers RenderCall on the thread that reads what the peer sends, whatever else is computed."""

    def __init__(self, worker: EngineWorker, pipe: Pipe) -> None:
        self._worker, self._pipe = worker, pipe
        self._decoder = msgspec.msgpack.Decoder(Call | RenderCall)

    def __call__(self, frame: bytes) -> bool:
        """False for another call."""
        if not isinstance(call := self._decoder.decode(frame), RenderCall):
            return False
        try:
            self._pipe.send(encode(self._worker.render(call)))
        except BaseException:  # a bug: an exception of this thread is shown nowhere else
            traceback.print_exc()
            os._exit(1)
        return True


def main(scratch: str) -> int:
    """`scratch`, the folder with the weights, is removed when the peer ends without a word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the peer, which leaves in order
    pipe, decoder = Pipe(), msgspec.msgpack.Decoder(Call)
    worker = EngineWorker(Path(scratch, OWN), SignsOfLife(pipe))
    call = pipe.listen(lambda: shutil.rmtree(scratch, ignore_errors=True), Beside(worker, pipe))
    signal.signal(signal.SIGUSR1, lambda *_: worker.stop())
    while True:
        pipe.send(encode(worker.answer(decoder.decode(call()))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
