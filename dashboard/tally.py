"""Sums of learners' counts: verdicts, and the ages of trained groups.

Only Counted events are taken, which every learner emits for all of its groups. Judged events, which only a
learner's own journal has, become sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from dashboard.peer import ENDS, known, known_verdicts
from dashboard.text import count, number, whole
from dashboard.views import LagView

OLDEST = 1024
"""Largest lag with a count of its own: larger than any admission window in use."""


class VerdictTally(msgspec.Struct):
    verdicts: dict[str, int] = {}
    versions: dict[int, int] = {}
    """Lag at training in versions -> groups."""
    seconds: dict[float, int] = {}
    """Age at training in seconds, as the upper bound of a power of two -> groups."""
    trained: int = 0
    """Groups in all optimizer steps."""
    tokens: dict[str, int] = {}
    """What became of groups -> their tokens."""

    def take(
        self,
        verdicts: dict[str, int],
        versions: Mapping[str, int],
        seconds: Mapping[str, int],
        tokens: Mapping[str, int],
    ) -> None:
        count(self.verdicts, known_verdicts(verdicts))
        count(self.tokens, known(tokens, ENDS))
        for lag, groups in versions.items():
            if lag.isdecimal() and len(lag) < 10:
                count(self.versions, {min(int(lag), OLDEST): groups})
        for bound, groups in seconds.items():
            try:
                power = math.ceil(math.log2(number(float(bound), 2**-4, 2**20)))
            except ValueError:
                continue
            count(self.seconds, {2.0**power: groups})

    def view(self) -> LagView:
        return LagView(
            versions=tuple(sorted(self.versions.items())), seconds=tuple(sorted(self.seconds.items()))
        )

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        verdicts, versions, seconds, tokens = self.verdicts, self.versions, self.seconds, self.tokens
        self.verdicts, self.versions, self.seconds, self.tokens = {}, {}, {}, {}
        self.trained = whole(self.trained)
        as_reported = {str(lag): groups for lag, groups in versions.items()}
        ages = {str(bound): groups for bound, groups in seconds.items()}
        self.take(verdicts, as_reported, ages, tokens)
