"""The auditor: replays groups that were submitted to learners and accuses samplers that cheat, with neither
optimizer nor gradients.

    each heartbeat   learner --service submitted--> its new groups --drawn--> their frames -> the queue
    the queue        -> replayed (peers.audits.replayer) -> Audited event
                          forged: Accusation (peers.audits.accusations)
    each release     -> its bytes are held, for as long as its groups come

Groups are drawn by the rates of swarm.core.audits.auditing and randomness that only this peer's key gives. A
sampler is accused once, and none of its groups is drawn then until the next release: then learners that did
not suspend it are informed again. The auditor suspends no sampler: learners act on their own replays.
Evidence that spans several groups, none of which proves a cheat by itself, stays with the auditor. Learners
are queried concurrently, have equal shares of the room for waiting groups, and take turns: a slow one, or one
with a long list, costs the others nothing. Not handled here: the consequences of an accusation
(peers.audits.auditor).
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict

from peers.audits.accusations import Accuser
from peers.audits.evidence import Unsigned, signed_group
from peers.audits.replay_queue import QueuedReplay, QueuesInTurn
from peers.audits.replayer import MakeReplay, Replayer
from peers.audits.shown_groups import ASKED, ShownGroups
from peers.audits.submitted_groups import LISTED, Submitted, SubmittedGroup, SubmittedQuery
from peers.intake.reward_calls import RewardCalls
from peers.runtime.frames import UnknownKey
from peers.runtime.host import Host
from swarm import events
from swarm.core.audits.accusations import is_conclusive
from swarm.core.audits.auditing import Audits, Finding, Weighed
from swarm.draws.replays import Replayed
from swarm.frames import wire
from swarm.limits import remember
from swarm.net.ports import NetError
from swarm.protocol import Phase, Role, Service
from swarm.storage.blocks import digest_of
from swarm.tasks.base import RewardError, TaskSource
from swarm.types import Digest, Group, PeerId

BUSY = 32
"""Groups that wait for their replay, at which no more are fetched than a learner's equal share."""

LISTS = 32
"""Answers that are read at once: a thousand groups."""

SEEN = 4096
"""Most remembered groups, so that a group listed by several learners is replayed once; most requests to
learners, so that none is repeated; and most accused samplers."""


