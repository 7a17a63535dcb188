"""The sampler: adopt the newest policy, draw tasks, sample groups, score them, seal them, deliver them.

    refresh   newest release -> (injected delay) -> bytes ready          one at a time, beside the rest
    draw      ready policy adopted between groups only
              wait for credit -> tasks -> engine.sample -> completions
    score     rewards -> groups                                          slow ones beside the rest, in order
    deliver   (injected delay) -> learner -> receipt                     many at once, bounded

Invariant: all completions of a group come from one version. A group without a receipt goes to the same learner again while it
lives (it knows the group by its id), to another one when it is lost; an over-quota group goes to another with credit; a group
that outgrew the window is dropped, and so is one whose rewards cannot be computed. Not handled here: what learners make of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import NamedTuple

import msgspec

from peers.host import Host
from peers.scorer import Scorer
from peers.tended import Tended
from swarm import events, wire
from swarm.core.admission import group_id, staleness
from swarm.core.curriculum import Curriculum
from swarm.core.delays import draw
from swarm.net.ports import NetError, Refused
from swarm.sample.base import Completions, Engine, EngineError
from swarm.tasks.base import RewardError, TaskSource
from swarm.types import Array, Group, PeerId, Receipt, Release, Task, Times, Verdict

OUTBOX = 1024
# Groups on their way at once: 1800 s of delay at one group every two seconds; beyond it the sampler waits.
RETRY = 0.5
# Seconds before a delivery is tried again, doubled up to RETRY_LONGEST: a learner that restarts is back in a few seconds.
RETRY_LONGEST = 8.0
LEAVE = 5.0
# Seconds for deliveries to end after the sampler was asked to stop: a person who pressed Ctrl-C waits this long.


class Drawn(NamedTuple):
    """Completions of a task, before they are scored."""

    task: Task
    seed: int
    completions: Completions
    policy: tuple[Release, float]
    """And when its bytes were here."""
    used: float
    """When sampling began."""


class Sampler:
    def __init__(self, host: Host, engine: Engine, source: TaskSource) -> None:
        self.host, self.engine, self.source = host, engine, source
        self.scorer = Scorer(host, source)
        self.tended = Tended(host)
        self.curriculum = Curriculum(host.config.run.seed, host.ports.me, host.who.incarnation)
        self._ready: tuple[Release, bytes, float] | None = None
        self._policy: tuple[Release, float] | None = None
        self._outbox = asyncio.Semaphore(OUTBOX)
        self._deliveries: set[asyncio.Task[None]] = set()
        self._scoring = 0
        """Groups to be: sampled and not yet scored."""
        self._queue = asyncio.Lock()
        """Groups that no learner has room for: they leave one by one, before new ones are drawn."""

    async def run(self) -> None:
        """Until the host is asked to stop; groups at hand are delivered first, for LEAVE seconds at most."""
        async with asyncio.TaskGroup() as tasks:
            refresh = tasks.create_task(self._refresh())
            while not self.host.stop.is_set():
                try:
                    await self._turn(tasks)
                except EngineError:
                    await self.tended.wait()
            refresh.cancel()
            if self._deliveries:
                _, late = await asyncio.wait(self._deliveries, timeout=LEAVE)
                for delivery in late:
                    delivery.cancel()

    # --- adopt ----------------------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        """Fetch the newest release whenever there is one, late by the injected delay."""
        host, held = self.host, -1
        while True:
            newest = host.releases.newest
            if newest is None or newest.version <= held:
                await host.changed(host.config.run.pace.patience)
                continue
            try:
                weights = await host.fetch(newest)
            except NetError as error:
                host.emit(events.Noted, level="warning", text=f"release {newest.version} could not be fetched: {error}")
                await host.ports.clock.sleep(1.0)
                continue
            await host.ports.clock.sleep(draw(host.config.peer.delay.policy, host.rng))
            self._ready, held = (newest, weights, host.now()), newest.version
            host.move()

    async def _adopt(self) -> None:
        """Raises EngineError; the release, or a newer one, is tried again before anything is sampled."""
        assert self._ready is not None
        ready, start = self._ready, self.host.now()
        release, weights, fetched = ready
        try:
            await self.tended.run("load", self.engine.load, weights, release.version, release.weights)
        except ValueError as error:
            self._done_with(ready)
            self.host.emit(events.Noted, level="error", text=f"release {release.version} cannot be sampled from: {error}")
            return
        self._done_with(ready)
        now = self.host.now()
        self._policy = (release, fetched)
        self.host.vitals.version, self.host.vitals.weights = release.version, release.weights
        self.host.vitals.lags(versions=0.0)
        self.host.emit(
            events.Adopted, version=release.version, weights=release.weights, fetch=round(fetched - release.released, 3),
            load=round(now - start, 3), age=round(now - release.released, 3),
        )  # fmt: skip

    def _done_with(self, ready: tuple[Release, bytes, float]) -> None:
        if self._ready is ready:  # else a newer one came meanwhile
            self._ready = None

    # --- draw, sample, score, seal --------------------------------------------------------------------------------------

    async def _turn(self, tasks: asyncio.TaskGroup) -> None:
        """Decide (adopt? who has credit?), sample, hand over. Nothing is promised to a learner before it is sampled."""
        host = self.host
        if self._ready is not None:
            await self._adopt()
        if self._policy is None:
            return await self._idle("waiting for a policy")
        credit = host.roster.credit() - self._scoring
        count = min(host.config.peer.engine.tasks, credit) if not self._queue.locked() else 0
        if count <= 0:
            return await self._idle("waiting for credit")
        host.vitals.state = "sampling"
        draws = [self.curriculum.next() for _ in range(count)]
        try:
            exercises = await self.scorer.tasks([draw.task for draw in draws])
        except RewardError:
            return await self._idle("waiting for tasks")
        for drawn in await self._sample(exercises, draws[0].seed):
            if self.source.slow:
                self._scoring += 1
                await self._send_off(tasks, self._score_and_deliver(drawn))
            elif (group := await self._seal(drawn)) is not None:
                await self._send_off(tasks, self._deliver(group))

    async def _send_off(self, tasks: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
        await self._outbox.acquire()
        delivery = tasks.create_task(work)
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._delivered)

    async def _idle(self, why: str) -> None:
        self.host.vitals.state = why
        await self.host.changed(self.host.config.run.pace.beat)

    async def _sample(self, tasks: Sequence[Task], seed: int) -> list[Drawn]:
        host, run = self.host, self.host.config.run
        assert self._policy is not None
        used = host.now()
        with host.vitals.computing(host.now):
            sampled = await self.tended.run(
                "sample", self.engine.sample, [task.prompt for task in tasks], run.sampling.group_size, seed
            )
        finished = host.now()
        release, fetched = self._policy
        host.vitals.finished(len(tasks), sum(len(completions.tokens) for completions in sampled), finished)
        host.vitals.lags(download=fetched - release.released, queue=used - fetched, generation=finished - used)
        pairs = enumerate(zip(tasks, sampled, strict=True))
        return [Drawn(task, seed + i, completions, self._policy, used) for i, (task, completions) in pairs]

    async def _seal(self, drawn: Drawn) -> Group | None:
        """Score it and make a group of it; None when its rewards cannot be computed."""
        host, task, (release, fetched) = self.host, drawn.task, drawn.policy
        try:
            rewards = await self.scorer.rewards(task, drawn.completions.texts)
        except RewardError:
            return None
        now = host.now()
        times = Times(released=release.released, fetched=fetched, used=drawn.used, finished=now, sent=now)
        group = make_group(host.ports.me, release, task.index, drawn.seed, drawn.completions, rewards, times)
        host.emit(
            events.Sampled, group=group.id, task=task.index, version=release.version, seconds=round(now - drawn.used, 3),
            tokens=len(drawn.completions.tokens), reward=sum(rewards) / len(rewards),
        )  # fmt: skip
        return group

    async def _score_and_deliver(self, drawn: Drawn) -> None:
        try:
            group = await self._seal(drawn)
        finally:
            self._scoring -= 1
        if group is not None:
            await self._deliver(group)

    # --- deliver --------------------------------------------------------------------------------------------------------

    async def _deliver(self, group: Group) -> None:
        host, wait = self.host, RETRY
        await host.ports.clock.sleep(draw(host.config.peer.delay.upload, host.rng))
        learner = None
        while learner := await self._destination(group, learner):
            try:
                receipt = await self._send(group, learner)
            except Refused as error:
                # Busy, or the answer was damaged: the group may still be good for another one.
                host.emit(events.Rejected, sender=learner, kind="groups", reason=f"the learner refused: {error}")
                learner = None
                await host.ports.clock.sleep(wait)
                wait = min(2 * wait, RETRY_LONGEST)
            except NetError:
                await host.ports.clock.sleep(wait)
                wait = min(2 * wait, RETRY_LONGEST)
                continue
            if receipt.verdict is not Verdict.OVER_QUOTA:
                host.vitals.refused += receipt.verdict not in (Verdict.ADMIT, Verdict.DUPLICATE)
                return
            learner = None

    async def _destination(self, group: Group, tried: PeerId | None) -> PeerId | None:
        """The learner that was tried, while it lives; else one with credit, when there is one. None: too late for the group."""
        host = self.host
        if tried is not None and tried in host.roster:
            host.roster.fly(tried)
            return tried
        async with self._queue:
            while (learner := host.roster.choose()) is None:
                newest = host.releases.newest
                version = max(group.version, newest.version if newest else 0)
                if staleness(group, host.config.run.window, version, host.now()) is not None or host.stop.is_set():
                    host.vitals.refused += 1
                    return None
                await host.changed(host.config.run.pace.beat)
            return learner

    async def _send(self, group: Group, learner: PeerId) -> Receipt:
        host, credit = self.host, None
        times = msgspec.structs.replace(group.times, sent=host.now())
        frame = host.seal(msgspec.structs.replace(group, times=times))
        try:
            answer = await host.ports.mail.send(learner, "groups", frame)
            receipt = wire.decode(answer, Receipt)
            credit = receipt.credit
        except wire.WireError as error:
            raise Refused(f"its receipt is damaged: {error}") from error
        finally:
            host.roster.land(learner, credit)
            host.move()
        host.vitals.lags(upload=host.now() - group.times.finished, versions=receipt.version - group.version)
        if (beat := host.roster.beat(learner)) is not None and beat.lag.inbox > 0:
            host.vitals.lags(inbox=beat.lag.inbox)  # nobody tells of each group how long it waited there
        return receipt

    def _delivered(self, delivery: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        self._outbox.release()
        self.host.vitals.inbox = len(self._deliveries)


def make_group(
    sampler: PeerId, release: Release, task: int, seed: int, completions: Completions, rewards: Sequence[float], times: Times
) -> Group:
    """Seal the facts: the id is a hash of what was sampled, so that every delivery of a group has the same."""
    tokens, logprobs = completions.tokens.tobytes(), completions.logprobs.tobytes()
    total = len(completions.tokens)
    return Group(
        id=group_id(sampler, release.version, task, seed, tokens, logprobs), sampler=sampler, task=task,
        version=release.version, weights=release.weights, lease="", seed=seed, lengths=tuple(completions.lengths),
        tokens=Array(dtype="int32", shape=(total,), data=tokens), logprobs=Array(dtype="float32", shape=(total,), data=logprobs),
        rewards=tuple(rewards), times=times,
    )  # fmt: skip
