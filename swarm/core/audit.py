"""What became of every acknowledged group, and whether the versions are one line: read from peers' journals.

    Judged admit      acknowledged          Released    the line: from the newest release back by its parents,
                                                        of which a merge has two
    Stepped           trained, where its version is of the line
    Dropped           refused after all
    Found, Returned, Started      who holds a group that is not trained yet

In come the events of any peers in any order; what no journal tells is a gap. A group is lost when nobody that
had it in its last life trained, refused or still holds it: what a learner found on its disk it holds until
it steps, by when it took that up. Nothing here is what a learner thinks of its own groups after a crash:
steps are compared with the releases that count. So a group that it drops as trained by its own step, which it
merged, it holds until it steps, too: that policy may be lost with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from swarm.core.lineage import Point, ancestry, parents
from swarm.core.releases import rank
from swarm.core.trained import made_by, mark
from swarm.events import AnyEvent, Dropped, Event, Found, Judged, Released, Returned, Started, Stepped
from swarm.types import Digest, PeerId, Release, Verdict

DUPLICATE = Verdict.DUPLICATE.value

Line = dict[Point, list[Release]]
"""Releases that count, by version and weights."""


@dataclass(frozen=True)
class Audit:
    acknowledged: int
    once: int
    """Acknowledged groups that were trained exactly once."""
    refused: Counter[str]
    """Why -> groups that were admitted, and not trained for a reason."""
    waiting: int
    """Groups that a learner still held at the end."""
    lost: tuple[str, ...]
    doubled: Mapping[str, tuple[int, ...]]
    """Beginning of a group's id -> versions that it was trained in."""
    versions: int
    """The newest version."""
    forked: tuple[int, ...]
    """Versions with two digests."""
    merged: tuple[int, ...]
    """Versions that merged two lines."""
    gaps: tuple[int, ...]
    """Versions of which no journal has the release."""

    @property
    def passed(self) -> bool:
        return not (self.lost or self.doubled)