class AuditorPeer:
    def __init__(self, host: Host, source: TaskSource, vocabulary: int, make: MakeReplay) -> None:
        """Of `vocabulary` tokens all are below it. `make` makes what replays, on the work port."""
        self.host, self._vocabulary = host, vocabulary
        self._reward_calls = RewardCalls(host, source)
        self.audits = Audits()
        secret = host.ports.keyring.sign(f"audits {host.who.incarnation}".encode())
        self._rng = random.Random(secret)
        self._replayer = Replayer(host, make, host.leave)
        self._queue = QueuesInTurn(self.audits.proven)
        self._shown = ShownGroups(host)
        self._accuser = Accuser(host, self._shown)
        self._asked: dict[PeerId, tuple[int, int]] = {}
        """Learner -> its incarnation, and the number of the last group that it listed."""
        self._asking = set[PeerId]()
        """Learners that were asked and did not answer to the end."""
        self._coming = 0
        """Groups that are fetched."""
        self._seen: OrderedDict[Digest, None] = OrderedDict()
        """Groups that were fetched: one that a learner lists and does not serve may come from another."""
        self._requested: OrderedDict[tuple[PeerId, Digest], None] = OrderedDict()
        self._accused: OrderedDict[PeerId, int] = OrderedDict()
        """Sampler -> the newest release when it was accused."""
        self._version = -1
        """The newest release."""

    async def run(self) -> None:
        """Audit until the host is asked to stop."""
        await self._shown.serve()
        self.host.status.phase = Phase.NO_POLICY
        async with asyncio.TaskGroup() as tasks:
            runs = (self._accuse, self._follow, self._ask_forever)
            beside = [tasks.create_task(run()) for run in runs]
            await self._replay()
            for task in beside:
                task.cancel()

    async def _accuse(self) -> None:
        async with self._accuser.tasks:
            await asyncio.Event().wait()

    # --- releases -------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Hold each release that is newer than those before."""
        releases = self.host.releases
        while True:
            above = () if self._version < 0 else (self._version + 1,)
            if (found := await releases.obtain(above)) is None:
                await releases.changed(releases.retry_after(above))
                continue
            self._version = version = found[0].version
            self._replayer.hold(version, found[0].weights)
            self.host.status.version, self.host.status.weights = version, found[0].weights
            self.host.status.phase = Phase.AUDITING

    # --- groups ---------------------------------------------------------------------------------------------

    async def _ask_forever(self) -> None:
        async with asyncio.TaskGroup() as asks:
            while True:
                await self.host.ports.clock.sleep(self.host.config.run.pace.beat)
                if self.host.pause_gate.reason is None:
                    for learner in sorted({*self.host.roster.learners()} - self._asking):
                        self._asking.add(learner)
                        asks.create_task(self._ask(learner))

    async def _ask(self, learner: PeerId) -> None:
        try:
            await self._take_of(learner)
        finally:
            self._asking.discard(learner)

    async def _take_of(self, learner: PeerId) -> None:
        """Fetch the newest groups that a learner lists and this peer draws, as far as there is room."""
        drawn = list[SubmittedGroup]()
        for _ in range(LISTS):
            life, after = self._asked.get(learner, (0, 0))
            try:
                answer = await self._send(learner, SubmittedQuery(life=life, after=after))
                listed = wire.decode(answer, Submitted)
            except NetError:
                break
            except wire.WireError as error:
                return self._reject(learner, str(error))
            self._asked[learner] = listed.life, listed.last
            drawn.extend(one for one in listed.groups if self._draws(learner, one))
            if len(listed.groups) < LISTED:
                break
        taken = drawn[max(0, len(drawn) - self._room_of(learner)) :]
        self._coming += len(taken)
        await asyncio.gather(*(self._take(learner, one) for one in taken))
        self._coming -= len(taken)

    def _room_of(self, learner: PeerId) -> int:
        """How many more groups of a learner may wait."""
        share = max(1, BUSY // max(1, len(self.host.roster.learners())))
        left = BUSY - len(self._queue) - self._coming
        return max(0, share - self._queue.waiting(learner), left)

    def _draws(self, learner: PeerId, one: SubmittedGroup) -> bool:
        """Whether a group that a learner lists is replayed."""
        held = self._replayer.works and self._replayer.hold(one.version, one.weights) is not None
        came = one.group in self._seen or (learner, one.group) in self._requested
        if not held or came or self._is_accused(one.sampler):
            return False
        drawn = self.audits.drawn(one.sampler, self._rng)
        if drawn:
            remember(self._requested, (learner, one.group), None, SEEN)
        return drawn

    def _is_accused(self, sampler: PeerId) -> bool:
        """Whether learners have its accusation, and nothing changed since."""
        return self._accused.get(sampler) == self._version

    async def _take(self, learner: PeerId, one: SubmittedGroup) -> None:
        try:
            frame = await self._send(learner, SubmittedQuery(life=0, after=0, group=one.group))
            group = self._read(frame, one)
            (task,) = await self._reward_calls.tasks([group.task])
        except (NetError, UnknownKey, RewardError):
            return None
        except (wire.WireError, Unsigned) as error:
            return self._reject(learner, f"it shows no group that it lists: {error}")
        weights = self._replayer.hold(one.version, one.weights)
        if weights is not None and one.group not in self._seen:
            remember(self._seen, one.group, None, SEEN)
            self._queue.append(learner, QueuedReplay(group, frame, task.prompt, weights))
            self.host.move()

    async def _send(self, learner: PeerId, query: SubmittedQuery) -> bytes:
        return await self.host.ports.mail.send(learner, Service.SUBMITTED, wire.encode(query), ASKED)

    def _read(self, frame: bytes, one: SubmittedGroup) -> Group:
        """A listed group as its sampler signed it. Raises WireError and Unsigned."""
        if digest_of(frame) != one.group:
            raise Unsigned("it is another one")
        host = self.host
        opened, group = signed_group(host.frames, frame, host.config.run, self._vocabulary)
        if (group.sampler, group.version, group.weights) != (one.sampler, one.version, one.weights):
            raise Unsigned("it is another sampler's, or of another version")
        if (why := self.host.distrust(opened, Role.SAMPLER)) is not None:
            raise Unsigned(why)
        return group

    def _reject(self, learner: PeerId, reason: str) -> None:
        self.host.emit(events.Rejected, sender=learner, kind=Service.SUBMITTED, reason=reason)

    # --- replays --------------------------------------------------------------------------------------------

    async def _replay(self) -> None:
        host = self.host
        while not host.stop.is_set():
            if await host.pause_gate.waited():
                continue
            if not self._queue:
                await host.changed(host.config.run.pace.beat)
            elif await self._replayer.ready():
                drawn = self._queue.take(self._replayer.loaded)
                replayed, spent = await self._replayer.replayed(drawn)
                host.status.busy.add(spent, host.now())
                if replayed is not None:
                    self._judge(drawn, replayed)
                self._queue.settle(drawn.group.sampler)

    def _judge(self, drawn: QueuedReplay, replayed: Replayed) -> None:
        host, group = self.host, drawn.group
        found, _ = self._replayer.weighed(drawn, replayed)
        finding, _ = self.audits.take(group.sampler, found, host.now())
        if finding in (Finding.FORGED, Finding.DRIFTED) and is_conclusive(found):
            self._accuse_once(group, drawn.frame)
        host.status.finished(1, found.tokens, host.now())
        self._emit_audited(group, finding, found)

    def _accuse_once(self, group: Group, frame: bytes) -> None:
        """Each accusation costs learners a replay, of which they allow one accuser so many."""
        if not self._is_accused(group.sampler):
            remember(self._accused, group.sampler, self._version, SEEN)
            self._accuser.accuse(group, frame)
        self._queue.drop(group.sampler)

    def _emit_audited(self, group: Group, finding: Finding, found: Weighed) -> None:
        self.host.emit(
            events.Audited,
            group=group.id,
            sampler=group.sampler,
            finding=finding,
            tokens=found.tokens,
            off=found.off,
            largest=round(found.largest, 4),
        )
