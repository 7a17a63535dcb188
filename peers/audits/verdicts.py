"""Honest verdicts: verifiers tell which groups they replayed and found honest, and learners verify them.

    my replay finds a group honest -> Verdicts on topic `verdict`, one frame a heartbeat and version
    topic `verdict` -> of a group that I drew, and did not replay yet:
                           an auditor's counts as my replay, unless I drew the verdict
                           (swarm.core.audits.verifiers)
                       of one that I replayed, then or later: compared with what I found
                       of any other one, where I drew the verdict: the group, from its verifier, is replayed
                       wrong -> Rejected event with the verifier's name, and none of its verdicts counts

Learners tell, and members that audit; learners hear. Other learners' verdicts are verified, and count for
nothing, nor does what a sampler says of its own groups. What gossip loses counts for nobody. Not handled
here: forgeries (peers.audits.accusations), replays (peers.audits.auditor).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from itertools import islice
from typing import Annotated, NamedTuple, Protocol

from msgspec import Meta

from peers.audits.evidence import Unsigned
from peers.audits.shown_groups import Shown, ShownGroups, Verdict, shown
from peers.intake.inbox import LearnerInbox
from peers.runtime.frames import UnknownKey
from peers.runtime.host import Host
from peers.runtime.watching.set_aside import audits, unverifying
from swarm import events
from swarm.core.audits.accusations import Opinion
from swarm.core.audits.verifiers import Verifiers, is_auditor
from swarm.frames import wire
from swarm.limits import EVENT_LIMIT, remember
from swarm.net.ports import Busy, NetError, Refused
from swarm.protocol import Topic
from swarm.tasks.base import RewardError
from swarm.types import Count, Digest, Group, PeerId, Struct

TOLD = 16
"""Verdicts in a frame: with a membership they are 3 KB."""

WAITING = 256
"""Verdicts that wait to be told; beyond, the oldest are not."""

REMEMBERED = 1024
"""Groups that were replayed here, whose verdicts are compared; and that were drawn and not replayed yet, or
believed."""

FETCHED = 8
"""Groups of verdicts that are fetched or wait for their replay at once. One verifier has no more of these
places than are free: half of them where it is alone, so that one that stalls leaves room for the others."""

SILENT = 10.0
"""Seconds since a group was drawn in which an auditor said nothing: it is not waited for until it speaks."""


class HonestGroup(Struct):
    sampler: PeerId
    group: Digest
    """Of the frame that its sampler signed."""


class Verdicts(Struct, tag="verdicts"):
    """Replays found these groups of a version honest."""

    version: Count
    weights: Digest
    """The version's, by what the groups say."""
    groups: Annotated[tuple[HonestGroup, ...], Meta(max_length=TOLD)]


class VerdictTeller:
    """What one verifier says of samplers that are honest."""

    def __init__(self, host: Host, shown: ShownGroups) -> None:
        self._host, self._shown = host, shown
        self._waiting: deque[tuple[int, Digest, HonestGroup]] = deque(maxlen=WAITING)

    def honest(self, group: Group, frame: bytes) -> None:
        """A replay of this group found nothing. Nobody is told where no learner would hear it."""
        if {*self._host.roster.learners()} - {self._host.ports.me}:
            digest = self._shown.honest.put(frame)
            one = HonestGroup(sampler=group.sampler, group=digest)
            self._waiting.append((group.version, group.weights, one))

    async def run(self) -> None:
        """Tell, until cancelled."""
        host = self._host
        while True:
            await host.ports.clock.sleep(host.config.run.pace.beat)
            while self._waiting:
                sealed = host.seal(self._next(), EVENT_LIMIT)
                await host.ports.gossip.publish(host.topic(Topic.VERDICT), sealed)

    def _next(self) -> Verdicts:
        version, weights, _ = self._waiting[0]
        same = (one for number, digest, one in self._waiting if (number, digest) == (version, weights))
        groups = tuple(islice(same, TOLD))
        kept = [each for each in self._waiting if each[2] not in groups]
        self._waiting = deque(kept, maxlen=WAITING)
        return Verdicts(version=version, weights=weights, groups=groups)


class Rechecks(Protocol):
    """The auditor."""

    def holds(self, version: int, weights: Digest) -> bool:
        """Whether groups of these weights can be replayed here."""
        ...

    def enqueue(self, shown: Shown) -> None:
        """Replay it when there is time, then call `judged`."""
        ...

    def take_word(self, verdict: Verdict) -> None:
        """This verdict counts as a replay of a group that was drawn here."""
        ...

    def reopen(self, verifier: PeerId) -> int:
        """What this verifier said counts no more. Returns how many verdicts did."""
        ...


class DrawnHere(NamedTuple):
    """A group that this learner drew and did not replay yet."""

    sampler: PeerId
    compared: list[Verdict]
    """With its replay, if there is one."""
    begun: bool = False
    """Its replay runs: no word takes its place."""
    believed: bool = False
    """An auditor's verdict counts as its replay: it is replayed only if somebody accuses it."""


