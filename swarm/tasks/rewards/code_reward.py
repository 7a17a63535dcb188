"""Reward `code`: whether the program in a completion passes the task's tests, each in its own sandbox.

The program is the completion's last fenced block, or all of it; one without a word passes nothing. Columns:
`tests` (Python source with asserts, or a list of such pieces), or what programs read and have to print, but
for white space at the ends of lines and of the whole:

    columns inputs and outputs                             lists
    tests: {"input": ..., "output": ...}                   a test, or a list of such (DeepCoder)
    tests: {"inputs": [...], "outputs": [...]}             lists (TACO, APPS)

With `fn_name`, or `func_name` in the test or its `metadata`, or a column `fn_name`, that function of the
program, or of its class `Solution`, is called: an input is the list of its arguments, or text with one
argument in JSON a line (LiveCodeBench, whose outputs are JSON too). Its result has to equal the output once
both are JSON; where each output is a list of one value (APPS), that value is right, too.

`tests` may also be JSON text of these. Out comes 1 when all tests pass and 0 otherwise; None for a row
without tests. Tests in which nothing can fail are an error: no assert and no call that is reached, or no
output.

Tests and program share a process, so that tests can call the program's definitions. Tests are compiled before
the program runs, and neither its input nor a module has them; the process has to print a secret word after
the last test, so that an early exit with code 0 does not pass. Not handled: a program that searches its
memory or its callers' frames for the word or the tests, and one that answers tests with an object whose
`__eq__` is always true, or with functions of its own in the place of those that tests call (`all`, `len`).
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from swarm.processes.processors import processors
from swarm.tasks.rewards.rewards import text
from swarm.tasks.workers import sandbox
from swarm.tasks.workers.worker_process import LOGS, seconds_left

LIMITS = sandbox.ProcessLimits(memory=1 << 30, files=64, size=8 << 20, processes=32)
"""Limits of one program. Its output counts as a written file."""

LONGEST_SECONDS = 10.0
"""Seconds for a program with all its tests."""

MARGIN = 0.9
"""Share of the remaining time that programs get."""

PROGRAM_BYTES = 120_000
"""Bytes of a program that is an argument: below what Linux takes as one (128 KiB)."""

IMPORTS = """
from typing import *
from collections import *
from functools import *
from itertools import *
from bisect import *
from heapq import *
from math import *
from builtins import *
import bisect, collections, functools, heapq, itertools, math, random, re, string
"""
"""Imports that sites provide for exercises that ask for a function: solutions in data sets rely on them."""

HARNESS = f"""
import json, os, sys


def main():
    program, tests, calls, word = json.load(sys.stdin)
    sys.stdin = open(os.devnull)
    os.dup2(sys.stdin.fileno(), 0)
    run, write, said, dumps, loads = exec, os.write, word.encode(), json.dumps, json.loads
    begun = compile(program, "program.py", "exec")
    tests = tuple(compile(test, "tests.py", "exec") for test in tests)
    space = {{"__name__": "__main__"}}
    if calls:
        run({IMPORTS!r}, space)
    run(begun, space)
    for test in tests:
        run(test, space)
    for name, given, right in calls:
        solution = space.get("Solution")
        function = getattr(solution(), name) if hasattr(solution, name) else space[name]
        if loads(dumps(function(*given))) not in right:
            raise AssertionError(name)
    sys.stdout.flush()
    write(1, said)


main()
"""
"""What runs the tests is local to `main`: the program can change this module and builtins, and no locals."""


CHECKS = (ast.Assert, ast.Raise, ast.Call)
"""Nodes of tests that can fail."""

LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
"""Nodes of tests that are defined, but not executed yet."""


WHOLE = ("stdin", "stdin_stdout")
"""Types of tests that run a program from its input to its output."""


class Call(NamedTuple):
    """A call of a function of the program."""

    function: str
    given: list[Any]
    right: list[Any]
    """Values of which it has to return one."""


class RowTests(NamedTuple):
    """A row's tests of a program."""

    sources: tuple[str, ...] = ()
    """Python."""
    cases: tuple[tuple[str, str], ...] = ()
    """(input, expected output)."""
    calls: tuple[Call, ...] = ()


