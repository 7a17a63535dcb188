"""A learner's intake: frames of samplers come in, batches of groups that may be trained on come out.

    stream "groups" -> unseal -> trust -> admission -> task and rewards regenerated -> batcher -> take()
                                 |  its sampler is asked     off the loop where rewards are slow
                                 +- for a release that is not known here

Every delivery gets one verdict, told to the sampler in a receipt with the learner's version and the sampler's
part of the credit. Nothing a sampler claims is used: the task follows from its index, the rewards from the
tokens; a group whose rewards cannot be computed here is `unscored` and gone. Groups that are being scored
take room as those that wait do: others are judged meanwhile. What the learner's own log-probabilities
contradict is found out with the gradient: such a group is gone, too, and a sampler that goes on like that is
not believed for a while. The Tally counts verdicts and the ages of trained groups for everybody's page. Not
handled here: rounds, gradients.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from peers.roles.reward_calls import RewardCalls
from peers.runtime.host import Host
from swarm import events, wire
from swarm.core.admission import Admission, Judgement
from swarm.core.batcher import Batcher, Room, Waiting
from swarm.core.claimed_logprobs import ClaimCheck, SamplerEvidence, objection
from swarm.core.roster import share
from swarm.events import cut
from swarm.protocol import Role, Service
from swarm.tasks.base import RewardError, TaskSource
from swarm.types import Group, PeerId, Receipt, Task, Verdict

SCORED = 32
"""Groups that are scored at once, where rewards are slow: each holds a call of mail, of which strangers have
twice as many."""

TOLD = 24
"""Samplers whose verdicts fit into one gossiped event beside the rest of it (4 KiB); the others are told in
the next."""

LAGS_TOLD = 96
"""Distinct lags in versions in one event, five bytes each; the others are told in the next."""

SHOWN = 16
"""Completions of a group that are shown: a person reads no more of them, and each costs 30 bytes before its
text."""

SHOWN_TEXT = 2900
"""Bytes of prompt, answer, completions and their figures: 4 KiB less names, envelope and membership, which
need a thousand."""

SHOWN_PROMPT, SHOWN_ANSWER, SHOWN_COMPLETION = 600, 300, 400
"""Bytes of each text at most: some lines on a page."""

SHOWN_EVERY = 1.0
"""Seconds between two groups that are shown, and a heartbeat at least: nobody reads faster."""


class Decoder(Protocol):
    """What a learner's inbox needs of the run's tokenization; a tabular policy has letters instead."""

    @property
    def vocabulary(self) -> int:
        """Every token is below."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Exercise:
    """A group with what the learner regenerated itself."""

    task: Task
    rewards: tuple[float, ...]


@dataclass
class Tally:
    """Verdicts and ages since the last Counted event."""

    verdicts: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    samplers: dict[str, Counter[str]] = field(default_factory=dict)

    def judged(self, sampler: PeerId, verdict: str) -> None:
        self.verdicts[verdict] += 1
        self.samplers.setdefault(sampler, Counter())[verdict] += 1

    def trained(self, versions: int, seconds: float) -> None:
        self.versions[str(versions)] += 1
        self.seconds[str(1 << max(0, int(seconds)).bit_length())] += 1

    def drain(self) -> dict[str, dict[str, int]]:
        """The fields of a Counted event; what does not fit stays for the next."""
        versions = {lag: self.versions.pop(lag) for lag in list(self.versions)[:LAGS_TOLD]}
        counts = {"verdicts": dict(self.verdicts), "versions": versions, "seconds": dict(self.seconds)}
        for counter in (self.verdicts, self.seconds):
            counter.clear()
        return counts

    def drain_samplers(self) -> dict[str, dict[str, int]]:
        now = list(self.samplers)[:TOLD]
        return {sampler: dict(self.samplers.pop(sampler)) for sampler in now}


