"""The worker process: imports functions, then answers calls one at a time until its input ends.

    WorkerSetup -> WorkerReady | FunctionUnusable        FunctionCall -> FunctionResult | FunctionFailed
    RewardCall -> RewardValues per function, up to the first FunctionFailed

Frames (swarm.processes.process) hold msgpack. Functions are called on the main thread, where `signal.alarm`
works, and awaited when they are asynchronous, all on one loop. Invariant: an exception of a function becomes
a frame that names the line of its file. Not handled here: a hang, the death of the process, numbers that are
no rewards; swarm.tasks.workers.worker handles them.

It also runs under another interpreter (verifiers) that has only msgspec: of swarm it imports
swarm.processes.process and swarm.processes.start alone.
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any

import msgspec

from swarm.processes.process import Pipe

MESSAGE_CHARACTERS = 500
"""Characters of an exception's message that are passed on."""

OUTSIDE = 60.0
"""Seconds for a group outside of a worker."""

SCALARS = (bool, int, float)

OF_TRAINER = {
    "completion_ids": "rewards are of texts, which other peers may have tokenized otherwise",
    "trainer_state": "every peer computes the same rewards, whatever its step is",
    "environments": "completions are of one turn",
}
"""Arguments of TRL that functions do not get here, and why."""

LOGS: dict[str, Callable[..., None]] = {
    "log_extra": lambda column, values: None,
    "log_metric": lambda name, value: None,
}
"""Functions of TRL by which a reward logs: here their output is dropped."""

Function = Callable[..., Any]


class Frame(msgspec.Struct, frozen=True, tag=True):
    """A message between a worker and its process."""


class FunctionFile(msgspec.Struct, frozen=True):
    """A file of functions, sent as text, so that a sandbox needs no access to folders of the peer."""

    path: str
    """Its `__file__`; messages show the key of `sources`."""
    text: str


class WorkerSetup(Frame, frozen=True):
    """The functions to import."""

    functions: dict[str, str]
    """Name for messages -> `FILE.py:function` with a key of `sources`, or `package.module:function`."""
    sources: dict[str, FunctionFile]


class WorkerReady(Frame, frozen=True):
    """All functions are imported."""


class FunctionUnusable(Frame, frozen=True):
    """A function cannot be imported."""

    why: str


class RewardCall(Frame, frozen=True):
    """Every function with the same arguments, by TRL's convention."""

    arguments: dict[str, Any]
    """`prompts`, `completions` and the task's columns, each a list of one value per completion."""
    seconds: float


class RewardValues(Frame, frozen=True):
    """A function's result, made numbers."""

    values: list[float | None]


class FunctionCall(Frame, frozen=True):
    """One function with arguments by name."""

    function: str
    arguments: dict[str, Any]
    seconds: float


class FunctionResult(Frame, frozen=True):
    """The value that the function of a FunctionCall returned."""

    value: Any


class FunctionFailed(Frame, frozen=True):
    """A function failed."""

    why: str
    """Begins with the function's name."""


Request = WorkerSetup | RewardCall | FunctionCall
Reply = WorkerReady | FunctionUnusable | RewardValues | FunctionResult | FunctionFailed

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
_runner = asyncio.Runner()


def seconds_left() -> float:
    """Seconds until the worker ends the current call; OUTSIDE where there is none."""
    deadline = _deadline.get()
    return OUTSIDE if deadline is None else max(deadline - time.monotonic(), 0.0)


# --- the loop -----------------------------------------------------------------------------------------------


def main() -> None:
    """Answer frames on stdin until it ends."""
    pipe = Pipe()
    decoder, encoder = msgspec.msgpack.Decoder(Request), msgspec.msgpack.Encoder()
    functions: dict[str, Function] = {}
    while (frame := pipe.receive()) is not None:
        for reply in _answers(decoder.decode(frame), functions):
            try:
                data = encoder.encode(reply)
            except (TypeError, OverflowError, msgspec.ValidationError) as error:
                data = encoder.encode(FunctionFailed(f"the answer cannot be sent: {error}"))
            pipe.send(data)
    os._exit(0)  # do not wait for threads that functions started


def _answers(request: Request, functions: dict[str, Function]) -> Iterator[Reply]:
    match request:
        case WorkerSetup():
            yield _set_up(request, functions)
        case RewardCall():
            _deadline.set(time.monotonic() + request.seconds)
            for name, function in functions.items():
                reply = _called(name, function, {**LOGS, **request.arguments}, _row)
                yield reply
                if isinstance(reply, FunctionFailed):
                    return
        case FunctionCall():
            _deadline.set(time.monotonic() + request.seconds)
            yield _called(request.function, functions[request.function], request.arguments, FunctionResult)


