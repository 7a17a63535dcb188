"""Reward `math`: whether a completion ends with the number, expression or set of the answer (math-verify).

In come completions and one answer for each: a number, LaTeX with or without dollars or `\\boxed{}`, or a
worked solution that ends with `#### 72` as in GSM8K. Out comes 1 or 0, and None where there is no answer to
compare with. A completion is read from its end: after `</think>`, within the last `<answer>`, behind the last
`####`. It is right where it states the answer as the data writes it: in the last box, as all of the text, or
as its last words. Otherwise what math-verify finds (a box first) is compared by its value, unless the answer
is text: words, a date, a time, a ratio, one of several. Dollars or a box make any answer an expression.

A value that is not worked out is no answer (swarm.tasks.rewards.unevaluated). Where the answer is a number,
or several, operations of a completion (`94 + 46`, `\\frac{280}{2}`, `2 times 70`) are passed over, unless
they write a number: a fraction that is not whole, `1.4 \\times 10^3`. Where the answer has operations itself
(`x^2 - 1`, `\\sqrt{2}`), an expression of the prompt is none, in whatever order.

The completions of a group share its time; one that takes longer (`9^{9^{9^9}}`) is wrong. The limit is a
`signal.alarm`, which needs the main thread; functions of a worker run there. Not handled: integers so large
that one instruction takes seconds; the worker's deadline ends those. Nor are units (`5 km` is the number 5),
or a negation before the last words.
"""

from __future__ import annotations

import contextlib
import logging
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, NamedTuple

from math_verify import parse, verify

from swarm.tasks.rewards import unevaluated
from swarm.tasks.rewards.rewards import text
from swarm.tasks.workers.worker_process import seconds_left

LONGEST_SECONDS = 3.0
"""Seconds for one completion; ordinary answers take hundredths."""

MARGIN = 0.8
"""Share of the remaining time that completions get: the rest is for code that the alarm cannot interrupt at
once."""

AGAIN = 1.0
"""Seconds to the next alarm: much more than it takes to leave after the last one."""

LATEX = re.compile(r"[\\^_{}=+*/()\[\]<>-]")
"""An answer with one of these is read as LaTeX, also without dollars: `2^{10}` in plain text would be 2."""

NAMES = (
    "sqrt|arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|min|max|gcd|lcm|mod|infty"
)
"""Words that are mathematics without a backslash, too."""

TEXT = r"\\(?:text|textbf|textit|mathrm|mbox|operatorname|begin|end)\s*\{([^{}]*)\}"
COMMAND = re.compile(rf"{TEXT}|\\[A-Za-z]+|\b(?:{NAMES})(?![A-Za-z])")
FORMULA = re.compile(r"[\\^+=]")
WORD = re.compile(r"[^\W\d_]{2,}")
LONG_WORD = re.compile(r"[^\W\d_]{3,}")
"""A word in a formula, where `ab` is a product."""

DATE_OR_RATIO = re.compile(r"\d\s*:\s*\d|^\d{1,4}([-/.])\d{1,2}\1\d{1,4}$")
MEASURED = re.compile(r"([-+]?\d[\d.,]*(?:\s*/\s*\d+)?)\s*(?!.*\b(?:and|or|to)\b)[^\W\d_]\D*")
"""A number and its unit in words: `3/4 cup`, `18 dollars`."""

MARK = r"\\?\$|(?<!\w)\*\*|\*\*(?!\w)|\\[()\[\]]"
"""Dollars, bold, and equivalents of dollars."""

SINGLE = re.compile(r"[-+\d.,%/*^]+")
"""One number, of which math-verify knows where it stands in a sentence."""

BEFORE = re.compile(rf"(?:^|\n|[.:;?]|(?<![!<>])=|(?<!\\)\b(?!(?:{NAMES})\b)[^\W\d_]{{2,}})(?:\s|{MARK})*$")
"""Text that may precede an answer that ends a sentence: no sign, no factor, no function."""

EXPONENT = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?|\.\d+)[eE]([-+]?\d{1,3})(?![\w.]*\d)")
"""A number as programs write it: `1e-05`."""

PARTS = re.compile(r"frac|/|\.\d*[1-9]|%|percent|10\s*\^\s*\{?\s*-")
"""Signs of an answer that may be written as a fraction."""

DIGITS, LEAST = 6, 3
"""Decimal places to which numbers are compared, and digits of a small one that they have to have."""


class Gold(NamedTuple):
    """An answer, read once for a group."""

    written: str
    wanted: str
    """What stands behind the last `####`."""
    parsed: list[Any]
    """Expressions; empty when it is text."""
    numbers: bool
    """Whether it is a number, or several, without an operation."""
    places: int
    """Decimal places to which it is compared."""


class _TooLong(BaseException):
    """Not an Exception: math-verify and sympy catch those and try something else."""


