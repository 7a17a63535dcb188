"""Accusations of samplers by other learners: which ones are replayed here, and what follows for who accuses.

    an accusation of a group --heard--> its case waits --judged, after a replay of one's own--> agreed: the
        sampler is set aside here too        disagreed: whoever accused it is named
        undecided: nobody is blamed

Nobody's word counts: what a learner acts on it has replayed. A case is of one group, whoever accuses it. Of
one accuser PER_HOUR new cases in an hour are looked at, and none for IGNORED seconds once WRONG of its
accusations within REMEMBERED seconds were false. Not handled here: replays, for how long a sampler is set
aside (swarm.core.auditing), how accusations travel (peers.roles.accusations).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum

from swarm.core.auditing import COUNT, DECIDING, Weighed
from swarm.types import Digest, PeerId

PER_HOUR = 32
"""Each costs the bytes of a group and one replay; the others' own audits find whom an accuser names beyond
that."""

HOUR = 3600.0

WRONG = 3
"""False accusations: one may be of hardware whose margins nobody has measured."""

REMEMBERED = 86_400.0
"""Seconds."""

IGNORED = 3600.0
"""Seconds: as long as a sampler is set aside for its first forgery."""

CASES = 1024
"""Groups whose case is remembered: a day of eight accusers would be more, and of old groups the versions are
gone."""


class Opinion(StrEnum):
    """What a learner's own replay says of an accusation."""

    AGREED = "agreed"
    DISAGREED = "disagreed"
    UNDECIDED = "undecided"


def speaks_alone(found: Weighed) -> bool:
    """Whether one group shows by itself that its sampler cheats: what adds up over a sampler's groups, or
    takes two of them, is for each learner to find."""
    return found.off >= COUNT or found.claimed > 0


def opinion_of(found: Weighed, strict: Weighed) -> Opinion:
    """`found` is the replay weighed by what is allowed here, `strict` by the least that any learner allows:
    between the two an honest accuser may be right by its own hardware."""
    if speaks_alone(found):
        return Opinion.AGREED
    doubtful = found.off or strict.off or strict.claimed > 0 or found.deciding < DECIDING
    return Opinion.UNDECIDED if doubtful else Opinion.DISAGREED


@dataclass(slots=True)
class Case:
    """What is said of one group."""

    accusers: set[PeerId]
    opinion: Opinion | None = None
    """None: it waits for its replay."""
    strikes: int = 0
    """Of its sampler, by this learner's count, once the learner agreed."""


@dataclass(slots=True)
class Accuser:
    heard: deque[float] = field(default_factory=lambda: deque(maxlen=PER_HOUR))
    """When its last new cases were heard."""
    wrong: deque[float] = field(default_factory=lambda: deque(maxlen=WRONG))
    ignored: float = 0.0
    """Until when."""


class Accusations:
    """All that one learner hears and makes. Accusers are members of the run: their number is bounded."""

    def __init__(self) -> None:
        self._cases: OrderedDict[Digest, Case] = OrderedDict()
        self._accusers: dict[PeerId, Accuser] = {}

    def heard(self, accuser: PeerId, group: Digest, now: float) -> Case | None:
        """The case, which now names the accuser too; None where it is not looked at, or said again."""
        known = self._accusers.setdefault(accuser, Accuser())
        case = self._cases.get(group)
        if now < known.ignored or (case is not None and accuser in case.accusers):
            return None
        if case is None:
            if len(known.heard) == PER_HOUR and now - known.heard[0] < HOUR:
                return None
            known.heard.append(now)
            case = self._open(group)
        case.accusers.add(accuser)
        return case

    def mine(self, group: Digest, strikes: int) -> None:
        """This learner accuses the sampler of a group, its `strikes`th forgery."""
        case = self._open(group)
        case.opinion, case.strikes = Opinion.AGREED, strikes

    def judged(self, group: Digest, opinion: Opinion) -> Case | None:
        """A replay of an accused group; None where its case was forgotten meanwhile."""
        if (case := self._cases.get(group)) is not None:
            case.opinion = opinion
        return case

    def forget(self, group: Digest) -> None:
        """The group cannot be had now: whoever accuses it again is heard again."""
        self._cases.pop(group, None)

    def false(self, accuser: PeerId, now: float) -> bool:
        """An accusation was false. True: no other one is looked at for a while."""
        known = self._accusers.setdefault(accuser, Accuser())
        known.wrong.append(now)
        if len(known.wrong) == WRONG and now - known.wrong[0] < REMEMBERED:
            known.ignored = now + IGNORED
        return now < known.ignored

    def _open(self, group: Digest) -> Case:
        case = self._cases.setdefault(group, Case(set()))
        if len(self._cases) > CASES:
            self._cases.popitem(last=False)
        return case