def _called(
    name: str, function: Function, arguments: Mapping[str, Any], made: Callable[[Any], Reply]
) -> Reply:
    try:
        result = function(**_taken(function, arguments))
        if inspect.isawaitable(result):
            result = _runner.run(_awaited(result))
        return made(result)
    except NotARow as error:
        return FunctionFailed(f"{name} {error}")
    except (Exception, SystemExit) as error:
        return FunctionFailed(f"{name} raised {_described(error, _file(function))}")


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


# --- functions ----------------------------------------------------------------------------------------------


def _set_up(setup: WorkerSetup, functions: dict[str, Function]) -> WorkerReady | FunctionUnusable:
    for name, target in setup.functions.items():
        place, _, attribute = target.rpartition(":")
        source = setup.sources.get(place)
        try:
            module = import_module(place) if source is None else _module(place, source)
            function = module
            for part in attribute.split("."):
                function = getattr(function, part)
        except AttributeError as error:
            if isinstance(error.obj, ModuleType) and error.obj.__name__ == _identifier(place, source):
                return FunctionUnusable(f"{name}: there is no function {attribute!r} in {place}")
            return FunctionUnusable(f"{name} cannot be imported: {_described(error, place)}")
        except (Exception, SystemExit) as error:
            return FunctionUnusable(f"{name} cannot be imported: {_described(error, place)}")
        if not callable(function):
            return FunctionUnusable(f"{name} is not a function but {type(function).__name__}")
        functions[name] = function
    return WorkerReady()


def _identifier(place: str, source: FunctionFile | None) -> str:
    """The name of a module; one that comes from a file must not hide an installed one."""
    return place if source is None else "swarm_reward_" + "".join(c if c.isalnum() else "_" for c in place)


def _module(place: str, source: FunctionFile) -> ModuleType:
    name = _identifier(place, source)
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = source.path
    # As if it had been read from the disk: tracebacks and `inspect` show its lines.
    linecache.cache[place] = (len(source.text), None, source.text.splitlines(keepends=True), place)
    code = compile(source.text, place, "exec")
    sys.modules[name] = module  # dataclasses look themselves up there
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _file(function: Function) -> str:
    return getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", "")


def _taken(function: Function, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that the function takes. Raises NotARow when it needs another one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return arguments
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    lacking = [name for name in needed if name not in arguments]
    if elsewhere := [name for name in lacking if name in OF_TRAINER]:
        raise NotARow(
            f"needs {elsewhere[0]!r}, which TRL passes and a swarm does not: {OF_TRAINER[elsewhere[0]]}; give"
            " that argument a default"
        )
    if lacking:
        columns = ", ".join(sorted(arguments.keys() - {"prompts", "completions", *LOGS})) or "none"
        raise NotARow(
            f"needs the column {lacking[0]!r}, which the task does not have (its columns: {columns})"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return arguments
    names = {p.name for p in parameters}
    return {name: value for name, value in arguments.items() if name in names}


# --- results ------------------------------------------------------------------------------------------------


class NotARow(Exception):
    """A function's result is no row of rewards; the message continues a sentence that begins with its
    name."""


def _row(result: Any) -> RewardValues:
    """A function's result (list, tuple, array of numpy or torch) as numbers or None."""
    if isinstance(result, str | bytes | Mapping) or not (
        hasattr(result, "__iter__") and hasattr(result, "__len__")
    ):
        raise NotARow(
            f"returned {_short(result)}, a {type(result).__name__}, instead of a list of one number per"
            " completion"
        )
    return RewardValues([None if value is None else _number(value, i) for i, value in enumerate(result)])


def _number(value: Any, i: int) -> float:
    if isinstance(value, SCALARS) or hasattr(type(value), "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise NotARow(f"returned {_short(value)}, a {type(value).__name__}, as reward {i}, which is not a number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _described(error: BaseException, file: str) -> str:
    """Type, message and the line of the user's file, without the trace."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return (
            f"SyntaxError: {error.msg} ({os.path.basename(file)} line {error.lineno}:"
            f" {(error.text or '').strip()})"
        )
    if isinstance(error, ModuleNotFoundError):
        text = f"{error}: install it where this peer runs; of a run's files only those with functions travel"
    else:
        text = str(error)
    return error_summary(error, text) + _where(error.__traceback__, file)


def error_summary(error: BaseException, text: str) -> str:
    """Its type and the beginning of its message, as text: the name of a file in it may not be valid text."""
    beginning = text[:MESSAGE_CHARACTERS].encode("utf-8", "backslashreplace").decode()
    return f"{type(error).__name__}: {beginning}".rstrip(": ")


def _where(trace: TracebackType | None, file: str) -> str:
    """The innermost line of that file, or of any when the file has no part in it."""
    frames = [frame for frame in traceback.extract_tb(trace) if frame.filename != __file__]
    frames = [frame for frame in frames if frame.filename == file] or frames
    return (
        f" ({os.path.basename(frames[-1].filename)} line {frames[-1].lineno}: {frames[-1].line})"
        if frames
        else ""
    )
