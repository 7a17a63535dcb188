"""Which groups a policy was trained on: the steps in its line of releases.

    own steps, steps reported by others, announced releases -> line(policy): releases
                                                 -> split(policy): steps in the line, steps that are lost

A step is in the line when the line has its weights at its version, or a release that its round made: by one
of its members, of as many learners, from the same parent (another member's step along the same average may
differ in its last bits). Where a line is not known far enough down, or the origin of a release in it is
unknown, an own step counts as part of it until that is known (`unsure`): a group can be lost that way, and is
not trained twice. Not handled here: the groups' further handling (peers.learner.trained_groups).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from swarm.core.agreement.lineage import Parent, Point, ancestry, parent_of
from swarm.types import MARK_BYTES, Digest, PeerId, Release, TrainedStep

KnownReleases = Callable[[int, Digest], Sequence[Release]]
"""(version, weights) -> the announced releases with them."""


def mark(group: str) -> bytes:
    """Identifies a group: the first bytes of its id, which is hex."""
    return bytes.fromhex(group[: 2 * MARK_BYTES])


def marks_of(packed: bytes) -> list[bytes]:
    """The marks that are packed one after another."""
    return [packed[at : at + MARK_BYTES] for at in range(0, len(packed), MARK_BYTES)]


class HeldPolicy(NamedTuple):
    """A version as one peer has it."""

    version: int
    weights: Digest
    parent: Digest


class TrainedLedger:
    """The steps of the last versions, mine and others'."""

    def __init__(self, known: KnownReleases, announced: Parent, me: PeerId) -> None:
        """`announced`: the known parent of a release."""
        self._known, self._announced, self._me = known, announced, me
        self._oldest = 0
        """Version below which steps are forgotten."""
        self.mine: list[TrainedStep] = []
        """Oldest first."""
        self._earlier = frozenset[TrainedStep]()
        """Those of earlier lives, as they were read."""
        self._others: dict[tuple[int, Digest], TrainedStep] = {}

    def add(self, step: TrainedStep) -> None:
        """Record an own step. Of earlier ones from the same parent to the same version, one that made weights
        is known by these alone from here on, and a try of the same round made nothing in this life. One of an
        earlier life may have made a release that comes back later."""
        self.mine = [one for each in self.mine if (one := self._beside(each, step)) is not None] + [step]

    def _beside(self, old: TrainedStep, new: TrainedStep) -> TrainedStep | None:
        may_have_made = old.members and not old.weights and old in self._earlier
        return old if may_have_made else _beside(old, new)

    def begin_life(self) -> None:
        """The steps so far are those of earlier lives."""
        self._earlier = frozenset(self.mine)

    def name(self, version: int, weights: Digest) -> None:
        """My last step made these weights, if it is the step to `version`."""
        if self.mine and weights and self.mine[-1].version == version and not self.mine[-1].weights:
            self.mine[-1] = replace(self.mine[-1], weights=weights)

    def resume(self, policy: HeldPolicy) -> None:
        """A step of mine made this policy, in an earlier life."""
        made = [k for k, step in enumerate(self.mine) if step.members and _leads_to(step, policy)]
        if made:
            self.mine[made[-1]] = replace(self.mine[made[-1]], weights=policy.weights)

    def recall(self, announced: Sequence[Release]) -> None:
        """Steps of mine alone, of an earlier life, made the releases that only I can have made of them."""
        for k, step in enumerate(self.mine):
            own = step.members == (self._me,) and not step.weights
            made = {one.weights for one in announced if own and _released(step, one)}
            if len(made) == 1:
                self.mine[k] = replace(step, weights=made.pop())

    def receive(self, steps: Iterable[TrainedStep]) -> None:
        """Steps of another learner; those that made weights which are known can be found again."""
        self._others |= {(step.version, step.weights): step for step in steps if step.weights}

    def forget(self, below: int) -> None:
        """Forget the steps to versions below `below`."""
        self._oldest = max(0, below)
        self.mine = [step for step in self.mine if step.version >= below]
        self._others = {key: step for key, step in self._others.items() if step.version >= below}

    def marks(self) -> set[bytes]:
        """Of the groups of all steps that are remembered."""
        return set().union(*(marks_of(step.groups) for step in (*self.mine, *self._others.values())))

    def report(self, since: int, announced: Iterable[Release]) -> list[TrainedStep]:
        """The report to another learner, from the step to version `since` on. An own step of an earlier life,
        whose weights are unknown, goes by those of an announced release that its round made."""
        made = named((step for step in self.mine if not step.weights), announced)
        own = {(step.version, step.weights): step for step in self.mine if step.weights and self._made(step)}
        steps = (step for step in (made | self._others | own).values() if step.version >= since)
        return sorted(steps, key=lambda step: step.version)

    def line(self, policy: HeldPolicy) -> tuple[dict[int, Digest], Point | None]:
        """(version -> weights of the releases that a policy is made of, as far as steps are remembered; the
        last of them where its parent is unknown)."""
        stepped = {(step.version, step.weights): step.parent for step in self.mine if step.weights}
        stepped |= {key: step.parent for key, step in self._others.items()}

        def before(point: Point) -> Point | None:
            if point == policy[:2] and policy.parent:
                return parent_of(policy.version, policy.parent)
            parent = stepped.get(point)
            return self._announced(point) or (parent_of(point[0], parent) if parent else None)

        return ancestry(policy[:2], before, max(0, self._oldest - 1))

    def split(self, policy: HeldPolicy) -> tuple[list[TrainedStep], list[TrainedStep]]:
        """(steps that are in the policy's line, mine and others' that are not)."""
        line, gap = self.line(policy)
        mine = [step for step in self.mine if self._is_in(step, line, gap) is not False]
        theirs = [step for key, step in self._others.items() if key in line.items()]
        lost = [step for step in self.mine if step not in mine]
        away = [step for key, step in self._others.items() if key not in line.items()]
        return [*mine, *theirs], [*lost, *(step for step in away if self._is_in(step, line, gap) is False)]

    def unsure(self, policy: HeldPolicy) -> list[TrainedStep]:
        """My steps that count as part of the policy's line only because that is unknown."""
        line, gap = self.line(policy)
        return [step for step in self.mine if self._is_in(step, line, gap) is None]

    def _is_in(self, step: TrainedStep, line: Mapping[int, Digest], gap: Point | None) -> bool | None:
        """None: unknown here."""
        if (step.version, step.weights) in line.items() and self._made(step):
            return True
        if step.version not in line:
            return None if gap is not None and step.version < gap[0] else False
        point, from_it = (step.version, line[step.version]), (step.version - 1, step.parent) in line.items()
        return self._has_made(step, point) if from_it or point == gap else False

    def _made(self, step: TrainedStep) -> bool:
        """Not where its weights are those of a release of others: steps from one version along gradients of
        zero are alike, whatever groups they are of."""
        announced = self._known(step.version, step.weights)
        mine = any(made_by(step.members, step.parent, release) for release in announced)
        return mine or not (step.members and announced)

    def _has_made(self, step: TrainedStep, point: Point) -> bool | None:
        """None: it may have."""
        before, announced = self._announced(point), self._known(*point)
        if before is not None and before != parent_of(step.version, step.parent):
            return False  # no step made it, or one from another version
        if step.weights and len(step.members) <= 1:
            return False  # members of a round may differ in last bits, and each knows only its own result
        if step.members and announced:
            return any(made_by(step.members, step.parent, release) for release in announced)
        others = bool(announced) and all(self._is_of_another(release) for release in announced)
        return False if others or self._are_groups_known(point, announced) else None

    def _is_of_another(self, release: Release) -> bool:
        """Whether another learner made it alone."""
        return release.learners == 1 and release.publisher != self._me

    def _are_groups_known(self, point: Point, announced: Sequence[Release]) -> bool:
        """Whether the groups of a release are known: another learner reported them, or its step was taken
        here."""
        return point in self._others or any(
            point == (one.version, one.weights)
            or any(made_by(one.members, one.parent, release) for release in announced)
            for one in self.mine
        )


