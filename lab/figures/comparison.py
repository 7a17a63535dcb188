"""`swarm bench --compare OLD.json`: figures that got worse since an earlier table, beyond noise.

    old Results, new Results -> a Change for each figure that both have -> worse(changes)

Compared is the ratio to the baseline of the same run where both tables have one, since both sides of it had
the same machine at the same time; else, where the machine was otherwise idle, the value. On a busy machine
the ratio is that of CPU seconds, if both tables have those: a side with more processes loses more to other
load (to its accuracy a swarm of 1 + 1 took 0.9 of one process's time at a load of 11, 1.9 of it at a load of
2; of its CPU seconds 3.0 and 2.9 times as many). The scatter of a run's turns decides how far two medians may
differ by chance: TIMES standard errors of their difference, and at least LEAST; figures without turns must
differ by SINGLE. Worse too, on any machine: an earlier figure that its row could not measure now, or no
longer has under that name; a figure that falls to 0 where more is better; a count of failures that rises from
0. Figures of rows that were not requested now are left out. Not handled here: which commit did it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

from lab.figures.table import TOO_MANY, Figure, Gap, Results
from peers.errors import WrongUsage
from swarm.limits import UNREADABLE
from swarm.types import Struct

TIMES = 3.0
"""Standard errors: one of 700 figures that did not change goes beyond it, of a normal distribution."""

LEAST, SINGLE = 0.1, 0.5
"""Relative differences that count as noise whatever the turns, and without turns: figures scatter more from
run to run than from turn to turn. Of three runs of one commit, at loads of 2 to
3, medians of turns differed by up to 10 %, figures without turns by up to 35 %."""

RANGE = {3: 1.693, 4: 2.059, 5: 2.326}
"""Turns -> standard deviations of their range, of a normal distribution. Of 56 comparisons of one commit with
itself (groups at loads of 3 and 8, averaging at 4 and 7, each both ways) 5 were worse by the median absolute
deviation and the ratio of seconds; by the range, and CPU seconds where there are some, 1 is."""


MISSING = {
    "gap": "not measured now: the table says why",
    "gone": "now its row has no such figure, or gives it another name: take a new table to compare with",
}
"""Kind of a Change -> why there is no value now."""


class Change(Struct):
    """A figure then and now."""

    row: str
    what: str
    kind: str
    """The compared value: `ratio`, `ratio of CPU seconds`, or the unit; `gap` where it was not measured now,
    `gone` where its row was and has no such figure."""
    before: float
    after: float
    change: float
    """How many times as bad as before: 2 for half the groups/s, or twice the seconds; infinite where nothing
    is left or failures begin; 1 where the better direction is unknown, or the machine was busy."""
    noise: float
    """The relative difference that may be chance."""

    @property
    def worse(self) -> bool:
        return self.change > 1.0 + self.noise

    def __str__(self) -> str:
        if self.kind in MISSING:
            return f"{self.row}: {self.what}: {self.before:.4g} before, {MISSING[self.kind]}"
        said = f"{self.row}: {self.what}: {self.before:.4g} -> {self.after:.4g} ({self.kind})"
        if math.isinf(self.change):
            return f"{said}, {'nothing is left' if self.before > self.after else 'there was none'}"
        return f"{said}, {self.change:.2f} times as bad, noise {100 * self.noise:.0f} %"


def read(path: Path) -> Results:
    """The table that `swarm bench --json` printed. Raises WrongUsage."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as error:
        raise WrongUsage(f"cannot read {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise WrongUsage(f"{path} is not what `swarm bench --json` prints: name a file of that") from error


def changes(old: Results, new: Results) -> list[Change]:
    """One for each figure of `old` whose row was measured in `new`, in the order of `old`."""
    return list(_changes(old, new))


def worse(found: Sequence[Change]) -> list[Change]:
    """Those beyond noise, the worst first."""
    return sorted((each for each in found if each.worse), key=lambda each: -each.change)


def _changes(old: Results, new: Results) -> Iterator[Change]:
    now = {_name(line): line for line in new.figures if isinstance(line, Figure)}
    gaps = {line.row for line in new.figures if isinstance(line, Gap)}
    measured = {line.row for line in new.figures}
    quiet = not (old.machine.noisy or new.machine.noisy)
    for before in old.figures:
        if not isinstance(before, Figure):
            continue
        if (after := now.get(_name(before))) is not None:
            yield _change(before, after, quiet)
        elif before.row in measured:
            yield Change(
                row=before.row,
                what=before.what,
                kind="gap" if before.row in gaps else "gone",
                before=before.value,
                after=math.nan,
                change=math.inf,
                noise=0.0,
            )


def _name(figure: Figure) -> tuple[str, str, str]:
    """One figure may stand against two others."""
    return figure.row, figure.what, figure.against


def _change(before: Figure, after: Figure, quiet: bool) -> Change:
    kind, values, judged = _compared(before, after, quiet)
    return Change(
        row=before.row,
        what=before.what,
        kind=kind,
        before=values[0],
        after=values[1],
        change=_times(values, after.higher, judged),
        noise=_noise(before, after, kind.startswith("ratio")),
    )


def _times(values: tuple[float, float], higher: bool | None, judged: bool) -> float:
    """How many times as bad the second is. No load of the machine takes all of what more is better of."""
    if higher is None:
        return 1.0
    large, small = values if higher else (values[1], values[0])
    if small <= 0 < large and (judged or higher):
        return math.inf
    return max(0.0, large / small) if judged and small > 0 else 1.0


def _compared(before: Figure, after: Figure, quiet: bool) -> tuple[str, tuple[float, float], bool]:
    """The compared value, its size then and now, and whether they are comparable. An earlier table may have
    another unit for the figure, of which the ratio alone is the same."""
    if not quiet and before.cpu_ratio is not None and after.cpu_ratio is not None:
        return "ratio of CPU seconds", (before.cpu_ratio, after.cpu_ratio), True
    if before.ratio is not None and after.ratio is not None:
        return "ratio", (before.ratio, after.ratio), True
    same = before.unit == after.unit or after.unit == TOO_MANY
    return after.unit, (before.value, after.value), same and (quiet or after.unit == TOO_MANY)


def _noise(before: Figure, after: Figure, ratio: bool) -> float:
    sides = [before.turns, after.turns, *((before.other_turns, after.other_turns) if ratio else ())]
    errors = [_error(turns) for turns in sides if len(turns) > 2]
    if len(errors) < len(sides):
        return SINGLE
    return max(LEAST, TIMES * math.hypot(*errors))


def _error(turns: Sequence[float]) -> float:
    """Relative standard error of the median of turns, of a normal distribution with their median absolute
    deviation (1.4826 of it are a standard deviation; a median scatters 1.2533 times as far as a mean). Of few
    turns it is the range: two of three that are alike by chance would hide that the third is not (bare
    hivemind's rounds of 1M among four took .22, .74 and .76 s)."""
    middle = median(turns)
    if (few := RANGE.get(len(turns))) is not None:
        deviation = (max(turns) - min(turns)) / few
    else:
        deviation = 1.4826 * median(abs(turn - middle) for turn in turns)
    return 1.2533 * deviation / math.sqrt(len(turns)) / abs(middle) if middle else 0.0
