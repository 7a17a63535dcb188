"""Row `averaging`: seconds of one round through HiveAverager on real nodes, against bare hivemind and against
plain TCP, taking turns.

    ours  x 4: Node + HiveAverager            one round, then
    stock x 4: DHT + DecentralizedAverager    one round, then
    plain x 4: sockets, the limit             one round, then again from the top

All members of a kind start at the same time; a round lasts until its last member has the mean. All use
float16 on the wire; ours and hivemind's stop looking for members once all are there. Every round's mean is
checked: a wrong one is not counted. CPU seconds are the mean of the rounds', p2pd's included: the kernel
counts them in hundredths.
"""

from __future__ import annotations

import contextlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

from lab.figures.table import Figure, Say, Unmeasured
from lab.swarms.partner import Partner, ask_all

SIZES, LARGE = (1_000_000, 25_000_000), (100_000_000,)
MEMBERS = (2, 4)
ROUNDS = 3
TRIES = 3
"""Rounds that may fail for each that counts: a busy machine now and then loses one, on both sides."""


def measure(
    say: Say,
    sizes: Sequence[int] = SIZES,
    members: Sequence[int] = MEMBERS,
    rounds: int = ROUNDS,
    row: str = "averaging",
) -> list[Figure]:
    figures = []
    with ExitStack() as stack:
        kinds = Ours(stack), Stock(stack), Plain(stack)
        for count in members:
            say(f"starting {count} learners of ours, {count} of bare hivemind and {count} of plain TCP")
            for kind in kinds:
                kind.grow(count)
            for numel in sizes:
                figures += _compare(say, row, kinds, count, numel, rounds)
    return figures


def large(say: Say) -> list[Figure]:
    """Row `averaging-100M`."""
    return measure(say, LARGE, row="averaging-100M")


def _compare(
    say: Say, row: str, kinds: Sequence[LearnerKind], count: int, numel: int, rounds: int
) -> list[Figure]:
    spent: list[list[tuple[float, float]]] = []
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(kind.opened(numel, count))
        for _ in range(rounds + 1):
            spent.append([_taken(kind) for kind in kinds])
            taken = ", ".join(
                f"{kind.name} {one:.3f} s" for kind, (one, _) in zip(kinds, spent[-1], strict=True)
            )
            say(f"{numel / 1e6:g}M among {count}: {taken}")
    # the first round makes connections
    mine, *others = (tuple(zip(*each, strict=True)) for each in zip(*spent[1:], strict=True))
    ours, *rest = kinds
    return [
        _against(row, f"{numel / 1e6:g}M parameters, {count} learners", ours, kind, mine, theirs)
        for kind, theirs in zip(rest, others, strict=True)
    ]


def _taken(kind: LearnerKind) -> tuple[float, float]:
    """A round's seconds, and CPU seconds of all its members' processes, those of lost rounds before it left
    out. Raises Unmeasured when rounds go on failing."""
    why: Exception | None = None
    for _ in range(TRIES):
        before = kind.cpu()
        try:
            return kind.round(), kind.cpu() - before
        except LostRound as lost:
            kind.lost, why = kind.lost + 1, lost
    raise Unmeasured(f"{TRIES} rounds of {kind.name} in a row failed, the last with {why}")


Turns = tuple[tuple[float, ...], ...]
"""Seconds of each round, CPU seconds of each."""


def _against(row: str, what: str, ours: LearnerKind, kind: LearnerKind, mine: Turns, theirs: Turns) -> Figure:
    (seconds, cpu), (other, other_cpu) = mine, theirs
    return Figure.of_turns(
        seconds,
        other,
        row=row,
        what=what,
        unit="s/round",
        against=kind.name,
        note=f"median of {len(seconds)}, {min(seconds):.3f} to {max(seconds):.3f} s, and {min(other):.3f} to"
        f" {max(other):.3f} s; rounds repeated: {ours.lost}, {kind.lost}",
        cpu=mean(cpu),
        other_cpu=mean(other_cpu),
    )


class LostRound(Exception):
    """Not all had the mean; the message has the members' answers."""


class LearnerKind(ABC):
    """Learners of one kind, of which the first `active` take part."""

    name: str

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
            self.hello.append(partner.receive())

    @abstractmethod
    def start(self, bootstrap: Sequence[str]) -> Partner: ...

    def cpu(self) -> float:
        """CPU seconds of the active ones so far."""
        return sum(partner.cpu() for partner in self.partners[: self.active])

    def openings(self) -> list[dict[str, Any]]:
        """The settings that each of the active ones needs about the others beforehand."""
        return [{"members": self.active}] * self.active

    def questions(self) -> list[dict[str, Any]]:
        """The orders to average for each of the active ones."""
        return [{"do": "average", "fill": i + 1.0} for i in range(self.active)]

    @contextlib.contextmanager
    def opened(self, numel: int, count: int) -> Iterator[None]:
        """An averager for so many parameters at so many learners."""
        self.active, self.lost = count, 0
        ask_all(
            self.partners[:count], [{"do": "open", "numel": numel, **opening} for opening in self.openings()]
        )
        yield
        ask_all(self.partners[:count], [{"do": "close"}] * count)

    def round(self) -> float:
        """Seconds until the last member has the mean of 1 .. n. Raises LostRound."""
        right = (self.active + 1) / 2
        answers = ask_all(self.partners[: self.active], self.questions())
        if all(a.get("members") == self.active and abs(a["mean"] - right) < 1e-2 for a in answers):
            return max(float(answer["seconds"]) for answer in answers)
        raise LostRound(answers)


class Ours(LearnerKind):
    name = "ours"
    _version = 0

    def start(self, bootstrap: Sequence[str]) -> Partner:
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="swarm-bench-"))
        return Partner("lab.processes.member", {"folder": str(Path(folder)), "bootstrap": list(bootstrap)})

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


class Stock(LearnerKind):
    name = "bare hivemind"

    def start(self, bootstrap: Sequence[str]) -> Partner:
        return Partner("lab.processes.baseline_hivemind", {"bootstrap": list(bootstrap)})


class Plain(LearnerKind):
    name = "plain TCP"

    def start(self, bootstrap: Sequence[str]) -> Partner:
        return Partner("lab.processes.baseline_tcp", {})

    def openings(self) -> list[dict[str, Any]]:
        ports = [hello["addresses"][0] for hello in self.hello[: self.active]]
        return [{"me": me, "ports": ports} for me in range(self.active)]
