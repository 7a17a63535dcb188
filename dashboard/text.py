"""Cleans text and numbers of other peers for the dashboard, the terminal and sentences.

Any string or number of a peer becomes one line of bounded length without control, bidirectional or invisible
characters, or a finite number; texts of samples keep their lines and tabs. This is done once, where events
are folded, and not again later. Not handled here: HTML (the dashboard renders text as text) and look-alike
letters (the peer id is the identity, the name is for people).
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Mapping, MutableMapping
from typing import Protocol, TypeVar

NAME_LIMIT = 40
"""Three words of a human name have at most 24 letters; 40 leaves room for chosen names and fits a table
column."""

TEXT_LIMIT = 300
"""Characters of a sentence; the journal has the full text."""

LARGEST = 2**53
"""JSON numbers of a browser are exact up to here."""

BYTES = "bytes"
"""The unit of swarm.protocol.STAGES that has larger ones."""

LATEST = 253402300799.0
"""Unix seconds of the end of the year 9999, the last date that Python can represent."""

_ID = re.compile(r"[0-9A-Za-z_.-]{1,80}")

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and signs that no font draws: Unicode's Default_Ignorable_Code_Point beyond the categories
of control, and the empty braille cell."""

_BREAK = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_PLAIN = re.compile(r"[\t\n -~]*")

K = TypeVar("K")


def clean(text: str, limit: int = NAME_LIMIT) -> str:
    """One visible line of at most `limit` characters."""
    text = text[: 4 * limit]
    if not (text.isascii() and text.isprintable()):
        text = _visible(text)
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def prose(text: str, limit: int) -> str:
    """The text itself, white space at its ends too, without what cannot be seen; at most `limit` characters.
    Every line break is a line feed."""
    whole = printable(text[: 4 * limit])
    return whole if len(whole) <= limit else whole[: limit - 1] + "…"


def printable(text: str) -> str:
    """The text without what cannot be seen: nothing of it moves a terminal's cursor, turns its letters around
    or speaks to the terminal. Every line break is a line feed."""
    whole = _BREAK.sub("\n", text)
    return whole if _PLAIN.fullmatch(whole) else _visible(whole, "\n\t")


def one_line(text: str, limit: int) -> str:
    """The same on one line, whose blanks stay, of at most `limit` characters."""
    return prose(text, limit).strip("\n").replace("\n", " ")


def proper(peer: str) -> bool:
    """Whether this can be a peer id."""
    return _ID.fullmatch(peer) is not None


def number(value: float, low: float = 0.0, high: float = float(LARGEST)) -> float:
    """`value` inside [low, high]; `low` when it is not a number."""
    if low <= value <= high:
        return value
    return high if value > high else low


def whole(value: float) -> int:
    """`value` as a count."""
    return int(number(value))


def version_of(value: float) -> int:
    """`value` as a version; -1 where there is none."""
    return int(number(value, low=-1))


def moment(at: float) -> float:
    """`at` as unix seconds within the range of dates."""
    return float(number(at, 0.0, LATEST))


def count(into: MutableMapping[K, int], new: Mapping[K, int]) -> None:
    """Add counts, each at most LARGEST."""
    for key, more in new.items():
        into[key] = min(into.get(key, 0) + whole(more), LARGEST)


_FULL = re.compile("no space left|quota exceeded|file too large", re.IGNORECASE)


def is_full(detail: str) -> bool:
    """Whether a disk's message means that it is full, or at this user's quota."""
    return _FULL.search(detail) is not None


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min`, `2.5 h`, `4 d`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{round(seconds / size, 1 if seconds < 10 * size else None):g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0.0):.1f} s"


def confidence(low: float, high: float) -> str:
    """An interval of 95 % of a share: `88.0% to 94.3% with 95 % confidence`."""
    return f"{low:.1%} to {high:.1%} with 95 % confidence"


class Measured(Protocol):
    """A value, and the ends of its interval."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def estimates(sampled: Mapping[str, Measured]) -> str:
    """The first and the last of them: `mean@8 45.0% (41.0% to 49.1%), pass@8 71.0% (65.2% to 76.2%)`."""
    named = [f"{name} {one.value:.1%} ({one.low:.1%} to {one.high:.1%})" for name, one in sampled.items()]
    return ", ".join(dict.fromkeys((*named[:1], *named[-1:])))


class Scored(Protocol):
    """A share of right answers, the ends of its interval, and what was sampled."""

    @property
    def accuracy(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def sampled(self) -> Mapping[str, Measured]: ...


def of_set(one: Scored) -> str:
    """Of an evaluation set: `12.1% (8.0% to 17.9%)`, and its estimates."""
    share = f"{one.accuracy:.1%} ({one.low:.1%} to {one.high:.1%})"
    return ", ".join(filter(None, (share, estimates(one.sampled))))


def volume(size: float) -> str:
    """Bytes: `640 B`, `2.6 kB`, `140 MB`, `1.2 GB`."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


def how_far(stage: str, unit: str, done: int, total: int, left: float | None) -> str:
    """`batch 5 of 8 groups (4.5/min, about 40 s left)`; `left`: seconds, None where that is unknown."""
    size, ends = unit == BYTES, ""
    if left is not None and left > 0 and done < total:
        pace = (total - done) / left
        per = f"{volume(pace)}/s" if size else f"{pace:.3g}/s" if pace >= 1 else f"{60 * pace:.2g}/min"
        ends = f" ({per}, about {duration(left)} left)"
    counts = f"{volume(done)} of {volume(total)}" if size else f"{done:,} of {total:,} {unit}"
    return f"{stage} {counts}{ends}"


def clock(at: float, now: float) -> str:
    """`14:10` by this machine's time zone, `Tue 14:10` within a week, `24 Dec 14:10` beyond."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%a %H:%M" if at - now < 6 * 86400.0 else "%-d %b %H:%M", then)


def _visible(text: str, blanks: str = "") -> str:
    """`text` without what cannot be seen; white space that is none of `blanks` becomes a space."""
    kept: list[str] = []
    marks = 0
    for character in _UNSEEN.sub("", text):
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if character in blanks:
            kept.append(character)
        elif kind in ("Zs", "Zl", "Zp") or character in "\t\n\r":
            kept.append(" ")
        elif kind[0] != "C" and marks <= 2:
            # Letters of scripts in use carry at most two marks; more of them would overflow the line.
            kept.append(character)
    return "".join(kept)
