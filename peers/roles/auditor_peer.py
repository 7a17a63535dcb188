"""The auditor: replays what came to learners and tells what it finds, with neither optimizer nor gradients.

    each heartbeat   learner --service submitted--> which groups came --drawn--> their frames -> the queue
    the queue        -> replayed (peers.roles.replayer) -> Audited event
                          honest: Verdicts (peers.roles.verdicts)
                          forged: Accusation (peers.roles.accusations)
    each release     -> its bytes are held, for as long as its groups come

Drawn are all groups that a learner drew itself, and others by the rates of swarm.core.auditing and randomness
that only this peer's key gives. It sets nobody aside: learners act on their own replays. What it finds
in groups of which none shows a cheat by itself is its own knowledge alone. Not handled here: what its word
counts for (swarm.core.verifiers).
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict

from peers.roles.accusations import Accuser
from peers.roles.evidence import Unsigned, signed_group
from peers.roles.group_opening import Decoder
from peers.roles.replay_queue import Drawn, ReplayQueue
from peers.roles.replayer import MakeReplay, Replayer
from peers.roles.reward_calls import RewardCalls
from peers.roles.shown_groups import ASKED, ShownGroups
from peers.roles.submitted_groups import LISTED, Submitted, SubmittedGroup, SubmittedQuery
from peers.roles.verdicts import VerdictTeller
from peers.runtime.frames import UnknownKey
from peers.runtime.host import Host
from swarm import events, wire
from swarm.blocks import digest_of
from swarm.core.accusations import speaks_alone
from swarm.core.auditing import Audits, Finding, Weighed
from swarm.net.ports import NetError
from swarm.protocol import Phase, Role, Service
from swarm.replays import Replayed
from swarm.tasks.base import RewardError, TaskSource
from swarm.types import Digest, Group, PeerId

BUSY = 32
"""Groups that wait for their replay, at which no more are asked for."""

SEEN = 4096
"""Groups that are remembered, so that one of several learners is replayed once."""


class AuditorPeer:
    def __init__(self, host: Host, source: TaskSource, decoder: Decoder, make: MakeReplay) -> None:
        """`make` makes what replays, on the work port."""
        self.host, self._decoder = host, decoder
        self._reward_calls = RewardCalls(host, source)
        run = host.config.run.sampling
        self._limit = wire.group_limit(run.group_size, run.max_tokens, run.heads)
        self.audits = Audits()
        secret = host.ports.keyring.sign(f"audits {host.who.incarnation}".encode())
        self._rng = random.Random(secret)
        self._replayer = Replayer(host, make, host.leave)
        self._queue = ReplayQueue(self.audits.proven)
        self._shown = ShownGroups(host)
        self._accuser, self._teller = Accuser(host, self._shown), VerdictTeller(host, self._shown)
        self._asked: dict[PeerId, tuple[int, int]] = {}
        """Learner -> its incarnation, and the number of the last group that it told of."""
        self._seen: OrderedDict[Digest, None] = OrderedDict()

    async def run(self) -> None:
        """Audit until the host is asked to stop."""
        await self._shown.serve()
        self.host.status.phase = Phase.NO_POLICY
        async with asyncio.TaskGroup() as tasks:
            runs = (self._teller.run, self._accuse, self._follow, self._ask_forever)
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
        releases, version = self.host.releases, -1
        while True:
            above = () if version < 0 else (version + 1,)
            if (found := await releases.obtain(above)) is None:
                await releases.changed(releases.retry_after(above))
                continue
            version = found[0].version
            self._replayer.hold(version, found[0].weights)
            self.host.status.version, self.host.status.weights = version, found[0].weights
            self.host.status.phase = Phase.AUDITING

    # --- groups ---------------------------------------------------------------------------------------------

    async def _ask_forever(self) -> None:
        while True:
            await self.host.ports.clock.sleep(self.host.config.run.pace.beat)
            if self.host.rest.reason is None:
                for learner in self.host.roster.learners():
                    await self._ask(learner)

    async def _ask(self, learner: PeerId) -> None:
        """Take what a learner lists, as long as there is room for it."""
        while len(self._queue) < BUSY:
            life, after = self._asked.get(learner, (0, 0))
            try:
                answer = await self._send(learner, SubmittedQuery(life=life, after=after))
                told = wire.decode(answer, Submitted)
            except NetError:
                return None
            except wire.WireError as error:
                return self._reject(learner, str(error))
            self._asked[learner] = told.life, told.last
            await asyncio.gather(*(self._take(learner, told.life, one) for one in told.groups))
            if len(told.groups) < LISTED:
                return None

    async def _take(self, learner: PeerId, life: int, one: SubmittedGroup) -> None:
        """Draw a group that a learner lists, or leave it."""
        weights = self._replayer.hold(one.version, one.weights)
        if weights is None or one.group in self._seen:
            return None
        self._seen[one.group] = None
        if len(self._seen) > SEEN:
            self._seen.popitem(last=False)
        if not (one.wanted or self.audits.drawn(one.sampler, self._rng)):
            return None
        try:
            frame = await self._send(learner, SubmittedQuery(life=life, after=0, group=one.group))
            group = self._read(frame, one)
            (task,) = await self._reward_calls.tasks([group.task])
        except (NetError, UnknownKey, RewardError):
            return None
        except (wire.WireError, Unsigned) as error:
            return self._reject(learner, f"it shows no group that it lists: {error}")
        self._queue.append(Drawn(group, frame, one.group, task.prompt, weights))
        self.host.move()

    async def _send(self, learner: PeerId, query: SubmittedQuery) -> bytes:
        return await self.host.ports.mail.send(learner, Service.SUBMITTED, wire.encode(query), ASKED)

    def _read(self, frame: bytes, one: SubmittedGroup) -> Group:
        """A listed group as its sampler signed it. Raises WireError and Unsigned."""
        run, vocabulary = self.host.config.run.sampling, self._decoder.vocabulary
        if digest_of(frame) != one.group:
            raise Unsigned("it is another one")
        opened, group = signed_group(self.host.frames, frame, self._limit, run, vocabulary)
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
            if await host.rest.taken():
                continue
            if not self._queue:
                await host.changed(host.config.run.pace.beat)
            elif await self._replayer.ready():
                drawn = self._queue.take(self._replayer.loaded)
                with host.status.computing(host.now):
                    replayed, _ = await self._replayer.replayed(drawn)
                if replayed is not None:
                    self._judge(drawn, replayed)
                self._queue.settle(drawn.group.sampler)

    def _judge(self, drawn: Drawn, replayed: Replayed) -> None:
        host, group = self.host, drawn.group
        found, _ = self._replayer.weighed(drawn, replayed)
        finding, _ = self.audits.take(group.sampler, found, host.now())
        if finding is Finding.HONEST:
            self._teller.honest(group, drawn.frame)
        elif finding in (Finding.FORGED, Finding.DRIFTED) and speaks_alone(found):
            self._accuser.accuse(group, drawn.frame)
        host.status.finished(1, found.tokens, host.now())
        self._tell(group, finding, found)

    def _tell(self, group: Group, finding: Finding, found: Weighed) -> None:
        self.host.emit(
            events.Audited,
            group=group.id,
            sampler=group.sampler,
            finding=finding,
            tokens=found.tokens,
            off=found.off,
            largest=round(found.largest, 4),
        )
