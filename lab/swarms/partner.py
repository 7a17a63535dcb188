"""A child process that measures: it answers questions in JSON over its pipes.

    Partner("lab.processes.admission_server", {...}) -- ask(do=...) --> answer          in the row
    setup = opened(); say(...); await answer_all(handle)                                  in the child

Questions and answers are JSON in frames of swarm.processes.process. A child ends with its parent. Not
handled: two questions to one child at a time.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lab.figures import processor_time
from lab.figures.table import Unmeasured
from swarm.processes import process

LONGEST = 180.0
"""Seconds for one answer: a round of 100M parameters among four on a busy machine may take 100."""

GOODBYE = 15.0
"""Seconds to end by itself once its stdin is closed."""

Answer = dict[str, Any]


def environment() -> dict[str, str]:
    """Environment of a child: one thread, since the processes of a swarm share the cores."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("SWARM__")}
    return process.environment({**process.THREADS, "PYTHONUNBUFFERED": "1"}, own)


class Partner:
    """Use as a context manager."""

    def __init__(self, module: str, setup: Mapping[str, Any], words: Sequence[str] = ()) -> None:
        """`words` run the command that follows them."""
        self.module = module
        self._child = process.Child([*words, sys.executable, "-m", module, json.dumps(setup)], environment())

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *exit: object) -> None:
        self._child.end(GOODBYE)

    @property
    def pid(self) -> int:
        return self._child.pid

    def cpu(self) -> float:
        """CPU seconds of the child and of all processes below it, ended ones included. Raises Unmeasured
        when the child has died."""
        try:
            return processor_time.total(self.pid)
        except Unmeasured as error:
            raise Unmeasured(f"{self.module}: {error}") from None

    def tell(self, **question: Any) -> None:
        self._child.send(json.dumps(question).encode())

    def receive(self, longest: float = LONGEST) -> Answer:
        """The next answer. Raises Unmeasured when the child dies or is silent for `longest` seconds."""
        try:
            answer: Answer = json.loads(self._child.receive(longest))
        except process.ChildLost as lost:
            raise Unmeasured(f"{self.module} {lost}") from None
        if "failed" in answer:
            raise Unmeasured(f"{self.module}: {answer['failed']}")
        return answer

    def ask(self, **question: Any) -> Answer:
        self.tell(**question)
        return self.receive()


def ask_all(partners: Sequence[Partner], questions: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Ask several children one question each, at the same time."""
    for partner, question in zip(partners, questions, strict=True):
        partner.tell(**question)
    return [partner.receive() for partner in partners]


@functools.cache
def _pipe() -> process.Pipe:
    return process.Pipe()


def opened() -> Answer:
    """In the child, before anything else: the setup that the Partner was made with. From here on only answers
    go to the parent's pipe."""
    _pipe()
    setup: Answer = json.loads(sys.argv[1])
    return setup


def say(**answer: Any) -> None:
    _pipe().send(json.dumps(answer).encode())


def heard() -> Answer | None:
    """The next question; None when the parent has ended. No thread reads the pipe between two calls."""
    frame = _pipe().receive()
    return None if frame is None else json.loads(frame)


async def answer_all(handle: Callable[[Answer], Awaitable[Answer]]) -> None:
    """Answer questions until the parent ends."""
    while (question := await asyncio.to_thread(heard)) is not None:
        say(**await handle(question))