def named(steps: Iterable[TrainedStep], announced: Iterable[Release]) -> dict[Point, TrainedStep]:
    """Steps with unknown weights, with those of the announced releases that their rounds made."""
    every = [*announced]
    return {
        (one.version, one.weights): replace(step, weights=one.weights)
        for step in steps
        for one in every
        if _released(step, one)
    }


def _leads_to(step: TrainedStep, policy: HeldPolicy) -> bool:
    return (step.version, step.parent) == (policy.version, policy.parent)


def _released(step: TrainedStep, release: Release) -> bool:
    """The number of groups tells apart rounds of the same members in two lives."""
    known = step.members and release.learners and release.groups
    as_many = not known or len(marks_of(step.groups)) == release.groups
    return as_many and step.version == release.version and made_by(step.members, step.parent, release)


def _beside(old: TrainedStep, new: TrainedStep) -> TrainedStep | None:
    if (old.version, old.parent) != (new.version, new.parent):
        return old
    if old.weights:
        return replace(old, members=())
    if not old.members:  # contributed: another list than the one of a new step may have it
        return None if not new.members and {*marks_of(old.groups)} <= {*marks_of(new.groups)} else old
    return None if old.members == new.members else old


def made_by(members: Sequence[PeerId], parent: Digest, release: Release) -> bool:
    """Whether a round of `members` from `parent` may have made this release. One from a checkpoint without
    the number of members has 0 learners."""
    count = release.learners in (0, len(members))
    return release.publisher in members and count and release.parent == parent
