"""Summary of a simulated run: a fold of its events into a few figures.

In come events (a Bus sink), out comes a Summary for people (`text`) or programs (`as_dict`). Groups are
counted from Judged, and from the gossiped Counted where learners report only those; lags are those of trained
groups as Counted says, or of admitted ones.
"""

from __future__ import annotations

from collections import Counter

from swarm.events import Counted, Event, Faulted, Judged, RoundBroke, Sampled, Trained
from swarm.types import Verdict

_EDGE = 5
"""Versions over which the first and the last reward are averaged: one batch alone is noise."""


class Summary:
    """A Bus sink."""

    def __init__(self) -> None:
        self.version = 0
        self.sampled = 0
        self.broken = 0
        self.faults = 0
        self._judged: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._lag = (Counter[int](), Counter[int]())
        self._counted_lag = (Counter[int](), Counter[int]())
        self._rewards: dict[int, float] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case Judged():
                self._judged[event.verdict.value] += 1
                if event.verdict is Verdict.ADMIT:
                    self._lag[0][event.versions] += 1
                    self._lag[1][_power(event.seconds)] += 1
            case Counted():
                self._counted.update(event.verdicts)
                self._counted_lag[0].update({int(lag): count for lag, count in event.versions.items()})
                self._counted_lag[1].update({int(float(age)): count for age, count in event.seconds.items()})
            case Sampled():
                self.sampled += 1
            case Trained():
                self.version = max(self.version, event.version)
                if "reward" in event.metrics:
                    self._rewards[event.version] = event.metrics["reward"]
            case RoundBroke():
                self.broken += 1
            case Faulted():
                self.faults += 1

    def as_dict(self) -> dict[str, object]:
        rewards = [self._rewards[version] for version in sorted(self._rewards)]
        versions, seconds = self._counted_lag if self._counted_lag[0] else self._lag
        return {
            "versions": self.version,
            "sampled": self.sampled,
            "verdicts": dict(sorted((self._judged or self._counted).items())),
            "lag_versions": dict(sorted(versions.items())),
            "lag_seconds": dict(sorted(seconds.items())),
            "reward_first": _mean(rewards[:_EDGE]),
            "reward_last": _mean(rewards[-_EDGE:]),
            "rounds_broken": self.broken,
            "faults": self.faults,
        }

    def text(self) -> str:
        figures = self.as_dict()
        versions, seconds = figures.pop("lag_versions"), figures.pop("lag_seconds")
        assert isinstance(versions, dict) and isinstance(seconds, dict)
        lines = [f"{name.replace('_', ' ')}: {_show(value)}" for name, value in figures.items()]
        lines += ["lag in versions:", *_bars({str(lag): count for lag, count in versions.items()})]
        lines += ["lag in seconds, up to:", *_bars({str(age): count for age, count in seconds.items()})]
        return "\n".join(lines)


def _power(seconds: float) -> int:
    """The smallest power of two at or above the value."""
    return 1 << max(0, (max(1, int(-(-seconds // 1))) - 1).bit_length())


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _show(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _bars(histogram: dict[str, int], width: int = 50) -> list[str]:
    most = max(histogram.values(), default=1)
    return [
        f"  {name:>6} {count:>8} {'#' * round(width * count / most)}" for name, count in histogram.items()
    ]
