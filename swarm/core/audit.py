"""What became of every acknowledged group, and whether the versions are one line: read from peers' journals.

    Judged admit      acknowledged          Released    the line: from the newest release back by its parents
    Stepped           trained, where its version is of the line
    Dropped           refused after all     Returned, Started    who holds a group that is not trained yet

In come the events of any peers in any order; what no journal tells is a gap. A group is lost when nobody that
had it in its last life trained, refused or still holds it. Nothing here is what a learner thinks of its own
groups after a crash: steps are compared with the releases that count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarm.core.releases import rank
from swarm.core.trained import made_by, mark
from swarm.events import AnyEvent, Dropped, Event, Judged, Released, Returned, Started, Stepped
from swarm.types import Digest, PeerId, Release, Verdict

DUPLICATE = Verdict.DUPLICATE.value


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
    dropped: dict[str, str] = field(default_factory=dict)
    """Group -> why it was dropped last."""

    def take(self, event: Event) -> None:
        match event:
            case Released():
                self.releases[event.release.version].append(event.release)
            case Stepped():
                self.steps[event.peer, event.version, event.parent, event.members].append(event)
            case Judged() if event.verdict is Verdict.ADMIT:
                self.admitted[event.group] = None
                self.held[event.peer].add(event.group)
            case Returned():
                self.held[event.peer].update(event.groups)
            case Started():
                self.held[event.peer].clear()
            case Dropped():
                self.held[event.peer].difference_update(event.groups)
                self.dropped |= dict.fromkeys(event.groups, event.why)
            case _:
                pass

    def line(self) -> dict[int, list[Release]]:
        """Version -> the releases of the weights that count in it."""
        found: dict[int, list[Release]] = {}
        weights = Digest("")
        for version in range(max(self.releases, default=0), 0, -1):
            same = [one for one in self.releases[version] if one.weights == weights]
            if not same and self.releases[version]:
                best = max(self.releases[version], key=rank)
                same = [one for one in self.releases[version] if one.weights == best.weights]
            found[version] = same
            weights = same[0].parent if same else Digest("")
        return found

    def trained(self) -> dict[str, list[int]]:
        """Mark of a group -> versions of the line that it was trained in, once for each member that brought
        it."""
        found: dict[str, list[int]] = defaultdict(list)
        line, told = self.line(), defaultdict[int, set[str]](set)
        for (_, version, parent, members), steps in self.steps.items():
            made = [one for one in line.get(version, ()) if made_by(members, parent, one)]
            if made:
                # of several tries the last one before the release; others of a round step after it, too
                before = [step for step in steps if step.at <= min(one.released for one in made)]
                step = before[-1] if before else steps[0]
                for group in step.groups:
                    found[short(group)].append(version)
                told[version].update(step.others)
        # what a member brought that did not get to know that its round succeeded
        for version, marks in told.items():
            for each in marks:
                if version not in found[each]:
                    found[each].append(version)
        return found


def short(group: str) -> str:
    return mark(group).hex()


def audit(events: Iterable[AnyEvent]) -> Audit:
    """Read the events of all journals together."""
    account = Account()
    for event in sorted(events, key=lambda event: event.at):
        account.take(event)
    trained, held = account.trained(), set[str]().union(*account.held.values())
    untrained = [group for group in account.admitted if short(group) not in trained]
    waiting = [group for group in untrained if group in held]
    why = {group: account.dropped.get(group, DUPLICATE) for group in untrained if group not in held}
    newest = max(account.releases, default=0)
    digests = {version: {one.weights for one in its} for version, its in account.releases.items()}
    return Audit(
        acknowledged=len(account.admitted),
        once=sum(len(trained.get(short(group), ())) == 1 for group in account.admitted),
        refused=Counter(reason for reason in why.values() if reason != DUPLICATE),
        waiting=len(waiting),
        # a duplicate of what nobody trained is no reason
        lost=tuple(group for group, reason in why.items() if reason == DUPLICATE),
        doubled={group: tuple(its) for group, its in trained.items() if len(its) > 1},
        versions=newest,
        forked=tuple(sorted(version for version, its in digests.items() if len(its) > 1)),
        gaps=tuple(version for version in range(1, newest + 1) if not account.releases.get(version)),
    )
