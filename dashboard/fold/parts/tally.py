"""Sums of learners' counts: verdicts, and the ages of trained groups; and of samplers' wasted tokens.

Only Counted events are taken, which every learner emits for all of its groups. Judged events, which only a
learner's own journal has, become sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from dashboard.fold.peer import ENDS, UNJUDGED, known, known_verdicts
from dashboard.text import count, number, proper, whole
from dashboard.views import LagView

OLDEST = 1024
"""Largest lag with a count of its own: larger than any admission window in use."""


LIVES = 4096
"""Peers whose claims of tokens are remembered, also when they have no row any more: no sum falls."""


class Life(msgspec.Struct):
    """What of a peer's claims since its start is in the sum."""

    incarnation: int
    told: dict[str, int] = {}


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
    wasted: dict[str, int] = {}
    """One of UNJUDGED -> tokens that peers reported as wasted, in all of their lives."""
    lives: dict[str, Life] = {}
    """Peer -> its reports since its start; the one silent for longest first."""

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

    def waste(self, peer: str, incarnation: int, claimed: Mapping[str, int]) -> None:
        """Add a peer's claim beyond its earlier ones, since the same start."""
        life = self.lives.pop(peer, None)
        if life is None or incarnation > life.incarnation:
            life = Life(incarnation)
        self.lives[peer] = life
        for cause, tokens in claimed.items():
            count(self.wasted, {cause: max(tokens - life.told.get(cause, 0), 0)})
            life.told[cause] = max(tokens, life.told.get(cause, 0))
        if len(self.lives) > LIVES:
            del self.lives[next(iter(self.lives))]

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
        self.wasted = known(self.wasted, UNJUDGED)
        self.lives = {peer: life for peer, life in list(self.lives.items())[-LIVES:] if proper(peer)}
        for life in self.lives.values():
            life.told = known(life.told, UNJUDGED)
