"""Verdicts and ages of a learner's groups, counted until they are emitted in one event."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarm.types import Group, PeerId, Verdict

SAMPLERS_PER_EVENT = 24
"""Samplers whose verdicts fit into one gossiped event of 4 KiB beside its other fields; the next event has
the rest."""

SAMPLERS = 1024
"""Samplers that are counted by name between events; further ones without an admitted group are not."""

OTHERS = PeerId("others")
"""Stands for all samplers that are not counted by name."""

TRAINED, FLAT, DROPPED = "trained", "flat", "dropped"
"""Outcomes of tokens, beside those counted by sampler; FLAT: of groups without signal that made room for
others."""

LAGS_PER_EVENT = 96
"""Distinct lags in versions in one event, five bytes each; the next event has the rest."""


@dataclass
class Tally:
    """Verdicts and ages since the last Counted event."""

    verdicts: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    """Of groups that had their end, by what became of them."""
    samplers: dict[str, Counter[str]] = field(default_factory=dict)

    def judged(self, sampler: PeerId, verdict: str) -> None:
        """Count a verdict, of a sampler whose key is known; OTHERS where it is not."""
        self.verdicts[verdict] += 1
        full = len(self.samplers) >= SAMPLERS and verdict != Verdict.ADMIT
        name = OTHERS if full and sampler not in self.samplers else sampler
        self.samplers.setdefault(name, Counter())[verdict] += 1

    def ended(self, group: Group, how: str) -> None:
        self.tokens[how] += sum(group.lengths)

    def trained(self, group: Group, versions: int, seconds: float) -> None:
        self.ended(group, TRAINED)
        self.versions[str(versions)] += 1
        self.seconds[str(1 << max(0, int(seconds)).bit_length())] += 1

    def drain(self) -> dict[str, dict[str, int]]:
        """Return the fields of a Counted event and reset them; the excess stays for the next event."""
        versions = {lag: self.versions.pop(lag) for lag in list(self.versions)[:LAGS_PER_EVENT]}
        counts = {"verdicts": dict(self.verdicts), "versions": versions}
        counts |= {"seconds": dict(self.seconds), "tokens": dict(self.tokens)}
        for counter in (self.verdicts, self.seconds, self.tokens):
            counter.clear()
        return counts

    def drain_samplers(self) -> dict[str, dict[str, int]]:
        """The same by sampler: first those with an admitted group, however many others there are."""
        now = sorted(self.samplers, key=lambda sampler: Verdict.ADMIT not in self.samplers[sampler])
        now = now[:SAMPLERS_PER_EVENT]
        return {sampler: dict(self.samplers.pop(sampler)) for sampler in now}
