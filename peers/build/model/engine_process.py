"""An engine over transformers or vLLM, as the peer has it: in a process of its own (engine_worker.py), which
is restarted when it dies or hangs.

    EngineProcess(settings, name)
      fit, set_up(model, config)          the first of them starts the process; the engine is made
      load, sample, greedy                one call, one answer
      render_all                          the same, or beside a call that samples: its thread takes both

The event loop and the engine take no time from each other, and the peer's own process needs no torch. A
release travels as the name of its file, which both map. A call whose process dies, shows no sign of life for
`peer.engine.timeout`, or says that its engine is broken, is an EngineError; the next call starts the process
again with the release that was loaded last. One that cannot take other weights in place (StaleWeights) takes
them in a new process. Invariant: completions come from the version of the last `load` that returned.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from peers.build.model import engine_worker
from peers.build.model.engine_worker import (
    Alive,
    Answer,
    Call,
    CallFailed,
    FitCall,
    Fitted,
    GreedyCall,
    LoadCall,
    Loaded,
    RenderAnswer,
    RenderCall,
    SampleCall,
    SampledGroups,
    SetUp,
    SetUpCall,
    Texts,
)
from peers.errors import CannotHere, UserError, raised, say
from swarm.processes.process import STARTS, Child, ChildLost, Ended, Hung, environment
from swarm.protocol import Role
from swarm.sample.base import Completions, EngineBroken, EngineError, SampleCounts, StaleWeights
from swarm.sample.scratch import Scratch
from swarm.settings.config import Config, EngineSettings
from swarm.storage.blocks import Damaged
from swarm.storage.weights import Weights
from swarm.tasks.base import RewardError
from swarm.types import Task

COMMAND = (sys.executable, "-m", "peers.build.model.engine_worker")
NAMES = ("hf", "vllm")
"""Engines that run in a process of their own."""

START = 1200.0
"""Seconds for the process to start, and for its first release: a large model from a slow disk, and graphs
that vLLM captures the first time."""

OVERCOME = (" WARNING ", " INFO ")
"""In lines that explain no death: vLLM's warnings name errors that it has overcome."""

T = TypeVar("T")


class EngineKilled(EngineError):
    """Its process was ended by a signal."""


