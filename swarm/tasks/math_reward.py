"""Reward `math`: whether a completion ends with the number, expression or set of the answer (math-verify).

In come completions and one answer for each: a number, LaTeX with or without dollars or `\\boxed{}`, or a
worked solution that ends with `#### 72` as in GSM8K. Out comes 1 or 0, and None where there is no answer to
compare with. A completion is read from its end: after `</think>`, within the last `<answer>`, behind the last
`####`, and there what math-verify finds (a box first). An answer that is no expression, such as the letter of
a choice, is compared as text.

The completions of a group share its time; one that takes longer (`9^{9^{9^9}}`) is wrong. The limit is a
`signal.alarm`, which needs the main thread; functions of a worker run there. Not handled: integers so large
that one instruction takes seconds; the worker's deadline ends those.
"""

from __future__ import annotations

import contextlib
import logging
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from math_verify import parse, verify

from swarm.tasks.rewards import text
from swarm.tasks.worker_process import seconds_left

LONGEST_SECONDS = 3.0
"""Seconds for one completion; ordinary answers take hundredths."""

MARGIN = 0.8
"""Share of the remaining time that completions get: the rest is for code that the alarm cannot interrupt at
once."""

AGAIN = 1.0
"""Seconds to the next alarm: much more than it takes to leave after the last one."""

SECONDS_OUTSIDE_A_WORKER = 60.0
"""Seconds for a group outside of a worker."""

LATEX = re.compile(r"[\\^_{}=+*/()\[\]<>-]")
"""An answer with one of these is read as LaTeX, also without dollars: `2^{10}` in plain text would be 2."""


class _TooLong(BaseException):
    """Not an Exception: math-verify and sympy catch those and try something else."""


def equal(completions: Sequence[Any], answer: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
    """1 where a completion's result equals the answer. Columns beside `answer` are not looked at."""
    # it warns of its own timeouts, which are off here
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    values: list[float | None] = []
    gold: tuple[str, list[Any]] | None = None
    for i, (completion, wanted) in enumerate(zip(completions, answer, strict=True)):
        value: float | None = 0.0
        with (
            contextlib.suppress(_TooLong),
            _alarm(
                min(LONGEST_SECONDS, MARGIN * seconds_left(SECONDS_OUTSIDE_A_WORKER) / (len(completions) - i))
            ),
        ):
            if gold is None or gold[0] != str(wanted):
                gold = str(wanted), _parsed_answer(str(wanted))
            found = _end(text(completion))
            if not _hashed(gold[0]):
                value = None
            elif not gold[1]:
                value = float(_boxed(found) == _hashed(gold[0]))
            else:
                value = float(verify(gold[1], parse(found, parsing_timeout=None), timeout_seconds=None))
        values.append(value)
    return values


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(signum: int, frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    # 0 would be no alarm; it rings again where it rang in a finalizer, whose exceptions Python drops
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _parsed_answer(answer: str) -> list[Any]:
    """Expressions; empty when it is none."""
    wanted = _hashed(answer)
    if "$" not in wanted and "\\boxed" not in wanted and LATEX.search(wanted):
        wanted = f"${wanted}$"
    return [found for found in parse(wanted, parsing_timeout=None) if not isinstance(found, str)]


def _hashed(words: str) -> str:
    """What stands behind the last `####`, or all of it."""
    return words.rpartition("####")[2].strip()


def _end(completion: str) -> str:
    """The part of a completion where its result stands."""
    words = completion.rpartition("</think>")[2]
    tagged = re.findall(r"<answer>(.*?)</answer>", words, re.DOTALL)
    return _hashed(tagged[-1] if tagged else words)


def _boxed(words: str) -> str:
    """The content of the last box without braces in it, or all of it."""
    boxes = re.findall(r"\\boxed\{(?:\\text\{)?([^{}]*)\}", words)
    return str(boxes[-1]).strip() if boxes else words.strip()
