"""Accusations of samplers by other learners: which ones are replayed here, and the consequences for accusers.

    an accusation of a group --record--> its case waits --judged, after this learner's replay--> agreed: the
        sampler is suspended here too        disagreed: its accusers are named
        undecided: no peer is blamed      --let go, for want of room--> a case again when it is repeated

No peer's claim is trusted: a learner acts on its own replays. A case is of one claim, whoever makes it:
another claim about the same group is a case of its own, and an accuser that does not serve the group leaves
it to the next one. PER_HOUR accusations of one accuser in an hour are considered, beside those that the
learner agreed with and those of the last TIMES repetitions of a claim that waits for room, and none while it
is suspended (swarm.core.suspensions): once WRONG of its accusations within REMEMBERED seconds were false.
Not handled here: replays, how accusations travel (peers.audits.accusations).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from swarm.core.audits.auditing import COUNT, DECIDING, Weighed
from swarm.core.suspensions import HOUR, Suspension, Suspensions
from swarm.types import Digest, PeerId

PER_HOUR = 32
"""Each costs the bytes of a group and one replay, a cost that agreement justifies; samplers that an accuser
names beyond that are found by the others' own audits."""

TIMES = 3
"""Repetitions of one accuser's claim that count as one accusation: accusers send each so often
(peers.audits.accusations), and a repetition is considered only where its group found no room here, or did not
arrive."""

WRONG = 3
"""False accusations: one may come from hardware whose margins were never measured."""

REMEMBERED = 86_400.0
"""Seconds."""

CASES = 1024
"""Groups whose case is remembered: a day of eight accusers would be more, and the versions of old groups are
gone."""


class Opinion(StrEnum):
    """A learner's opinion of an accusation, by its own replay."""

    AGREED = "agreed"
    DISAGREED = "disagreed"
    UNDECIDED = "undecided"


def is_conclusive(found: Weighed) -> bool:
    """Whether one group proves by itself that its sampler cheats: evidence that adds up over a sampler's
    groups, or takes two of them, is for each learner to find."""
    return found.off >= COUNT or found.claimed > 0


def opinion_of(found: Weighed, strict: Weighed) -> Opinion:
    """`found` is the replay weighed by the deviations allowed here, `strict` by the fewest that any learner
    allows: between the two an honest accuser may be right by its own hardware."""
    if is_conclusive(found):
        return Opinion.AGREED
    doubtful = found.off or strict.off or strict.claimed > 0 or found.deciding < DECIDING
    return Opinion.UNDECIDED if doubtful else Opinion.DISAGREED


class Claim(NamedTuple):
    """An accusation's claim about a group."""

    sampler: PeerId
    group: Digest
    """Of the frame that its sampler signed."""
    version: int
    weights: Digest
    """Of the version that the group names."""


@dataclass(slots=True)
class ClaimState:
    """The accusers of one claim, and this learner's opinion of it."""

    accusers: dict[PeerId, float] = field(default_factory=dict)
    """Accusers whose claim stands -> when it was counted for them."""
    unasked: deque[PeerId] = field(default_factory=deque)
    """Accusers that were not asked for the group yet."""
    unshown: set[PeerId] = field(default_factory=set)
    """Accusers that served no evidence for the claim: they are not asked again."""
    counted: dict[PeerId, tuple[float, int]] = field(default_factory=dict)
    """The same of all accusers, and how often each repeated it since then."""
    asking: bool = False
    """The group is being fetched, or waits for its replay."""
    opinion: Opinion | None = None
    """None: it was not replayed yet."""


@dataclass(slots=True)
class AccuserRecord:
    accused: deque[float] = field(default_factory=lambda: deque(maxlen=PER_HOUR))
    """Times of its last accusations, without those that were right."""
    wrong: deque[float] = field(default_factory=lambda: deque(maxlen=WRONG))
    """When its last false ones were."""