class EngineProcess:
    """Calls from several threads take turns; `close` and `stop` come from any at any time."""

    def __init__(self, settings: EngineSettings, name: str = "hf") -> None:
        """`name`: one of NAMES."""
        self._settings, self.name = settings, name
        self._place = Scratch(name)
        self.scratch = self._place.path
        """The files that its process reads."""
        self._setup: SetUpCall | None = None
        self._templated = True
        self._held: tuple[Path, Weights] | None = None
        """Where the release that was loaded last is, and the release: a file is there for as long as an
        object holds it."""
        self._counts = SampleCounts()
        self._closed = False
        self._starts = 0
        self._signs, self._done = 0, 0
        self._turn = threading.Lock()
        self._child: Child | None = None
        self._has_policy = False
        """Its process has loaded a release."""
        self._sampling: Child | None = None
        """Its process, while that samples: only then it knows what to do with a nudge."""
        self._rendering = threading.Lock()
        """Held by the thread that asks for texts."""
        self._beside: Future[RenderAnswer] | None = None
        """The texts that a thread waits for, beside the call that samples."""
        self._joining = threading.Lock()
        """Of these two, `_sampling` and `_beside`, and while something is sent beside a call."""

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._child is not None
        return self._child.pid

    def fit(self, model: Path, config: Config, asked: Role | None, allowed: Sequence[Role]) -> Fitted:
        """The role and the precision that fit this machine. Raises UserError."""
        return self._first(FitCall(str(model), config, asked, [*allowed]), Fitted)

    def set_up(self, model: Path, config: Config) -> None:
        """Make the engine for the run's model. Raises UserError when this machine, or this run, cannot use
        it."""
        setup = SetUpCall(self.name, str(model), config)
        self._templated = self._first(setup, SetUp).templated
        self._setup, self._has_policy = setup, False

    def load(self, weights: Weights) -> None:
        """See Engine. When it fails, the release before stays loaded."""
        path = self.scratch / f"v{weights.version}-{weights.digest[:12]}"
        self._put(path, weights)
        with self._turn:
            old = self._held
            try:
                self._take(path, weights)
            except BaseException:
                if old is None or old[0] != path:
                    path.unlink(missing_ok=True)
                raise
            self._held = path, weights
            if old is not None and old[0] != path:
                old[0].unlink(missing_ok=True)

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        began = time.perf_counter()
        call = SampleCall([*prompts], group_size, [*seeds])
        with self._turn:
            self._ready()
            self._sampling = self._child
            try:
                groups = self._answered(call, SampledGroups, self._settings.timeout).groups
            finally:
                self._settle()
        self._counts.add(groups, began)
        self._done = len(prompts) * group_size
        return groups

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        texts = self._ask(GreedyCall([*prompts]), Texts).texts
        self._done = len(texts)
        return texts

    def render_all(self, tasks: Sequence[Task]) -> list[str]:
        """The texts that the model reads. Raises ValueError where its template cannot write one of them,
        and RewardError where there is no process to write them."""
        if not self._templated and not any(task.messages for task in tasks):
            return [task.prompt for task in tasks]  # without the milliseconds of a question
        try:
            answer = self._rendered(RenderCall(tasks)).answer
            if isinstance(answer, CallFailed):
                raise self._error(answer)
        except EngineError as error:
            raise RewardError(str(error)) from error
        return answer.texts

    def stop(self) -> None:
        if (sampling := self._sampling) is not None:
            sampling.nudge()

    def statistics(self) -> dict[str, float]:
        """`starts`: how often the process was started; `signs` of life that it gave while it computed;
        `done`: completions of the current call that were done at the last sign, or of the last one."""
        version = -1 if self._held is None else self._held[1].version
        # A process that starts gives none, and is not missed: START ends its wait.
        signs = self._signs if self._has_policy else time.monotonic()
        own = {"version": version, "starts": self._starts, "signs": signs, "done": self._done}
        return {**own, **self._counts.statistics()}

    def close(self) -> None:
        self._closed = True
        if self._child is not None:
            self._child.kill()
        self._place.remove()

    def _rendered(self, call: RenderCall) -> RenderAnswer:
        """Raises EngineError."""
        with self._rendering:
            with self._joining:
                if (sampling := self._sampling) is not None:
                    self._beside = beside = Future[RenderAnswer]()
                    sampling.send(engine_worker.encode(call))
            return self._ask(call, RenderAnswer) if sampling is None else beside.result()

    def _settle(self) -> None:
        """Nothing samples any more; a thread that asked beside it gets an answer."""
        with self._joining:
            self._sampling, beside, self._beside = None, self._beside, None
        if beside is None:
            return
        try:
            beside.set_result(self._answer(RenderAnswer, self._settings.timeout))
        except EngineError as error:
            beside.set_exception(error)

    def _first(self, call: FitCall | SetUpCall, kind: type[T]) -> T:
        """The answer to a call before there is a policy, from another process where one is killed meanwhile.
        Raises UserError."""
        for left in reversed(range(STARTS)):
            try:
                if self._child is None:
                    self._start()
                return self._answered(call, kind, START)
            except EngineError as error:
                if not left or not isinstance(error, EngineKilled):
                    raise CannotHere(f"{error}; peer.engine.name chooses another engine") from error
                say(f"{error}: it is started again")
        raise AssertionError("the last try returns or raises")

    def _put(self, path: Path, weights: Weights) -> None:
        with self._place.writing():
            weights.blocks.put(path)

    def _take(self, path: Path, weights: Weights) -> None:
        """Make a process load this release, a new one where this one cannot take it. A process that has none
        afterwards is ended."""
        if self._child is None:
            self._restart()
        again = self._has_policy
        try:
            seconds = self._settings.timeout if again else START
            self._answered(LoadCall.of(path, weights), Loaded, seconds)
        except BaseException as error:
            if not again:
                self._end()
            elif isinstance(error, StaleWeights):
                return self._take(path, weights)
            raise
        self._has_policy = True

    def _ask(self, call: Call | RenderCall, kind: type[T]) -> T:
        """The answer to one call, from a new process where there is none. Raises EngineError, and what the
        call itself raises."""
        with self._turn:
            self._ready()
            return self._answered(call, kind, self._settings.timeout)

    def _ready(self) -> None:
        """A process, with the release that was loaded last, from now on if there is none. Raises
        EngineError."""
        if self._child is not None:
            return
        self._restart()
        if self._held is None:
            return
        try:
            if not self._held[0].exists():  # a cleaner of old files was there
                self._put(*self._held)
            self._take(*self._held)
        except (ValueError, Damaged) as error:  # a file is gone
            raise EngineError(f"engine {self.name} cannot start again: {error}") from error

    def _restart(self) -> None:
        """Start the process, without a policy. Raises EngineError."""
        assert self._setup is not None, "set_up comes first"
        try:
            self._start()
            self._answered(self._setup, SetUp, START)
        except (OSError, UserError) as error:  # too many open files or processes; memory is short
            self._end()
            why = error.strerror if isinstance(error, OSError) else error
            raise EngineError(f"engine {self.name} cannot start again: {why}") from error
        except BaseException:
            self._end()
            raise

    def _answered(self, call: Call | RenderCall, kind: type[T], seconds: float) -> T:
        """Raises EngineError, and what the call itself raises; there is no process after EngineBroken and
        where it was lost."""
        assert self._child is not None
        self._done = 0
        self._child.send(engine_worker.encode(call))
        return self._answer(kind, seconds)

    def _answer(self, kind: type[T], seconds: float) -> T:
        """The next one, but for signs of life and those that a thread waits for beside this call."""
        if self._child is None:
            raise EngineError(f"engine {self.name} ended before it answered")
        try:
            while True:
                answer = engine_worker.decode_answer(self._child.receive(seconds))
                if not (isinstance(answer, Alive) or self._is_beside(answer)):
                    break
                self._signs += 1
                self._done = answer.done if isinstance(answer, Alive) else self._done
        except ChildLost as lost:
            self._end()
            killed = isinstance(lost, Ended) and lost.by_signal
            raise (EngineKilled if killed else EngineError)(f"engine {self.name} {_why(lost)}") from None
        if isinstance(answer, CallFailed):
            raise self._error(answer)
        assert isinstance(answer, kind)
        return answer

    def _error(self, failed: CallFailed) -> Exception:
        """What a call has failed with. The process is ended where its engine is broken."""
        kind = engine_worker.KINDS.get(failed.kind)
        if kind is None:
            return raised(failed.code, failed.reason)
        if issubclass(kind, EngineBroken):
            self._end()
            return kind(f"engine {self.name}: {failed.reason}")
        return kind(failed.reason)

    def _is_beside(self, answer: Answer) -> bool:
        """Whether a thread waited for that answer beside a call, and has it now."""
        if self._beside is None or not isinstance(answer, RenderAnswer):
            return False
        beside, self._beside = self._beside, None  # first: the thread may ask again
        beside.set_result(answer)
        return True

    def _start(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        own = {"OMP_NUM_THREADS": str(self._settings.threads)}
        if self.name == "vllm":
            own |= _vllms_environment(self._settings)
        # vLLM's lines are many, and are for those who know it.
        self._child = Child([*COMMAND, str(self.scratch)], environment(own), echo=self.name == "hf")
        self._starts += 1
        self._has_policy = False

    def _end(self) -> None:
        with self._joining:
            self._sampling = None
            if self._child is not None:
                self._child.end()
                self._child = None
        shutil.rmtree(self.scratch / engine_worker.OWN, ignore_errors=True)


def _why(lost: ChildLost) -> str:
    """Why a process was lost: with advice, with the last line of its output that names an error, or with its
    last lines. A process that a signal ends writes no line about that."""
    if isinstance(lost, Hung):
        return f"{lost} and counts as hung: if it was only slow, raise peer.engine.timeout"
    if not isinstance(lost, Ended):
        return str(lost)
    if lost.by_signal is not None:
        return f"{lost.how}{lost.hint}"
    lines = [line for line in lost.lines if not any(word in line for word in OVERCOME)]
    named = [line for line in lines if "Error" in line]
    return f"{lost.how}: {named[-1]}" if named else f"{lost.how}{lost.after if lines else ''}"


def _vllms_environment(settings: EngineSettings) -> dict[str, str]:
    """Environment variables of vLLM's process. `nobind`: by default vLLM binds threads to CPU cores, which
    other peers share here."""
    own = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        own["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB; left alone, vLLM takes half of a CPU's memory
    kind, _, number = settings.device.partition(":")
    if kind == "cuda" and number.isdigit():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        own["CUDA_VISIBLE_DEVICES"] = (
            visible[int(number)] if int(number) < len(visible) and visible[0] else number
        )
    return own
