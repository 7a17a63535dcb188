"""The engine `hf` as the peer has it: its torch is in another process (engine_worker.py), which is restarted
when it dies or hangs.

    ProcessEngine(settings)
      fit, set_up(model, config)          the first of them starts the process; the model is loaded
      load, sample, greedy                one call, one answer
      render_all                          the same, or beside a call that samples: its thread takes both

The event loop and the engine take no time from each other, and the peer's own process needs no torch. A
release travels as the name of its file, which both map. A call whose process dies, or shows no sign of life
for `peer.engine.timeout`, is an EngineError; the next call starts the process again with the release that was
loaded last. Invariant: completions come from the version of the last `load` that returned.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from peers.build.model import engine_worker
from peers.build.model.engine_worker import (
    Alive,
    Done,
    Failed,
    Fit,
    Fitted,
    Greedy,
    Load,
    Ready,
    Render,
    Rendered,
    Sample,
    Sampled,
    SampledGroup,
    Setup,
    Texts,
)
from peers.errors import CannotHere, UserError, raised, say
from swarm.processes.process import STARTS, Child, ChildLost, Ended, Hung, environment
from swarm.protocol import Role
from swarm.sample.base import Completions, EngineError, SampleCounts
from swarm.sample.scratch import Scratch
from swarm.settings.config import Config, EngineSettings
from swarm.storage.blocks import Damaged
from swarm.storage.weights import Weights
from swarm.tasks.base import RewardError
from swarm.types import Task

COMMAND = (sys.executable, "-m", "peers.build.model.engine_worker")
START = 1200.0
"""Seconds for the process to start and to load the model: a large one from a slow disk."""

T = TypeVar("T")

Asked = engine_worker.Call | Render

_answers = msgspec.msgpack.Decoder(engine_worker.Answer)


class Killed(EngineError):
    """Its process was ended by a signal."""


class ProcessEngine:
    """Calls from several threads take turns; `close` and `stop` come from any at any time."""

    name = "hf"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._place = Scratch("hf")
        self.scratch = self._place.path
        """The files that its process reads."""
        self._setup: Setup | None = None
        self._templated = True
        self._held: tuple[Path, Weights] | None = None
        """Where the release that was loaded last is, and the release: a file is there for as long as somebody
        holds it."""
        self._counts = SampleCounts()
        self._closed = False
        self._starts = 0
        self._signs = 0
        self._turn = threading.Lock()
        self._child: Child | None = None
        self._sampling: Child | None = None
        """Its process, while that samples: only then it knows what to do with a nudge."""
        self._rendering = threading.Lock()
        """Held by the one who asks for texts."""
        self._beside: Future[Rendered] | None = None
        """The texts that somebody waits for, beside the call that samples."""
        self._joining = threading.Lock()
        """Of these two, `_sampling` and `_beside`, and while something is sent beside a call."""

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._child is not None
        return self._child.pid

    def fit(self, model: Path, config: Config, asked: Role | None, allowed: Sequence[Role]) -> Fitted:
        """The role and the precision that fit this machine. Raises UserError."""
        return self._first(Fit(str(model), config, asked, [*allowed]), Fitted)

    def set_up(self, model: Path, config: Config) -> None:
        """Load the run's model. Raises UserError when this machine, or this run, cannot use it."""
        setup = Setup(str(model), config)
        self._templated = self._first(setup, Ready).templated
        self._setup = setup

    def load(self, weights: Weights) -> None:
        """See Engine. When it fails, the release before stays loaded."""
        path = self.scratch / f"v{weights.version}-{weights.digest[:12]}"
        self._put(path, weights)
        with self._turn:
            self._load(path, weights)

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        began = time.perf_counter()
        call = Sample([*prompts], group_size, [*seeds])
        with self._turn:
            self._ready()
            self._sampling = self._child
            try:
                answer = self._answered(call, Sampled, self._settings.timeout)
            finally:
                self._settle()
        groups = [_completions(group) for group in answer.groups]
        self._counts.add(groups, began)
        return groups

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        return self._ask(Greedy([*prompts]), Texts).texts

    def render_all(self, tasks: Sequence[Task]) -> list[str]:
        """The texts that the model reads. Raises ValueError where its template cannot write one of them,
        and RewardError where there is no process to write them."""
        if not self._templated and not any(task.messages for task in tasks):
            return [task.prompt for task in tasks]  # without the milliseconds of a question
        try:
            answer = self._rendered(Render(tasks)).answer
            if isinstance(answer, Failed):
                raise _raised(answer)
        except EngineError as error:
            raise RewardError(str(error)) from error
        return answer.texts

    def stop(self) -> None:
        if (sampling := self._sampling) is not None:
            sampling.nudge()

    def statistics(self) -> dict[str, float]:
        """`starts`: how often the process was started; `signs` of life that it gave while it computed."""
        version = -1 if self._held is None else self._held[1].version
        own = {"version": version, "starts": self._starts, "signs": self._signs}
        return {**own, **self._counts.statistics()}

    def close(self) -> None:
        self._closed = True
        if self._child is not None:
            self._child.kill()
        self._place.remove()

    def _rendered(self, call: Render) -> Rendered:
        """Raises EngineError."""
        with self._rendering:
            with self._joining:
                if (sampling := self._sampling) is not None:
                    self._beside = beside = Future[Rendered]()
                    sampling.send(msgspec.msgpack.encode(call))
            return self._ask(call, Rendered) if sampling is None else beside.result()

    def _settle(self) -> None:
        """Nothing samples any more; whoever asked beside it gets an answer."""
        with self._joining:
            self._sampling, beside, self._beside = None, self._beside, None
        if beside is None:
            return
        try:
            beside.set_result(self._answer(Rendered, self._settings.timeout))
        except EngineError as error:
            beside.set_exception(error)

    def _first(self, call: Fit | Setup, kind: type[T]) -> T:
        """The answer to a call before there is a policy, from another process where one is killed meanwhile.
        Raises UserError."""
        for left in reversed(range(STARTS)):
            try:
                if self._child is None:
                    self._start()
                return self._answered(call, kind, START)
            except Killed as error:
                if not left:
                    raise CannotHere(f"{error}; peer.engine.name chooses another engine") from error
                say(f"{error}: it is started again")
            except EngineError as error:
                raise CannotHere(f"{error}; peer.engine.name chooses another engine") from error
        raise AssertionError("the last try returns or raises")

    def _put(self, path: Path, weights: Weights) -> None:
        with self._place.writing():
            weights.blocks.put(path)

    def _load(self, path: Path, weights: Weights) -> None:
        old, fresh = self._held, self._child is None
        try:
            if fresh:
                self._restart(None)
            self._answered(Load.of(path, weights), Done, self._settings.timeout)
        except BaseException:
            if fresh:
                self._end()  # it has no policy
            if old is None or old[0] != path:
                path.unlink(missing_ok=True)
            raise
        self._held = path, weights
        if old is not None and old[0] != path:
            old[0].unlink(missing_ok=True)

    def _ask(self, call: Asked, kind: type[T]) -> T:
        """The answer to one call, from a new process where there is none. Raises EngineError, and what the
        call itself raises."""
        with self._turn:
            self._ready()
            return self._answered(call, kind, self._settings.timeout)

    def _ready(self) -> None:
        """A process, from now on if there is none. Raises EngineError."""
        if self._child is None:
            self._restart(self._held)

    def _restart(self, held: tuple[Path, Weights] | None) -> None:
        """Start the process with this release. Raises EngineError."""
        assert self._setup is not None, "set_up comes first"
        try:
            self._start()
        except OSError as error:  # too many open files or processes
            raise EngineError(f"engine hf cannot start again: {error.strerror}") from error
        try:
            self._answered(self._setup, Ready, START)
            if held is not None:
                if not held[0].exists():  # a cleaner of old files was there
                    self._put(*held)
                self._answered(Load.of(*held), Done, self._settings.timeout)
        except (UserError, ValueError, Damaged) as error:  # memory is short, or a file is gone
            self._end()
            raise EngineError(f"engine hf cannot start again: {error}") from error
        except BaseException:
            self._end()
            raise

    def _answered(self, call: Asked, kind: type[T], seconds: float) -> T:
        """Raises EngineError, after which there is no process, and what the call itself raises."""
        assert self._child is not None
        self._child.send(msgspec.msgpack.encode(call))
        return self._answer(kind, seconds)

    def _answer(self, kind: type[T], seconds: float) -> T:
        """The next one, but for signs of life and those that somebody waits for beside this call."""
        if self._child is None:
            raise EngineError("engine hf ended before it answered")
        try:
            while True:
                answer = _answers.decode(self._child.receive(seconds))
                if not (isinstance(answer, Alive) or self._is_beside(answer)):
                    break
                self._signs += 1
        except ChildLost as lost:
            self._end()
            killed = isinstance(lost, Ended) and lost.by_signal
            raise (Killed if killed else EngineError)(f"engine hf {_why(lost)}") from None
        if isinstance(answer, Failed):
            raise _raised(answer)
        assert isinstance(answer, kind)
        return answer

    def _is_beside(self, answer: engine_worker.Answer) -> bool:
        """Whether somebody waited for that answer beside a call, and has it now."""
        if self._beside is None or not isinstance(answer, Rendered):
            return False
        beside, self._beside = self._beside, None  # first: whoever has an answer may ask again
        beside.set_result(answer)
        return True

    def _start(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        own = {"OMP_NUM_THREADS": str(self._settings.threads)}
        self._child = Child([*COMMAND, str(self.scratch)], environment(own), echo=True)
        self._starts += 1

    def _end(self) -> None:
        with self._joining:
            self._sampling = None
            if self._child is not None:
                self._child.end()
                self._child = None


def _why(lost: ChildLost) -> str:
    if isinstance(lost, Hung):
        return f"{lost} and counts as hung: if it was only slow, raise peer.engine.timeout"
    return f"{lost.how}{lost.hint}{lost.after}" if isinstance(lost, Ended) else str(lost)


def _raised(failed: Failed) -> Exception:
    if kind := engine_worker.KINDS.get(failed.kind):
        return kind(failed.reason)
    return raised(failed.code, failed.reason)


def _completions(group: SampledGroup) -> Completions:
    return Completions(
        group.lengths,
        np.frombuffer(group.tokens, np.int32),
        np.frombuffer(group.logprobs, np.float32),
        group.texts,
        group.noise,
        group.heads,
    )
