"""Reward `code`: whether the program in a completion passes the task's tests, each in its own sandbox.

The program is the completion's last fenced block, or all of it. Columns: `tests` (Python source with asserts,
or a list of such pieces), or `inputs` and `outputs` (lists: what the program reads, and what it has to print,
but for white space at the ends of lines). Out comes 1 when all tests pass and 0 otherwise; None for a row
without tests.

Tests and program share a process, so that tests can call what the program defines. Tests are compiled before
the program runs, and neither its input nor a module has them; the process has to print a secret word after
the last test, so that an early exit with code 0 does not pass. Not handled: a program that searches its
memory or its callers' frames for the word or the tests, and one that answers tests with an object whose
`__eq__` is always true, or with functions of its own in the place of those that tests call (`all`, `len`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from swarm.processors import processors
from swarm.tasks import sandbox
from swarm.tasks.rewards import text
from swarm.tasks.worker_process import seconds_left

LIMITS = sandbox.ProcessLimits(memory=1 << 30, files=64, size=8 << 20, processes=32)
"""Limits of one program. Its output counts as a written file."""

LONGEST_SECONDS = 10.0
"""Seconds for a program with all its tests."""

MARGIN = 0.9
"""Share of the remaining time that programs get."""

PROGRAM_BYTES = 120_000
"""Bytes of a program that is an argument: below what Linux takes as one (128 KiB)."""

HARNESS = """
import json, os, sys


def main():
    program, tests, word = json.load(sys.stdin)
    sys.stdin = open(os.devnull)
    os.dup2(sys.stdin.fileno(), 0)
    run, write, said = exec, os.write, word.encode()
    begun = compile(program, "program.py", "exec")
    tests = tuple(compile(test, "tests.py", "exec") for test in tests)
    space = {"__name__": "__main__"}
    run(begun, space)
    for test in tests:
        run(test, space)
    sys.stdout.flush()
    write(1, said)


main()
"""
"""What runs the tests is local to `main`: the program can change this module and builtins, and no locals."""


def passes(
    completions: Sequence[Any],
    tests: Sequence[Any] | None = None,
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """1 where all tests pass. Raises NoSandbox, and ValueError for columns that hold no tests."""
    if tests is None and (inputs is None or outputs is None):
        names = ", ".join(sorted(columns.keys() - {"prompts"})) or "none"
        raise ValueError(
            f"it needs a column `tests`, or `inputs` and `outputs` (the task's columns: {names})"
        )
    if why := sandbox.missing():
        raise sandbox.NoSandbox(why)
    count = len(completions)
    at_once = min(count, processors())
    seconds = min(LONGEST_SECONDS, MARGIN * seconds_left() / -(-count // max(at_once, 1)))

    def one(i: int) -> float | None:
        program = _program(text(completions[i]))
        if tests is not None and tests[i]:
            return float(
                _asserted(program, [tests[i]] if isinstance(tests[i], str) else list(tests[i]), seconds)
            )
        if inputs is not None and outputs is not None and inputs[i]:
            return float(_printed(program, _texts(inputs[i]), _texts(outputs[i]), seconds))
        return None

    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(one, range(count)))


def _program(completion: str) -> str:
    """The last fenced block, or all of it."""
    blocks = re.findall(r"```[^\n`]*\n(.*?)```", completion, re.DOTALL)
    return blocks[-1] if blocks else completion


def _texts(values: Any) -> list[str]:
    return [values] if isinstance(values, str) else [str(value) for value in values]


def _asserted(program: str, tests: list[str], seconds: float) -> bool:
    word = secrets.token_hex(16)
    output = _run(HARNESS, json.dumps([program, tests, word]), seconds)
    return output is not None and output.endswith(word)


def _printed(program: str, inputs: list[str], outputs: list[str], seconds: float) -> bool:
    end = time.monotonic() + seconds
    if len(inputs) != len(outputs):
        raise ValueError(f"the task has {len(inputs)} inputs and {len(outputs)} outputs")
    for given, wanted in zip(inputs, outputs, strict=True):
        output = _run(program, given, end - time.monotonic())
        if output is None or _lines(output) != _lines(wanted):
            return False
    return True


def _lines(output: str) -> list[str]:
    return [line.rstrip() for line in output.rstrip().splitlines()]


def _run(program: str, given: str, seconds: float) -> str | None:
    """What the program printed; None when it failed or took too long."""
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
    """Whether a command can have this text as one of its words."""
    try:
        return len(program.encode()) <= PROGRAM_BYTES and "\0" not in program
    except UnicodeEncodeError:  # half of a pair of surrogates: no file could have it either
        return False