class VerdictExchange:
    """What one learner hears of honest groups."""

    def __init__(self, host: Host, inbox: LearnerInbox, auditor: Rechecks, verifiers: Verifiers) -> None:
        self._host, self._inbox, self._auditor, self._verifiers = host, inbox, auditor, verifiers
        self._drawn: OrderedDict[Digest, DrawnHere] = OrderedDict()
        """Groups that I drew and did not replay."""
        self._found: OrderedDict[Digest, Opinion] = OrderedDict()
        """What my replays say of an accusation of each group."""
        self._unanswered: dict[PeerId, float] = {}
        """Auditor that counts -> when the first group was drawn since it spoke, by the clock of waits."""
        self._fetched = Counter[PeerId]()
        """By verifier."""
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Hear, until cancelled."""
        async with self._tasks:
            await self._host.listen(Topic.VERDICT, self.hear)

    def drawn(self, group: Digest, sampler: PeerId) -> None:
        """I drew this group."""
        remember(self._drawn, group, DrawnHere(sampler, []), REMEMBERED)
        for auditor in self._auditors():
            self._unanswered.setdefault(auditor, self._host.steady())

    def begun(self, group: Digest) -> None:
        """My replay of a group begins."""
        if (mine := self._drawn.get(group)) is not None:
            self._drawn[group] = mine._replace(begun=True)

    def trusted(self) -> bool:
        """Whether an auditor is here whose verdicts count, and that is not silent."""
        since = self._host.steady() - SILENT
        return any(self._unanswered.get(auditor, math.inf) > since for auditor in self._auditors())

    def _auditors(self) -> list[PeerId]:
        """Whose verdicts count."""
        roster = self._host.roster
        return [peer for peer, beat in roster if is_auditor(beat) and self._verifiers.counts(peer)]

    def hear(self, sealed: bytes) -> None:
        """Raises WireError for what are no verdicts of a learner or a member that may audit."""
        host = self._host
        opened, said = host.read(sealed, EVENT_LIMIT, Verdicts)
        if (why := unverifying(host, opened)) is not None:
            raise wire.WireError(f"verdicts by {opened.sender}: {why}")
        if opened.sender == host.ports.me:
            return
        self._unanswered.pop(opened.sender, None)
        may_count = audits(host, opened)
        for one in said.groups:
            if self._verifiers.fresh(opened.sender, one.group, host.now()):
                verdict = Verdict(opened.sender, True, one.sampler, one.group, said.version, said.weights)
                self._take(verdict, may_count)

    def _take(self, verdict: Verdict, may_count: bool) -> None:
        """`may_count`: an auditor says so."""
        looked_at = self._verifiers.drawn()
        if (opinion := self._found.get(verdict.group)) is not None:
            self._compare(verdict, opinion)
            return
        mine = self._drawn.get(verdict.group)
        if mine is not None and not mine.believed:
            self._take_of_drawn(mine, verdict, may_count and not looked_at)
        elif looked_at and self._fetches(verdict):
            self._fetched[verdict.verifier] += 1
            self._tasks.create_task(self._fetch(verdict))
        elif mine is not None:
            mine.compared.append(verdict._replace(sampler=mine.sampler))

    def _fetches(self, verdict: Verdict) -> bool:
        """Whether there is a place for this verdict's group, and it can be replayed here."""
        has, free = self._fetched[verdict.verifier], FETCHED - self._fetched.total()
        return has < free and self._auditor.holds(verdict.version, verdict.weights)

    def _take_of_drawn(self, mine: DrawnHere, verdict: Verdict, may_count: bool) -> None:
        verdict = verdict._replace(sampler=mine.sampler)
        mine.compared.append(verdict)
        may_count = may_count and not mine.begun and verdict.verifier != mine.sampler
        if may_count and self._verifiers.counts(verdict.verifier):
            self._drawn[verdict.group] = mine._replace(believed=True)
            self._auditor.take_word(verdict)

    async def _fetch(self, verdict: Verdict) -> None:
        try:
            judged = await shown(self._host, self._inbox, verdict)
        except Busy:
            pass
        except Refused as error:
            self._auditor.reopen(verdict.verifier)
            self._verifiers.unshown(verdict.verifier)
            reason = f"it does not show a group that it calls honest: {error}"
            self._host.emit(events.Rejected, sender=verdict.verifier, kind=Topic.VERDICT, reason=reason)
        except (NetError, UnknownKey, RewardError):
            pass  # that blames nobody
        except (wire.WireError, Unsigned) as error:
            self._name(verdict.verifier, f"it shows no group that it calls honest: {error}")
        else:
            if judged is not None:
                self._auditor.enqueue(judged)
                return
        self._fetched[verdict.verifier] -= 1

    def judged(self, verdict: Verdict, opinion: Opinion) -> None:
        """A group that was fetched for a verdict waits no more, and what my replay says of an accusation of
        it."""
        self._fetched[verdict.verifier] -= 1
        self._compare(verdict, opinion)

    def replayed(self, group: Digest, opinion: Opinion) -> None:
        """My replay of a group, and what it says of an accusation of it."""
        remember(self._found, group, opinion, REMEMBERED)
        if (mine := self._drawn.pop(group, None)) is not None:
            for verdict in mine.compared:
                self._compare(verdict, opinion)

    def _compare(self, verdict: Verdict, opinion: Opinion) -> None:
        """A verdict that a group is honest, with what my replay says of an accusation of it."""
        if opinion is Opinion.DISAGREED:
            self._verifiers.right(verdict.verifier)
        elif opinion is Opinion.AGREED and not self._verifiers.ignores(verdict.verifier, self._host.now()):
            forged = f"it calls a group of {verdict.sampler} honest that is forged by a replay here"
            self._name(verdict.verifier, forged)

    def wrong(self, verifier: PeerId) -> int:
        """Nothing of what this verifier said counts any more, and nothing that it says for a while. Returns
        how many verdicts counted."""
        self._verifiers.wrong(verifier, self._host.now())
        return self._auditor.reopen(verifier)

    def _name(self, verifier: PeerId, reason: str) -> None:
        reason += f"; none of its verdicts counts any more ({self.wrong(verifier)} did)"
        self._host.emit(events.Rejected, sender=verifier, kind=Topic.VERDICT, reason=reason)