class Accusations:
    """All accusations that one learner receives and makes. Accusers are members of the run: their number is
    bounded."""

    def __init__(self) -> None:
        self._cases: OrderedDict[Claim, ClaimState] = OrderedDict()
        self._accusers: dict[PeerId, AccuserRecord] = {}
        self._suspensions = Suspensions(HOUR)
        """Of accusers."""

    def has_opinion(self, claim: Claim) -> bool:
        """Whether this learner thinks something of a claim already."""
        case = self._cases.get(claim)
        return case is not None and case.opinion is not None

    def record(self, accuser: PeerId, claim: Claim, now: float) -> ClaimState | None:
        """The case, which now names the accuser too; None where it is ignored, or repeated."""
        known = self._accusers.setdefault(accuser, AccuserRecord())
        case = self._cases.get(claim)
        if self._suspensions.of(accuser, now) is not None:
            return None
        if case is not None and accuser in case.accusers.keys() | case.unshown:
            return None
        at = now
        if case is None or case.opinion is None:
            at, times = case.counted.get(accuser, (now, TIMES)) if case is not None else (now, TIMES)
            if times == TIMES:
                if len(known.accused) == PER_HOUR and now - known.accused[0] < HOUR:
                    return None
                known.accused.append(now)
                at, times = now, 0
            case = self._open(claim)
            case.counted[accuser] = at, times + 1
            case.unasked.append(accuser)
        case.accusers[accuser] = at
        return case

    def mine(self, claim: Claim) -> None:
        """This learner accuses the sampler of a group."""
        self._open(claim).opinion = Opinion.AGREED

    def next_accuser(self, claim: Claim) -> PeerId | None:
        """The accuser to ask for the group now; None without a further one: a later accuser is asked then."""
        if (case := self._cases.get(claim)) is None:
            return None
        case.asking = bool(case.unasked)
        if case.asking:
            return case.unasked.popleft()
        if not (case.accusers or case.unshown):
            del self._cases[claim]
        return None

    def unheard(self, claim: Claim, accuser: PeerId) -> None:
        """The accuser cannot serve the group now: a repetition of its claim is considered again."""
        if (case := self._cases.get(claim)) is not None:
            case.accusers.pop(accuser, None)

    def unshown(self, claim: Claim, accuser: PeerId) -> None:
        """This accuser's evidence does not support the claim; another one's may."""
        if (case := self._cases.get(claim)) is not None:
            case.accusers.pop(accuser, None)
            case.unshown.add(accuser)

    def let_go(self, claim: Claim) -> None:
        """The group is not replayed, for want of room here: a repetition of the claim is considered again."""
        if (case := self._cases.get(claim)) is not None:
            case.asking = False
            case.accusers.clear()
            case.unasked.clear()

    def judged(self, claim: Claim, opinion: Opinion) -> ClaimState | None:
        """A replay of an accused group; None where its case was forgotten meanwhile."""
        if (case := self._cases.get(claim)) is None:
            return None
        case.opinion, case.asking = opinion, False
        case.unasked.clear()
        if opinion is Opinion.AGREED:
            for accuser, at in case.accusers.items():
                if at in (accused := self._accusers[accuser].accused):
                    accused.remove(at)
        return case

    def false(self, accuser: PeerId, why: str, now: float) -> Suspension | None:
        """An accusation was false, for the reason `why`. Returns the accuser's suspension, if this causes
        one."""
        wrong = self._accusers.setdefault(accuser, AccuserRecord()).wrong
        wrong.append(now)
        if len(wrong) < WRONG or now - wrong[0] >= REMEMBERED:
            return None
        return self._suspensions.of(accuser, now) or self._suspensions.suspend(accuser, why, now)

    def _open(self, claim: Claim) -> ClaimState:
        case = self._cases.setdefault(claim, ClaimState())
        if len(self._cases) > CASES:
            self._cases.popitem(last=False)
        return case
