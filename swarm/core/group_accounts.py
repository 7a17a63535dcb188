"""The fate of every acknowledged group, and whether the versions are one line: read from peers' journals.

    Judged admit      acknowledged          Released    the line: from the newest release back by its parents
    Stepped           trained, where its version is of the line
    Dropped           refused after all
    Found, Returned, Started      which peer holds an untrained group

In come the journals of any peers; facts that none records are a gap. A peer's lives follow one another as in
its own journal, whatever its clock; reports of other peers begin none. A release counts where its publisher's
own journal has it, where another peer took it, or where a release that counts is made of it: any learner can
announce any version. A group is lost when no peer that had it in its last life trained, refused or still
holds it: groups found on a disk are held until their learner's next step from a release of the line. A
learner's own view of its groups after a crash does not count: steps are compared with the releases that
count. So a group that a learner drops as trained by its own step is held until its next step, too: that
policy may be lost with it.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from operator import or_

from swarm.core.agreement.lineage import Point, parent_of
from swarm.core.agreement.releases import rank
from swarm.core.agreement.trained import made_by, mark
from swarm.core.intake.admission import REPEATED
from swarm.events import (
    GOSSIPED,
    Adopted,
    AnyEvent,
    Dropped,
    Event,
    Found,
    Judged,
    Released,
    Returned,
    Snapped,
    Started,
    Stepped,
)
from swarm.types import Digest, PeerId, Release, Verdict

DUPLICATE = Verdict.DUPLICATE.value

READ = (Adopted, Dropped, Found, Judged, Released, Returned, Snapped, Started, Stepped)
"""The events that are read here."""

Line = dict[Point, list[Release]]
"""Releases that count, by version and weights."""


@dataclass(frozen=True)
class JournalAudit:
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
    gaps: tuple[range, ...]
    """Versions of which no journal has the release; one range can be of any number."""

    @property
    def passed(self) -> bool:
        return not (self.lost or self.doubled)


@dataclass
class Account:
    """The contents of the journals, sorted."""

    announced: dict[Point, list[Release]] = field(default_factory=lambda: defaultdict(list))
    takers: dict[Point, set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    """Weights -> peers that took them."""
    own: set[Release] = field(default_factory=set)
    """Releases in their publishers' own journals."""
    steps: dict[tuple[int, Digest, tuple[PeerId, ...]], dict[PeerId, list[Stepped]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """A round, by its version, parent and members -> its members' tries, in their order."""
    admitted: dict[str, None] = field(default_factory=dict)
    held: dict[PeerId, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Learner -> groups that it holds in this life."""
    found: dict[PeerId, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Learner -> groups on its disk that it did not take up yet, or not again."""
    beside: dict[PeerId, dict[Point, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    """Learner -> release that it stepped from in this life -> the groups that it had found until then."""
    stepped: dict[PeerId, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Learner -> groups of its own steps."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Group -> why it was dropped last."""

    def take(self, event: Event) -> None:
        match event:
            case Released():
                self.announced[_point(event.release)].append(event.release)
                if event.peer == event.release.publisher:
                    self.own.add(event.release)
            case Adopted():
                self.takers[event.version, event.weights].add(event.peer)
            case Snapped():
                self.takers[event.version, event.theirs].add(event.peer)
            case Stepped():
                self.takers[event.version - 1, event.parent].add(event.peer)
                self.steps[event.version, event.parent, event.members][event.peer].append(event)
                self.beside[event.peer][event.version - 1, event.parent] |= self.found.pop(event.peer, set())
                self.stepped[event.peer].update(event.groups)
            case Judged():
                self._judged(event)
            case Found():
                self.found[event.peer].update(event.groups)
            case Returned():
                self.held[event.peer].update(event.groups)
            case Started():
                self._begin_life(event.peer)
            case Dropped():
                self.held[event.peer].difference_update(event.groups)
                self.found[event.peer].difference_update(event.groups)
                if event.why == DUPLICATE:
                    self.found[event.peer].update(self.stepped[event.peer].intersection(event.groups))
                self.dropped |= dict.fromkeys(event.groups, event.why)
            case _:
                pass

    def _begin_life(self, peer: PeerId) -> None:
        for groups in (self.held, self.found, self.beside):
            groups.pop(peer, None)

    def _judged(self, event: Judged) -> None:
        if event.verdict is Verdict.ADMIT:
            self.admitted[event.group] = None
            self.held[event.peer].add(event.group)
        elif event.group in self.admitted and (why := _refusal(event)):
            self.dropped[event.group] = why

    @cached_property
    def releases(self) -> dict[int, list[Release]]:
        """Version -> its releases that count; to be read once all events are taken."""
        found = dict[Point, list[Release]]()
        left = [point for point, its in self.announced.items() if any(map(self._is_followed, its))]
        while left:
            if (point := left.pop()) in found or point not in self.announced:
                continue
            found[point] = self.announced[point]
            left += [each for one in found[point] if (each := parent_of(one.version, one.parent))]
        by_version = defaultdict[int, list[Release]](list)
        for (version, _), its in sorted(found.items()):
            by_version[version] += its
        return dict(by_version)

    def _is_followed(self, release: Release) -> bool:
        return release in self.own or bool(self.takers.get(_point(release), set()) - {release.publisher})

    def line(self) -> Line:
        """Those that the newest release is made of, and where the one before is in no journal, the best of
        its version."""
        found: Line = {}
        above, weights = 0, Digest("")
        for version in sorted((each for each in self.releases if each > 0), reverse=True):
            same = self._of((version, weights)) if version == above - 1 else []
            if not same:
                same = self._of((version, max(self.releases[version], key=rank).weights))
            above, weights = version, _add(same, found)
        return found

    def held_beside(self, line: Line) -> set[str]:
        """Groups on the disks of learners that stepped beside the line alone since they found them: each
        returns them as soon as it takes the line's policy."""
        alone = (its for its in self.beside.values() if not any(at in line or at[0] == 0 for at in its))
        return set[str]().union(*(groups for its in alone for groups in its.values()))

    def _of(self, point: Point) -> list[Release]:
        return [one for one in self.releases.get(point[0], ()) if one.weights == point[1]]

    def trained(self, line: Line) -> dict[str, list[Point]]:
        """Mark of a group -> releases that count and were trained on it, once for each member that brought
        it. Of rounds that made the same weights, as those without signal do, the line has one, and nothing
        later shows which: of their groups those that were trained in another version count there alone."""
        by_version, rounds = (
            defaultdict[int, list[Release]](list),
            defaultdict[Point, list[Counter[str]]](list),
        )
        for (version, _), its in line.items():
            by_version[version] += its
        for (version, parent, members), tries in self.steps.items():
            made = [one for one in by_version.get(version, ()) if made_by(members, parent, one)]
            if made:
                rounds[version, made[0].weights].append(_brought(_counting(tries, made)))
        found: dict[str, list[Point]] = defaultdict(list)
        for point, each in rounds.items():
            for group, times in reduce(or_, each).items():
                found[group] += times * [point]
        alike = {point for point, each in rounds.items() if len(each) > 1}
        return {group: _unambiguous(points, alike) for group, points in found.items()}


def _refusal(judged: Judged) -> str:
    """Why a group that was delivered again is not trained: none where a learner asks for it later, or says
    that it is known."""
    if judged.verdict is Verdict.DUPLICATE:
        return judged.detail if judged.detail != REPEATED else ""
    return judged.verdict.value if judged.verdict is not Verdict.OVER_QUOTA else ""


def _point(release: Release) -> Point:
    return release.version, release.weights


def _counting(tries: Mapping[PeerId, Sequence[Stepped]], made: Sequence[Release]) -> list[Stepped]:
    """Of each member's tries of a round that made releases, the one behind them: a publisher's last one
    before its release, and of others the one that goes with a publisher's; else with any member's."""
    released = {one.publisher: one.released for one in made}
    found: list[Stepped] = []
    for peer in sorted(tries, key=lambda peer: peer not in released):
        its = tries[peer]
        if peer not in released:
            beside = found or [step for other in tries.keys() - {peer} for step in tries[other]]
            fits = [_fit(step, beside) for step in its]
            its = [step for step, fit in zip(its, fits, strict=True) if fit == max(fits)]
        # two machines' clocks may differ; members of a round step after its release, too
        before = [step for step in its if step.at <= released.get(peer, min(released.values()))]
        found.append(before[-1] if before else its[0])
    return found


def _brought(steps: Sequence[Stepped]) -> Counter[str]:
    """Mark of a group -> how many members of a round brought it. Groups that only others name were brought by
    a member that never learned that its round succeeded."""
    own = Counter(short(group) for step in steps for group in {*step.groups})
    return own | Counter({each for step in steps for each in step.others})


def _unambiguous(points: Sequence[Point], alike: Set[Point]) -> list[Point]:
    """Where a group was trained: not in those that several rounds made alike, where there is another one."""
    sure = [point for point in points if point not in alike]
    return sure or [point for point in points if point == max(points)]


def _fit(step: Stepped, beside: Sequence[Stepped]) -> tuple[int, int]:
    """How well it goes with steps of other members: whether one of them names its groups, and it that one's;
    how many they are, as of a try with fewer groups all may be named, too."""
    named = [one for one in beside if _names(one, step)]
    return bool(named) + any(_names(step, one) for one in named), len(step.groups) if named else 0


def _names(step: Stepped, other: Stepped) -> bool:
    """A group that both have is named by neither."""
    return {*map(short, other.groups)} <= {*step.others, *map(short, step.groups)}


def _add(same: list[Release], line: Line) -> Digest:
    """Add the releases of one version and weights; returns what they were made from."""
    if not same:
        return Digest("")
    line[same[0].version, same[0].weights] = same
    return same[0].parent


def short(group: str) -> str:
    return mark(group).hex()


def audit(*journals: Iterable[AnyEvent]) -> JournalAudit:
    """Read journals, the events of each in its order; one may have the events of several peers."""
    account = Account()
    for event in heapq.merge(*([*_relevant(journal)] for journal in journals), key=lambda event: event.at):
        account.take(event)
    line = account.line()
    held = set[str]().union(*account.held.values(), *account.found.values(), account.held_beside(line))
    trained = account.trained(line)
    doubled = {
        each: tuple(sorted(version for version, _ in points))
        for each, points in trained.items()
        if len(points) > 1
    }
    untrained = [group for group in account.admitted if short(group) not in trained]
    waiting = [group for group in untrained if group in held]
    why = {group: account.dropped.get(group, DUPLICATE) for group in untrained if group not in held}
    newest = max(account.releases, default=0)
    known = [0, *sorted(version for version in account.releases if version > 0)]
    digests = {version: {one.weights for one in its} for version, its in account.releases.items()}
    return JournalAudit(
        acknowledged=len(account.admitted),
        once=sum(short(group) in trained and short(group) not in doubled for group in account.admitted),
        refused=Counter(reason for reason in why.values() if reason != DUPLICATE),
        waiting=len(waiting),
        # a duplicate of an untrained group is no reason
        lost=tuple(group for group, reason in why.items() if reason == DUPLICATE),
        doubled=doubled,
        versions=newest,
        forked=tuple(sorted(version for version, its in digests.items() if len(its) > 1)),
        gaps=tuple(range(one + 1, other) for one, other in pairwise(known) if other > one + 1),
    )


def _relevant(journal: Iterable[AnyEvent]) -> Iterator[AnyEvent]:
    """The relevant events of a journal. Starts of peers of which it has only gossiped events are left out,
    and so are repeated ones: those peers' own journals have them."""
    own, begun, heard = set[PeerId](), set[Started](), dict[PeerId, Started]()
    for event in journal:
        if not isinstance(event, GOSSIPED) and event.peer not in own:
            own.add(event.peer)
            if (first := heard.pop(event.peer, None)) is not None:
                yield first
        if isinstance(event, Started):
            if event in begun:
                continue
            begun.add(event)
            if event.peer not in own:
                heard[event.peer] = event
                continue
        if isinstance(event, READ):
            yield event