def equal(
    completions: Sequence[Any],
    answer: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    answer_as_written: Sequence[Any] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """1 where a completion's result equals the answer; `answer_as_written` is the text of a number that
    Python writes otherwise. `prompts` are searched for expressions that a completion repeats."""
    # it warns of its own timeouts, which are off here
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    values: list[float | None] = []
    gold: Gold | None = None
    for i, (completion, wanted) in enumerate(zip(completions, answer_as_written or answer, strict=True)):
        value: float | None = 0.0
        with (
            contextlib.suppress(_TooLong),
            _alarm(min(LONGEST_SECONDS, MARGIN * seconds_left() / (len(completions) - i))),
        ):
            if gold is None or gold.written != str(wanted):
                gold = _gold(str(wanted))
            asked = "" if prompts is None else _asked(prompts[i])
            value = _worth(_positional(text(completion)), gold, asked) if gold.wanted else None
        values.append(value)
    return values


def _worth(completion: str, gold: Gold, asked: str) -> float:
    """1 where the completion states the answer, or has its value."""
    found = _end(completion)
    if len(asked.split()) > 1 and _bare(found) != _bare(gold.wanted):
        found = found.replace(asked, " ")
    if _stated(found, gold.wanted, bool(gold.parsed)):
        return 1.0
    return float(bool(gold.parsed) and _has_value(found, gold, unevaluated.tokens(asked)))


def _has_value(found: str, gold: Gold, asked: Sequence[str]) -> bool:
    """Whether the result of a completion equals the answer, and is worked out: see the module."""
    read = parse(found, parsing_timeout=None)
    if not _same(gold, read):
        return False
    own = sorted(unevaluated.tokens(gold.wanted))

    def repeated(words: str) -> bool:
        said = unevaluated.tokens(words)
        return sorted(said) != own and unevaluated.repeats(said, asked)

    if not gold.numbers:
        sides = [side for side in _sides(read) if len(unevaluated.tokens(side)) > 1]
        return not sides or not all(map(repeated, sides))
    broken = bool(PARTS.search(gold.wanted))

    def is_number(words: str) -> bool:
        return (broken or not unevaluated.FRACTIONAL.fullmatch(words.strip())) and not repeated(words)

    read = parse(unevaluated.without_operations(found, is_number), parsing_timeout=None)
    side = _sides(read)[-1]
    return unevaluated.is_numbers(side, is_number) and not repeated(side) and _same(gold, read)


def _same(gold: Gold, read: list[Any]) -> bool:
    return verify(gold.parsed, read, float_rounding=gold.places, timeout_seconds=None)


def _sides(read: list[Any]) -> list[str]:
    """The sides of an equation, or the one expression, as written."""
    return re.split(r"(?<![!<>])=", next((found for found in read if isinstance(found, str)), ""))


def _asked(prompt: Any) -> str:
    """The words of a prompt, or of the last message of a conversation."""
    return text(prompt).strip() if prompt else ""


def _gold(written: str) -> Gold:
    wanted = _positional(_hashed(written))
    read = _parsed_answer(wanted)
    parsed = [found for found in read if not isinstance(found, str)]
    side = _sides(read)[-1] if parsed else ""
    return Gold(written, wanted, parsed, unevaluated.is_numbers(side, lambda words: True), _places(wanted))


def _places(wanted: str) -> int:
    """At least LEAST digits of a number that is close to 0."""
    small = re.fullmatch(r"[-+]?\d*\.(0*)[1-9]\d*", wanted.strip("$ "))
    return max(DIGITS, len(small[1]) + LEAST) if small else DIGITS


def _positional(words: str) -> str:
    """`1e-05` as 0.00001."""
    return EXPONENT.sub(lambda found: f"{Decimal(found[0]):f}", words)


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


def _parsed_answer(wanted: str) -> list[Any]:
    """Expressions, and the text of the intended one; no expression when it is text."""
    wanted = _expression(wanted)
    if "$" not in wanted and "\\boxed" not in wanted and LATEX.search(wanted):
        wanted = f"${wanted}$"
    return parse(wanted, parsing_timeout=None)


def _expression(wanted: str) -> str:
    """The part of an answer that has a value; empty when it is text."""
    if "$" in wanted or "\\boxed" in wanted:
        return wanted
    word = LONG_WORD if FORMULA.search(wanted) else WORD
    if DATE_OR_RATIO.search(wanted):
        return ""
    if not word.search(COMMAND.sub(" ", wanted)):
        return wanted
    measured = MEASURED.fullmatch(wanted)
    if not measured:
        return ""
    return measured[1] if LATEX.search(wanted) else wanted


def _stated(found: str, wanted: str, valued: bool) -> bool:
    """Whether a completion states the answer as it is written. `valued`: it has a value."""
    aim = _bare(_boxed(wanted))
    if not aim:
        return _boxed(found) == wanted
    if _bare(_boxed(found)) == aim:
        return True
    if "\\boxed" in found or (valued and SINGLE.fullmatch(wanted)):
        return False
    first = len(found) - 2 * len(wanted) - 16  # spaces and dollars may stand within and behind it
    starts = (place.end() for place in re.finditer(rf"^|[\s:=]|{MARK}", found))
    return any(
        start >= first and _bare(found[start:]) == aim and bool(BEFORE.search(found[:start]))
        for start in starts
    )


def _bare(words: str) -> str:
    """Without irrelevant parts: dollars, bold, `\\text{}`, spaces but between words, a full stop."""
    words = " ".join(re.sub(MARK, "", re.sub(TEXT, r"\1", words)).split())
    return re.sub(r"(?<!\w) | (?!\w)", "", words).rstrip(".,;:")


def _hashed(words: str) -> str:
    """What stands behind the last `####`, or all of it."""
    return words.rpartition("####")[2].strip()


def _end(completion: str) -> str:
    """The part of a completion where its result stands."""
    words = completion.rpartition("</think>")[2]
    tagged = re.findall(r"<answer>(.*?)</answer>", words, re.DOTALL)
    return _hashed(tagged[-1] if tagged else words)


def _boxed(words: str) -> str:
    """The content of the last box, or all of it."""
    start = words.rfind("\\boxed{")
    if start < 0:
        return words.strip()
    content, depth = words[start + len("\\boxed{") :], 1
    for i, letter in enumerate(content):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return content[:i].strip()
    return content.strip()