def passes(
    completions: Sequence[Any],
    tests: Sequence[Any] | None = None,
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    fn_name: Sequence[Any] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """1 where all tests pass. Raises NoSandbox, and ValueError for columns that hold no tests, or tests that
    cannot fail."""
    if tests is None and (inputs is None or outputs is None):
        names = ", ".join(sorted(columns.keys() - {"prompts", *LOGS})) or "none"
        raise ValueError(
            f"it needs a column `tests`, or `inputs` and `outputs` (the task's columns: {names})"
        )
    if why := sandbox.missing():
        raise sandbox.NoSandbox(why)
    count = len(completions)
    at_once = min(count, processors())
    seconds = min(LONGEST_SECONDS, MARGIN * seconds_left() / -(-count // max(at_once, 1)))
    read: list[tuple[Any, RowTests]] = []

    def of_row(i: int) -> RowTests:
        """Read once for a group."""
        row = tests and tests[i], inputs and inputs[i], outputs and outputs[i], fn_name and fn_name[i]
        if not read or read[-1][0] != row:
            read.append((row, _tests(*row)))
        return read[-1][1]

    def one(program: str, row: RowTests) -> float | None:
        if not any(row):
            return None
        end = time.monotonic() + seconds
        checked = row.sources or row.calls
        if not program.strip() or (checked and not _asserted(program, row, seconds)):
            return 0.0
        return float(all(_prints(program, case, end) for case in row.cases))

    programs, rows = (
        [_program(text(completion)) for completion in completions],
        list(map(of_row, range(count))),
    )
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(one, programs, rows))


# --- tests --------------------------------------------------------------------------------------------------


def _tests(tests: Any, inputs: Any = None, outputs: Any = None, function: Any = None) -> RowTests:
    """`function`: that of tests which name none. Raises ValueError for tests that are none, or in which
    nothing can fail."""
    pieces = list(_pieces(tests))
    if not pieces and inputs:
        pieces = [{"inputs": inputs, "outputs": outputs}]
    sources = tuple(piece for piece in pieces if isinstance(piece, str))
    cases, calls = list[tuple[str, str]](), list[Call]()
    for piece in pieces:
        if isinstance(piece, Mapping):
            if name := _function(piece, function):
                calls += _calls(name, piece)
            else:
                cases += _cases(piece)
    if sources and not any(map(_can_fail, sources)):
        raise ValueError(
            "nothing in the task's `tests` can fail: it has no assert and no call that is reached, and every"
            f" program would pass ({_begun(sources[0])})"
        )
    if cases and not any(wanted.strip() for _, wanted in cases):
        raise ValueError("the task's tests want no output, and a program that does nothing would pass")
    if calls and all(None in call.right for call in calls):
        raise ValueError("the task's tests want None of each call: a function that does nothing would pass")
    return RowTests(sources, tuple(cases), tuple(calls))


def _pieces(tests: Any) -> Iterator[str | Mapping[str, Any]]:
    """Python sources, and tests of printed output."""
    if isinstance(tests, str):
        try:
            read = json.loads(tests)
        except (ValueError, RecursionError):
            read = tests
        if isinstance(read, str):
            yield from [read] if read.strip() else []
            return
        tests = read
    if isinstance(tests, Mapping):
        yield tests
    elif isinstance(tests, Sequence):
        for test in tests:
            yield from _pieces(test)
    elif tests is not None:
        raise ValueError(f"the task's `tests` are {_begun(tests)}: neither Python nor inputs and outputs")


def _function(piece: Mapping[str, Any], usual: Any) -> str:
    """Function that a test calls; empty for a test of a whole program, from stdin to stdout. Raises
    ValueError for one that calls a function without a name."""
    kind, about = piece.get("type") or piece.get("testtype") or "", piece.get("metadata")
    if isinstance(about, str):
        with contextlib.suppress(ValueError, RecursionError):  # a note in words
            about = json.loads(about)
    places = [piece, about] if isinstance(about, Mapping) else [piece]
    names = [place.get(key) for place in places for key in ("fn_name", "func_name")]
    found = next(filter(None, [*names, "" if kind in WHOLE else usual]), "")
    if not found and kind and kind not in WHOLE:
        raise ValueError(
            f"the task's `tests` ({kind}) call a function and do not name it: give each a `fn_name`, or the"
            " row a column of this name"
        )
    return str(found)


def _cases(piece: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Raises ValueError for anything but a test of printed output."""
    many, given, wanted = _given_and_wanted(piece)
    return _paired(given, wanted) if many or isinstance(wanted, list) else [(_line(given), _line(wanted))]


def _calls(function: str, piece: Mapping[str, Any]) -> list[Call]:
    """Raises ValueError for anything but a test of a function's results."""
    many, given, wanted = _given_and_wanted(piece)
    pairs = _zipped(given, wanted) if many else [(given, wanted)]
    found = list[Call]()
    for arguments, value in pairs:
        if isinstance(arguments, str):
            arguments = [_read(line, function) for line in arguments.splitlines() if line.strip()]
            value = _read(value, function) if isinstance(value, str) else value
        if not isinstance(arguments, list):
            raise ValueError(
                f"the task's test of {function} has {_begun(arguments)} for its arguments: write a list of"
                " them, or text with one in JSON a line"
            )
        found.append(Call(function, arguments, [value]))
    if all(isinstance(one.right[0], list) and len(one.right[0]) == 1 for one in found):
        found = [one._replace(right=[*one.right, *one.right[0]]) for one in found]
    return found


def _read(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the task's test of {what} is not JSON ({_begun(text)}): {error}") from error


def _given_and_wanted(piece: Mapping[str, Any]) -> tuple[bool, Any, Any]:
    """Whether it has lists of many tests; the inputs, and the expected outputs. Raises ValueError."""
    for given, wanted in (("input", "output"), ("inputs", "outputs")):
        if piece.get(given) is not None and piece.get(wanted) is not None:
            return given == "inputs", piece[given], piece[wanted]
    raise ValueError(
        f"the task's `tests` have no input and output ({_begun(dict(piece))}): give each test both, or write"
        " Python with asserts"
    )


def _paired(inputs: Any, outputs: Any) -> list[tuple[str, str]]:
    return _zipped(_texts(inputs), _texts(outputs))


def _zipped(given: Any, wanted: Any) -> list[tuple[Any, Any]]:
    if len(given) != len(wanted):
        raise ValueError(f"the task has {len(given)} inputs and {len(wanted)} outputs")
    return list(zip(given, wanted, strict=True))


def _texts(values: Any) -> list[str]:
    return [values] if isinstance(values, str) else [_line(value) for value in values]


def _line(value: Any) -> str:
    """A program's input or output; of a list its lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _can_fail(source: str) -> bool:
    """Raises ValueError for text that is not Python."""
    try:
        waiting: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"the task's `tests` are not Python ({_begun(source)}: {error}), and no program could pass"
        ) from error
    while waiting:
        node = waiting.pop()
        if isinstance(node, CHECKS):
            return True
        waiting += [] if isinstance(node, LATER) else ast.iter_child_nodes(node)
    return False


def _begun(value: Any) -> str:
    said = value if isinstance(value, str) else repr(value)
    return said if len(said) <= 60 else said[:57] + "..."


# --- programs -----------------------------------------------------------------------------------------------


def _program(completion: str) -> str:
    """The last fenced block, or all of it."""
    blocks = re.findall(r"```[^\n`]*\n(.*?)```", completion, re.DOTALL)
    return blocks[-1] if blocks else completion


def _asserted(program: str, row: RowTests, seconds: float) -> bool:
    word = secrets.token_hex(16)
    output = _run(HARNESS, json.dumps([program, row.sources, row.calls, word]), seconds)
    return output is not None and output.endswith(word)


def _prints(program: str, case: tuple[str, str], end: float) -> bool:
    output = _run(program, case[0], end - time.monotonic())
    return output is not None and _lines(output) == _lines(case[1])


def _lines(output: str) -> list[str]:
    return [line.rstrip() for line in output.rstrip().splitlines()]


def _run(program: str, given: str, seconds: float) -> str | None:
    """The program's output; None when it failed or took too long."""
    if not _is_argument(program) or seconds <= 0:
        return None
    command = sandbox.sandboxed([sys.executable, "-I", "-c", program], LIMITS)
    # files: nothing to read while it runs
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as stdin:
        stdin.write(given.encode("utf-8", "replace"))
        stdin.seek(0)
        running = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=printed,
            stderr=subprocess.DEVNULL,
            env=sandbox.environment(),
            start_new_session=True,
        )
        try:
            code = running.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        printed.seek(0)
        return printed.read().decode(errors="replace") if code == 0 else None


def _is_argument(program: str) -> bool:
    """Whether this text can be an argument of a command."""
    try:
        return len(program.encode()) <= PROGRAM_BYTES and "\0" not in program
    except UnicodeEncodeError:  # half of a pair of surrogates: no file could have it either
        return False
