"""Calls a function in a fork of this process, so that its imports and allocations are gone when it
returns."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from peers.errors import explain, raised
from swarm.processes.process import Child, ChildLost, Pipe

LONGEST = 24 * 3600.0
"""Seconds: the user sees its output, and can interrupt it."""


class _Failure(msgspec.Struct, frozen=True):
    code: int = 0
    """As an exit code; 0: it returned."""
    sentence: str = ""


def apart(function: Callable[[], object]) -> None:
    """Call it, and wait. Its output is printed here. Raises UserError with the same exit code and sentence
    where it raises an error that a user can fix, RuntimeError for all else."""
    child = Child(lambda: _called(function), echo=True)
    try:
        failure = msgspec.msgpack.decode(child.receive(LONGEST), type=_Failure)
        child.output()
    except ChildLost as lost:
        raise RuntimeError(f"{function} in a process of its own: it {lost}") from None
    finally:
        child.end()
    if failure.code:
        raise raised(failure.code, failure.sentence)


def _called(function: Callable[[], object]) -> None:
    pipe, failure = Pipe(), _Failure()
    try:
        function()
    except Exception as error:
        if (told := explain(error)) is None:
            raise
        failure = _Failure(*told)
    sys.stderr.flush()
    pipe.send(msgspec.msgpack.encode(failure))