class LearnerInbox:
    """`version` and `learners` ask the round for the learner's version (-1: no policy yet) and how many
    average together."""

    def __init__(
        self,
        host: Host,
        source: TaskSource,
        decoder: Decoder,
        version: Callable[[], int],
        learners: Callable[[], int],
    ) -> None:
        run = host.config.run
        self.host, self.source, self.decoder = host, source, decoder
        self.scorer = RewardCalls(host, source)
        self._limit = wire.group_limit(run.sampling.group_size, run.sampling.max_tokens)
        self.admission = Admission(run.window, run.sampling, decoder.vocabulary, host.releases.known)
        self.batcher = Batcher(run.batch, run.window)
        self.sampler_evidence = SamplerEvidence()
        self.tally = Tally()
        self._version, self._learners = version, learners
        self._exercises: dict[str, Exercise] = {}
        self._senders: dict[PeerId, float] = {}
        """When each sampler was last heard: credit is shared among them."""
        self._shown: float | None = None
        """When a group was last shown."""
        self._told = 0.0
        """When verdicts were last told."""

    async def serve(self) -> None:
        await self.host.ports.mail.serve(Service.GROUPS, self.receive)

    async def receive(self, sender: PeerId, frame: bytes) -> bytes:
        """The `groups` service: one verdict for one group."""
        host, now = self.host, self.host.now()
        try:
            opened = host.open(frame, self._limit)
            group = wire.decode(opened.body, Group)
        except wire.WireError as error:
            host.emit(events.Rejected, sender=sender, kind=Service.GROUPS, reason=str(error))
            self.tally.judged(sender, Verdict.MALFORMED)
            return self._receipt(sender, Verdict.MALFORMED, str(error))
        judgement = self._judge(opened, sender, group, now)
        if judgement.release_unknown:
            # It sampled from that release, so it can show it, signed by its publisher; gossip may have passed
            # me by.
            await host.releases.ask_release(sender, group.version, group.weights, group.times.released)
            judgement = self._judge(opened, sender, group, host.now())
        if judgement.verdict not in (Verdict.UNTRUSTED, Verdict.MALFORMED):
            self._senders[sender] = now
        if judgement.verdict is Verdict.ADMIT:
            judgement = await self._scored(group, judgement)
        if judgement.verdict is Verdict.ADMIT:
            self.batcher.add(group, host.now())
            host.delivered(sender)
            host.status.admitted += 1
            host.move()
        else:
            host.status.refused += 1
        self.tally.judged(sender, judgement.verdict)
        host.emit(
            events.Judged,
            group=group.id,
            sampler=group.sampler,
            verdict=judgement.verdict,
            detail=judgement.detail,
            versions=judgement.versions,
            seconds=round(judgement.seconds, 3),
        )
        return self._receipt(sender, judgement.verdict, judgement.detail)

    def credit(self) -> int:
        """What samplers are told that I can use; told at once when it opens again."""
        return self._credit(self.host.now(), self._learners())

    def _credit(self, now: float, learners: int) -> int:
        status, patience = self.host.status, self.host.config.run.pace.patience
        self._senders = {peer: last for peer, last in self._senders.items() if now - last < patience}
        credit = (
            min(self.batcher.credit(learners), max(0, self._scored_at_most(SCORED // 2)))
            if self._open()
            else 0
        )
        if status.credit == 0 and credit > 0:
            self.host.beat_now()
        status.credit, status.inbox = credit, len(self.batcher) + self.batcher.scoring.total()
        status.takers = max(1, self.batcher.takers(self._senders, learners, now))
        return credit

    def closes(self, now: float) -> float | None:
        """Seconds until a batch closes; None while there is nothing to close."""
        return self.batcher.due(self._learners(), now)

    def take(self, now: float) -> list[Waiting]:
        """A batch; groups that outgrew the window are counted as expired and gone."""
        batch, expired = self.batcher.take(self._learners(), self._version(), now)
        for item in expired:
            self.tally.judged(item.group.sampler, "expired")
            self._exercises.pop(item.group.id, None)
        return batch

    def doubt(self, batch: Sequence[Waiting], checks: Sequence[ClaimCheck]) -> list[Waiting]:
        """What of a batch is believed, by each group's check; the rest has no part in its gradient, is told
        of and gone."""
        believed: list[Waiting] = []
        refused: dict[PeerId, list[tuple[Waiting, ClaimCheck, str]]] = {}
        for item, each in zip(batch, checks, strict=True):
            if (why := objection(each, self.host.config.run.window.drift)) is None:
                believed.append(item)
            else:
                refused.setdefault(item.group.sampler, []).append((item, each, why))
        for sampler, its in refused.items():
            item, _, why = its[0]
            others = f", and {len(its) - 1} more of its groups in this batch" if len(its) > 1 else ""
            what = f"group {item.group.id} of version {item.group.version} teaches nothing: {why}{others}"
            self.host.emit(events.Rejected, sender=sampler, kind=Service.GROUPS, reason=what)
            self.consumed([item for item, _, _ in its])
            self.host.status.refused += len(its)
            for _, each, _ in its:
                self.tally.judged(sampler, Verdict.UNTRUSTED)
                self.weigh(sampler, each)
        return believed

    def weigh(self, sampler: PeerId, check: ClaimCheck) -> None:
        """A group of it will not be learned on again: what its check says of its sampler counts, once."""
        now = self.host.now()
        if self.sampler_evidence.add(sampler, check.evidence, now):
            self.host.emit(
                events.Rejected,
                sender=sampler,
                kind=Service.GROUPS,
                reason=str(self.sampler_evidence.objection(sampler, now)),
            )

    def exercise(self, group: Group) -> Exercise:
        return self._exercises[group.id]

    def consumed(self, batch: Sequence[Waiting]) -> None:
        """These groups were trained on, or never will be."""
        for item in batch:
            self._exercises.pop(item.group.id, None)

    def texts(self, group: Group) -> list[str]:
        """(G,) completions as text."""
        tokens = memoryview(group.tokens.data).cast("i").tolist()
        starts = [sum(group.lengths[:i]) for i in range(len(group.lengths))]
        return [
            self.decoder.decode(tokens[start : start + length])
            for start, length in zip(starts, group.lengths, strict=True)
        ]

    def show(self, group: Group, advantages: Sequence[float], weights: Sequence[float]) -> None:
        """Tell a trained group for reading, as much of it as an event holds; not more often than anybody
        reads."""
        host, now = self.host, self.host.now()
        if self._shown is not None and now - self._shown < max(SHOWN_EVERY, host.config.run.pace.beat):
            return
        self._shown = now
        exercise, texts = self.exercise(group), self.texts(group)[:SHOWN]
        prompt, answer = cut(exercise.task.prompt, SHOWN_PROMPT), cut(exercise.task.answer, SHOWN_ANSWER)
        room = (SHOWN_TEXT - len(prompt.encode()) - len(answer.encode())) // len(texts) - 30
        told = all(map(math.isfinite, (*advantages, *weights)))
        host.emit(
            events.Shown,
            group=group.id,
            sampler=group.sampler,
            version=group.version,
            prompt=prompt,
            answer=answer,
            completions=tuple(cut(text, min(room, SHOWN_COMPLETION)) for text in texts),
            rewards=exercise.rewards[:SHOWN],
            advantages=tuple(round(value, 4) for value in advantages[:SHOWN]) if told else (),
            weights=tuple(round(value, 4) for value in weights[:SHOWN]) if told else (),
        )

    def report(self, after: float = 0.0) -> None:
        """Tell what was counted since the last time, if that was `after` seconds ago and there is something
        to tell."""
        now = self.host.now()
        if now - self._told < after or not (self.tally.samplers or self.tally.versions):
            return
        self._told = now
        self.host.emit(events.Counted, **self.tally.drain(), samplers=self.tally.drain_samplers())

    def _judge(self, opened: wire.Opened, sender: PeerId, group: Group, now: float) -> Judgement:
        distrust = self.host.distrust(opened, Role.SAMPLER)
        if distrust is None and not sender == opened.sender == group.sampler:
            distrust = "sealed, sent and signed by different peers"
        elif distrust is None and self.host.invited(opened, Role.SAMPLER):
            self.batcher.quotas.invited(sender)
        distrust = distrust or self.sampler_evidence.objection(group.sampler, now)
        room = self._room(sender, self._learners(), now)
        full = room.why if room.groups <= 0 else None
        return self.admission.judge(group, version=self._version(), full=full, distrust=distrust, now=now)

    async def _scored(self, group: Group, judgement: Judgement) -> Judgement:
        """What becomes of an admitted group once its rewards are known. Its id is known from before: it is
        not scored twice."""
        self.batcher.scoring[group.sampler] += 1
        try:
            exercise = Exercise(*await self.scorer.exercise(group.task, self.texts(group)))
        except RewardError as error:
            return replace(
                judgement,
                verdict=Verdict.UNSCORED,
                detail=f"its rewards could not be recomputed here: {error}",
            )
        finally:
            self.batcher.scoring[group.sampler] -= 1
        if any(
            abs(mine - claimed) > 1e-6 for mine, claimed in zip(exercise.rewards, group.rewards, strict=True)
        ):
            detail = f"claims rewards {list(group.rewards)}, they are {list(exercise.rewards)}"
            return replace(judgement, verdict=Verdict.UNTRUSTED, detail=detail)
        self._exercises[group.id] = exercise
        return judgement

    def _room(self, sampler: PeerId, learners: int, now: float) -> Room:
        """For how many more groups of one sampler."""
        if not self._open():
            return Room(0, "this learner takes no groups now: another one may")
        scored = Room(self._scored_at_most(SCORED), f"{SCORED} groups are being scored: send more later")
        return min(self.batcher.room(sampler, learners, now), scored)

    def _scored_at_most(self, most: int) -> int:
        """For how many more groups, of which `most` are scored at once where rewards are slow."""
        return most - self.batcher.scoring.total() if self.source.slow else sys.maxsize

    def _open(self) -> bool:
        return self._version() >= 0 and not self.host.stop.is_set()

    def _receipt(self, sampler: PeerId, verdict: Verdict, detail: str) -> bytes:
        now, learners = self.host.now(), self._learners()
        part = share(self._credit(now, learners), self.host.status.takers, self.host.rng)
        credit = max(0, min(part, self._room(sampler, learners, now).groups))
        return wire.encode(
            Receipt(verdict=verdict, detail=cut(detail), version=self._version(), credit=credit)
        )
