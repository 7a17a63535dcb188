"""Row `averaging`: seconds of one round through HiveAverager on real nodes, against bare hivemind, taking
turns.

    member x 4 (Node + HiveAverager)         one round, then
    bare x 4 (DHT + DecentralizedAverager)   one round, then again from the top

All members of a kind start at the same time; a round lasts until its last member has the mean. Both use
float16 on the wire and the group's size as a target. Every round's mean is checked: a wrong one is not
counted.
"""

from __future__ import annotations

import contextlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.partner import Partner, ask_all
from benchmarks.table import Figure, Unmeasured

if TYPE_CHECKING:
    from benchmarks import Say

SIZES = (1_000_000, 25_000_000)
MEMBERS = (2, 4)
ROUNDS = 5
TRIES = 3
"""Rounds that may fail for each that counts: a busy machine now and then loses one, on both sides."""


def measure(
    say: Say, sizes: Sequence[int] = SIZES, members: Sequence[int] = MEMBERS, rounds: int = ROUNDS
) -> list[Figure]:
    figures = []
    with ExitStack() as stack:
        ours, stock = Ours(stack), Stock(stack)
        for count in members:
            say(f"starting {count} learners of ours and {count} of bare hivemind")
            ours.grow(count)
            stock.grow(count)
            for numel in sizes:
                figures.append(_compare(say, ours, stock, count, numel, rounds))
    return figures


def _compare(say: Say, ours: Ours, stock: Stock, count: int, numel: int, rounds: int) -> Figure:
    spent: dict[str, list[float]] = {"ours": [], "stock": []}
    with ours.opened(numel, count), stock.opened(numel, count):
        for number in range(rounds + 1):
            mine, theirs = ours.round(), stock.round()
            say(f"{numel / 1e6:g}M among {count}: {mine:.2f} s, bare hivemind {theirs:.2f} s")
            if number:  # the first one makes connections
                spent["ours"].append(mine)
                spent["stock"].append(theirs)
    lost = ours.lost + stock.lost
    note = f"median of {rounds}, {min(spent['ours']):.2f} to {max(spent['ours']):.2f} s"
    if lost:
        note += f"; rounds repeated: {ours.lost} of ours, {stock.lost} of hivemind's"
    return Figure(
        row="averaging",
        what=f"{numel / 1e6:g}M parameters, {count} learners",
        value=median(spent["ours"]),
        unit="s/round",
        against="bare hivemind",
        other=median(spent["stock"]),
        note=note,
    )


class Kind(ABC):
    """Learners of one kind, of which the first `active` take part."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.partners: list[Partner] = []
        self.hello: list[dict[str, Any]] = []
        self.active = 0
        self.lost = 0

    def grow(self, count: int) -> None:
        while len(self.partners) < count:
            bootstrap = self.hello[0]["addresses"][:1] if self.hello else []
            partner = self.stack.enter_context(self.start(bootstrap))
            self.partners.append(partner)
            self.hello.append(partner.hear())

    @abstractmethod
    def start(self, bootstrap: Sequence[str]) -> Partner: ...

    @abstractmethod
    def questions(self) -> list[dict[str, Any]]:
        """What tells each of the active ones to average."""

    @contextlib.contextmanager
    def opened(self, numel: int, count: int) -> Iterator[None]:
        """An averager for so many parameters at so many learners."""
        self.active, self.lost = count, 0
        ask_all(self.partners[:count], [{"do": "open", "numel": numel, "members": count}] * count)
        yield
        ask_all(self.partners[:count], [{"do": "close"}] * count)

    def round(self) -> float:
        """Seconds until the last member has the mean of 1 .. n. Raises Unmeasured when rounds go on
        failing."""
        right = (self.active + 1) / 2
        answers: list[dict[str, Any]] = []
        for _ in range(TRIES):
            answers = ask_all(self.partners[: self.active], self.questions())
            if all(a.get("members") == self.active and abs(a["mean"] - right) < 1e-2 for a in answers):
                return max(float(answer["seconds"]) for answer in answers)
            self.lost += 1
        raise Unmeasured(
            f"{TRIES} rounds of {type(self).__name__.lower()} in a row failed, the last with {answers}"
        )


class Ours(Kind):
    _version = 0

    def start(self, bootstrap: Sequence[str]) -> Partner:
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="swarm-bench-"))
        return Partner(
            "benchmarks.processes.member", {"folder": str(Path(folder)), "bootstrap": list(bootstrap)}
        )

    def questions(self) -> list[dict[str, Any]]:
        self._version += 1
        names = [hello["me"] for hello in self.hello[: self.active]]
        return [
            {
                "do": "average",
                "version": self._version,
                "fill": i + 1.0,
                "peers": [name for name in names if name != me],
            }
            for i, me in enumerate(names)
        ]


class Stock(Kind):
    def start(self, bootstrap: Sequence[str]) -> Partner:
        return Partner("benchmarks.processes.baseline_hivemind", {"bootstrap": list(bootstrap)})

    def questions(self) -> list[dict[str, Any]]:
        return [{"do": "average", "fill": i + 1.0} for i in range(self.active)]