@dataclass
class Account:
    """What the journals say, sorted."""

    releases: dict[int, list[Release]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[tuple[PeerId, int, Digest, tuple[PeerId, ...]], list[Stepped]] = field(
        default_factory=lambda: defaultdict(list)
    )
    admitted: dict[str, None] = field(default_factory=dict)
    held: dict[PeerId, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Learner -> groups that it holds in this life."""
    found: dict[PeerId, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Learner -> groups on its disk that it did not take up yet, or not again."""
    stepped: dict[PeerId, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Learner -> groups of its own steps."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Group -> why it was dropped last."""

    def take(self, event: Event) -> None:
        match event:
            case Released():
                self.releases[event.release.version].append(event.release)
            case Stepped():
                self.steps[event.peer, event.version, event.parent, event.members].append(event)
                self.found[event.peer].clear()
                self.stepped[event.peer].update(event.groups)
            case Judged() if event.verdict is Verdict.ADMIT:
                self.admitted[event.group] = None
                self.held[event.peer].add(event.group)
            case Found():
                self.found[event.peer].update(event.groups)
            case Returned():
                self.held[event.peer].update(event.groups)
            case Started():
                self.held[event.peer].clear()
                self.found[event.peer].clear()
            case Dropped():
                self.held[event.peer].difference_update(event.groups)
                self.found[event.peer].difference_update(event.groups)
                if event.why == DUPLICATE:
                    self.found[event.peer].update(self.stepped[event.peer].intersection(event.groups))
                self.dropped |= dict.fromkeys(event.groups, event.why)
            case _:
                pass

    def line(self) -> Line:
        """Those that the newest release is made of, and where the one before is in no journal, the best of
        its version."""
        found: Line = {}
        weights = Digest("")
        for version in range(max(self.releases, default=0), 0, -1):
            if not (same := self._of((version, weights))) and self.releases[version]:
                same = self._of((version, max(self.releases[version], key=rank).weights))
            weights = _add(same, found)
        merged = [one.merged for its in [*found.values()] for one in its if one.merged]
        while merged:
            one = merged.pop()
            point = one.version, one.weights
            while point not in found and (same := self._of(point)):
                merged += [each.merged for each in same if each.merged]
                point = point[0] - 1, _add(same, found)
        return found

    def _of(self, point: Point) -> list[Release]:
        return [one for one in self.releases.get(point[0], ()) if one.weights == point[1]]

    def trained(self, line: Line) -> dict[str, list[Point]]:
        """Mark of a group -> releases that count and were trained on it, once for each member that brought
        it: also where two of its steps made the same weights, of which both releases count."""
        found: dict[str, list[Point]] = defaultdict(list)
        by_version, told = defaultdict[int, list[Release]](list), defaultdict[Point, set[str]](set)
        for (version, _), its in line.items():
            by_version[version] += its
        brought = dict[tuple[PeerId, str, Point], None]()
        for (peer, version, parent, members), steps in self.steps.items():
            made = [one for one in by_version[version] if made_by(members, parent, one)]
            if made:
                # of several tries the last one before the release; others of a round step after it, too
                before = [step for step in steps if step.at <= min(one.released for one in made)]
                step = before[-1] if before else steps[0]
                point = version, made[0].weights
                brought |= dict.fromkeys((peer, short(group), point) for group in step.groups)
                told[point].update(step.others)
        for _, group, point in brought:
            found[group].append(point)
        # what a member brought that did not get to know that its round succeeded
        for point, marks in told.items():
            for each in marks:
                if point not in found[each]:
                    found[each].append(point)
        return found


def _add(same: list[Release], line: Line) -> Digest:
    """Add the releases of one version and weights; returns what they were made from."""
    if not same:
        return Digest("")
    line[same[0].version, same[0].weights] = same
    return same[0].parent


def _doubled(trained: Mapping[str, Sequence[Point]], line: Line) -> dict[str, tuple[int, ...]]:
    """Groups that a policy was trained on twice -> in which versions. Where both lines of a merge were
    trained on one, the mean has it once: by each line's share, what that line made of it."""

    def before(point: Point) -> tuple[Point, ...]:
        its = line.get(point, ())
        return parents(point[0], its[0].parent, its[0].merged) if its else ()

    def twice(points: Sequence[Point]) -> bool:
        below = (ancestry(point, before)[0] - {point} for point in points)
        return len({*points}) < len(points) or any(not one.isdisjoint(points) for one in below)

    return {
        each: tuple(sorted(version for version, _ in points))
        for each, points in trained.items()
        if len(points) > 1 and twice(points)
    }


def short(group: str) -> str:
    return mark(group).hex()


def audit(events: Iterable[AnyEvent]) -> Audit:
    """Read the events of all journals together."""
    account = Account()
    for event in sorted(events, key=lambda event: event.at):
        account.take(event)
    line, held = account.line(), set[str]().union(*account.held.values(), *account.found.values())
    trained = account.trained(line)
    doubled = _doubled(trained, line)
    untrained = [group for group in account.admitted if short(group) not in trained]
    waiting = [group for group in untrained if group in held]
    why = {group: account.dropped.get(group, DUPLICATE) for group in untrained if group not in held}
    newest = max(account.releases, default=0)
    digests = {version: {one.weights for one in its} for version, its in account.releases.items()}
    return Audit(
        acknowledged=len(account.admitted),
        once=sum(short(group) in trained and short(group) not in doubled for group in account.admitted),
        refused=Counter(reason for reason in why.values() if reason != DUPLICATE),
        waiting=len(waiting),
        # a duplicate of what nobody trained is no reason
        lost=tuple(group for group, reason in why.items() if reason == DUPLICATE),
        doubled=doubled,
        versions=newest,
        forked=tuple(sorted(version for version, its in digests.items() if len(its) > 1)),
        merged=tuple(
            sorted({version for (version, _), its in line.items() if any(one.merged for one in its)})
        ),
        gaps=tuple(version for version in range(1, newest + 1) if not account.releases.get(version)),
    )
