"""How a round of averaging is divided among lines of different speed, and how long it should take.

    AnnouncedLine(rate, dial_only) of each member --> shares of the values that each member reduces
                                           --> expected seconds, bytes of a part, patience

In a butterfly of n members over S bytes, member i with share w_i sends S (1 - w_i) of its own values to the
other reducers and S w_i (n - 1) means: S (1 + (n - 2) w_i), and receives as many. So the round is over after
S max_i (1 + (n - 2) w_i) / b_i seconds at uplinks b_i. That is least where all members that reduce end at the
same time T: w_i = max(0, (b_i T - 1) / (n - 2)), the shares adding up to one. With two members everything is
sent once, whatever the shares.

All members compute the same from the same announcements, so a member's claim about its line is trusted within
limits only: a large claim gets much to reduce and slows the round. It counts as at most CLAIM times the
median. A member without a measurement was never held up by its line (swarm.net.uplink): it counts as faster
than those with one, until a round shows its rate.

Not handled: downlinks (those of home lines are the faster side), and other traffic on a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

CLAIM = 4
"""Most times the low median of all claims that one counts as: the shares of a line of 20 Mbit/s beside 5 are
then nearly the best ones, and a liar gets no more than they do."""

FASTER = 2
"""Times the fastest claim that a line without a measurement counts as. If it counted as the median, the other
members of a round with one slow line would count as slow as it is, and keep equal shares."""

LEAST, MOST = 16_000, 32_000_000
"""Bytes per second. No line counts as slower, so that expected times are finite; none as faster, since beyond
that p2pd and Python take the time, and differences between lines of one room are noise."""

UNKNOWN = 2_500_000
"""Bytes per second of a line where no member knows its own: 20 Mbit/s, a usual home line's uplink."""

LEAST_PART, SMALLEST_PART = 1 << 10, 1 << 15
USUAL_PART, LARGE_PART, LARGEST_PART = 1 << 19, 1 << 20, 1 << 21
"""Bytes of a part. Every member takes the usual one, which is hivemind's; a large one costs half the Python,
and its intermediate results still fit a processor's cache; the largest one costs half of that again. A slow
line takes the smallest one. That of a small model is smaller yet: each member reduces something, since it
checks the others' gradients by what it reduces."""

MANY = 16
"""Cores from which the largest parts are faster, since there threads wait for each other and not for memory:
they are on 16 cores, and are slower on two (docs/network.md)."""

SEVERAL = 8
"""Parts of each reducer, or larger ones than the usual divide too little alike."""

PART_SECONDS = 1.0
"""Seconds in which a member sends a part on each of its streams: a part is the smallest progress that others
see, and several come before they lose patience."""

SLOWER = 2.0
"""Times the expected seconds that a round may take: a line carries releases and groups beside it."""

SHORTEST = 20.0
"""Seconds that a round may take at least, though less is expected: processes of a busy machine wait for each
other."""

WIRE_BYTES = {"none": 4.0, "float16": 2.0, "int8": 1 + 4 / 64}
"""Bytes of a value on the wire, by `run.averaging.compression`."""


class AnnouncedLine(NamedTuple):
    """A member's announcement about its line."""

    rate: int = 0
    """Bytes per second; 0: it does not know."""
    dial_only: bool = False
    """It cannot be dialled, so it reduces nothing."""
    part: int = USUAL_PART
    """Bytes of the largest part that it takes."""


def announced(filled: int, carried: int) -> int:
    """A member's claim about its line, in bytes per second: its rate when it was `filled`; where no round
    filled it, that it is as fast as any, if the last one `carried` so much; 0: unknown.

    The rate of slower rounds depends on the load of machines, and an unknown line counts as FASTER: with a
    lower limit, the members on its two sides would reduce nothing and everything."""
    return filled or (MOST if carried >= MOST else 0)


def shares(lines: Sequence[AnnouncedLine]) -> list[int]:
    """Each member's share, as whole numbers that are in proportion to the shares: sums of them are exact, so
    that all members cut at the same values. At least one member can be dialled."""
    rates, others = believed(lines), len(lines) - 2
    reducers = sorted((rate for rate, line in zip(rates, lines, strict=True) if not line.dial_only))[::-1]
    if others <= 0 or len(reducers) == 1:
        return [int(not line.dial_only) for line in lines]
    # T = (others + count) / total over the fastest `count`, the others getting nothing.
    total = count = 0
    for rate in reducers:
        if rate * (others + count + 1) <= total + rate:
            break
        total, count = total + rate, count + 1
    return [
        0 if line.dial_only else max(0, rate * (others + count) - total)
        for rate, line in zip(rates, lines, strict=True)
    ]


def believed(lines: Sequence[AnnouncedLine]) -> list[int]:
    """Each member's uplink as it counts here, in bytes per second."""
    known = [line.rate for line in lines if line.rate > 0]
    limit = CLAIM * median_low(known) if known else UNKNOWN
    unknown = FASTER * min(max(known), limit) if known else UNKNOWN
    return [min(max(min(line.rate or unknown, limit), LEAST), MOST) for line in lines]


def seconds(lines: Sequence[AnnouncedLine], size: float) -> float:
    """Expected seconds of a round over `size` bytes at each member."""
    parts = shares(lines)
    return size * max(
        (1 + (len(lines) - 2) * part / sum(parts)) / rate
        for part, rate in zip(parts, believed(lines), strict=True)
    )


def deadline(lines: Sequence[AnnouncedLine], size: float) -> float:
    """Seconds that a round over `size` bytes may take once its members have met."""
    return max(SHORTEST, SLOWER * seconds(lines, size))


def largest_part(fast: bool, cores: int) -> int:
    """Bytes of the largest part that a member takes, if its line is known to be `fast`."""
    if not fast:
        return USUAL_PART
    return LARGEST_PART if cores >= MANY else LARGE_PART


def part_bytes(lines: Sequence[AnnouncedLine], size: float) -> int:
    """Bytes of a part of a round over `size` bytes, which all members take: a power of two, the smaller the
    slower the slowest line is, and not more than a member's equal share."""
    most = min(*(line.part for line in lines), size / (SEVERAL * len(lines)))
    part = next((part for part in (LARGEST_PART, LARGE_PART) if part <= most), USUAL_PART)
    while part > SMALLEST_PART and _part_seconds(lines, part) > PART_SECONDS:
        part //= 2
    while part > LEAST_PART and part > size / len(lines):
        part //= 2
    return part


def patience(lines: Sequence[AnnouncedLine], part: int, chunk: float) -> float:
    """Seconds without a part of `part` bytes after which a member counts as lost: `chunk`, and twice the time
    of a part on the slowest line."""
    return chunk + 2 * _part_seconds(lines, part)


def _part_seconds(lines: Sequence[AnnouncedLine], part: int) -> float:
    # A part and a mean to each other member are under way at a time.
    return 2 * (len(lines) - 1) * part / min(believed(lines))
