"""A child process that measures for us: JSON questions go in, a line each, JSON answers come out.

    Partner("benchmarks.processes.admission_server", {...}) -- ask({"do": ...}) --> answer          in the row
    answer_lines(handle)                                                       in the child

A child ends when its stdin does, so that none outlives the bench. Not handled: two questions to one child at
a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from benchmarks.table import Unmeasured

LONGEST = 180.0
"""Seconds for one answer: a round of 25M parameters among four on a busy machine takes 30."""

GOODBYE = 15.0
"""Seconds to end by itself once its stdin is closed."""

Answer = dict[str, Any]


def environment() -> dict[str, str]:
    """One thread each: the processes of a swarm share the cores."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("SWARM__")}
    return own | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


class Partner:
    """Use as a context manager."""

    def __init__(self, module: str, setup: Mapping[str, Any]) -> None:
        self.module = module
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env=environment(),
        )
        self._rest = b""

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *exit: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def tell(self, **question: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise Unmeasured(f"{self.module} ended early: {self._last_words()}") from None

    def hear(self) -> Answer:
        """The next answer. Raises Unmeasured when the child dies or says nothing for LONGEST seconds."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + LONGEST
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Unmeasured(f"{self.module} did not answer within {LONGEST:.0f} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise Unmeasured(f"{self.module} ended early: {self._last_words()}")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: Answer = json.loads(line)
        if "failed" in answer:
            raise Unmeasured(f"{self.module}: {answer['failed']}")
        return answer

    def ask(self, **question: Any) -> Answer:
        self.tell(**question)
        return self.hear()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"


def ask_all(partners: Sequence[Partner], questions: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """One question to each, at the same time."""
    for partner, question in zip(partners, questions, strict=True):
        partner.tell(**question)
    return [partner.hear() for partner in partners]


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


async def answer_lines(handle: Callable[[Answer], Awaitable[Answer]]) -> None:
    """Until stdin ends. Nobody reads it while a question is handled: hivemind may fork then."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        say(**await handle(json.loads(line)))
