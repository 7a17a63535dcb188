"""The sampler: adopt the newest policy, draw tasks, sample groups, score them, seal them, deliver them.

    refresh   best available release -> (injected delay) -> ready        one at a time, beside the rest
    draw      ready policy adopted between groups only
              wait for credit -> tasks -> engine.sample -> completions
              the tasks of the next call are made beside this one
    score     rewards -> groups                                          beside the next call
    deliver   (injected delay) -> learner -> receipt                     many at once, bounded

Invariant: all completions of a group come from one version. A table (swarm.core.intake.deliveries) decides
the fate of a group after each try to deliver it; a learner that refuses gets nothing more for a while, and so
does one that cannot score a long row of groups. A group that is older than the window
(peers.sampler.freshness) is dropped, a call that would sample such groups is stopped, and a group whose
rewards cannot be computed is sent without. Not handled here: the groups at a learner.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from peers.intake.reward_calls import RewardCalls
from peers.runtime.faults import REPEAT_AFTER
from peers.runtime.host import Host
from peers.sampler.engine_calls import EngineCalls
from peers.sampler.freshness import Freshness
from peers.sampler.new_group import Drawn, sealed
from peers.sampler.next_tasks import NextTasks
from peers.sampler.outbox import Outbox
from swarm import events
from swarm.core import delays, stream_slots
from swarm.core.intake import deliveries
from swarm.core.intake.cooldown import Cooldown
from swarm.core.intake.curriculum import Curriculum, Draw, Draws
from swarm.core.intake.deliveries import DeliveryLoss, NextStep, Outcome
from swarm.core.intake.overlong import penalized
from swarm.core.suspensions import reason_of
from swarm.frames import wire
from swarm.limits import remember
from swarm.net.ports import Busy, NetError, Refused, Silent
from swarm.protocol import Phase, Service, WorkStage
from swarm.sample.base import Engine, EngineError, NoRoom
from swarm.storage.blocks import Damaged
from swarm.storage.weights import Weights
from swarm.tasks.base import RewardError, TaskSource
from swarm.types import Group, PeerId, Receipt, Release, Task, Verdict

UNDELIVERED = "undelivered"
"""Why tokens are wasted: no learner answered in time, or the group fits no message."""

OUTBOX = 1024
"""Groups in delivery at once: 1800 s of delay at a group every two seconds; the sampler waits beyond."""

RECEIPT = 15.0
"""Seconds for a receipt beyond those that a learner gives the group's bytes to arrive."""

UNSCORED = 64
"""Groups in a row that a learner could not score, or did not believe, after which it gets one at a time, and
seldom."""

FRUITLESS = {
    Verdict.UNSCORED: (
        "scored",
        "mend what fails there, or begin a run with a reward that `swarm task try` can compute",
    ),
    Verdict.UNTRUSTED: (
        "believed",
        "where rewards differ, the reward is random or depends on the machine: begin a run with one that is"
        " the same number everywhere",
    ),
    Verdict.MALFORMED: (
        "took",
        "where log-probabilities are not finite at all samplers, run.optimizer.lr is too large",
    ),
}
"""Verdicts that repeat until a user acts -> the learner's handling of such groups, and what to do."""

IN_MEMORY = 1024
"""Groups that are remembered since a learner has them in its memory alone."""

SEARCHED = 8
"""Times that draws are put in the place of those that are left out; the last ones are sampled in any case."""

LEAVE_TIMEOUT = 5.0
"""Seconds in which deliveries may end after the sampler is asked to stop: a user who pressed Ctrl-C waits."""


class BadReceipt(NetError):
    """The learner's answer cannot be decoded as a receipt."""


LOSSES: dict[type[NetError], DeliveryLoss] = {
    Refused: DeliveryLoss.REFUSED,
    Busy: DeliveryLoss.REFUSED,
    Silent: DeliveryLoss.SILENT,
    BadReceipt: DeliveryLoss.DAMAGED,
}
"""Error of a message -> loss of the group in it. Unreachable and all other errors: it is unknown whether the
group arrived."""


class Sampler:
    def __init__(self, host: Host, engine: Engine, source: TaskSource, folder: Path | None) -> None:
        """Groups that no learner has yet are kept in `folder`; None keeps them in memory alone."""
        self.host, self.engine, self.source = host, engine, source
        self.reward_calls = RewardCalls(host, source)
        self.engine_calls = EngineCalls(host)
        self.freshness = Freshness(host)
        draws = Draws(host.who.run, host.config.run.batch.groups)
        self.curriculum = Curriculum(draws, host.ports.me)
        self.next_tasks = NextTasks(self.reward_calls, self.curriculum, self.engine_calls.given)
        self._cooldown = Cooldown() if host.config.run.batch.refill == "signal" else None
        self._ready: tuple[Release, Weights, float] | None = None
        """The release to adopt next, its bytes, and when they had arrived."""
        self._policy: tuple[Release, float] | None = None
        """The release that the engine samples from, and when its bytes had arrived."""
        self.outbox = Outbox(host, folder, OUTBOX)
        self._in_memory = OrderedDict[str, tuple[Group, PeerId, int]]()
        """Group that its learner's disk refused -> the group, the learner and its incarnation."""
        self._any_in_memory = asyncio.Event()
        self._places = asyncio.Semaphore(OUTBOX)
        self._deliveries: set[asyncio.Task[None]] = set()
        self._refused: dict[Outcome, float] = {}
        """Verdict -> when one of its refusals was last reported."""
        self._unscored = Counter[PeerId]()
        """Learner -> groups in a row that it could not score."""
        self._reported_long = False
        """That prompts are too long."""
        self._scoring = 0
        """Groups that are being scored."""
        self._queue = asyncio.Lock()
        """Held by a group that waits for a learner with credit: such groups leave one by one, and no new
        ones are drawn meanwhile."""

    async def run(self) -> None:
        """Run until the host is asked to stop; then deliver finished groups, for at most LEAVE_TIMEOUT
        seconds."""
        async with asyncio.TaskGroup() as tasks:
            refresh, keeps = tasks.create_task(self._refresh(tasks)), tasks.create_task(self.outbox.run())
            again = tasks.create_task(self._deliver_again(tasks))
            undelivered = await self.outbox.open()
            self.curriculum.go_on(self.outbox.drawn)
            for group, learner in undelivered:
                await self._start_delivery(tasks, self._deliver(group, learner))
            while not self.host.stop.is_set():
                try:
                    if not await self.host.pause_gate.waited():
                        await self._turn(tasks)
                except EngineError:
                    await self.engine_calls.wait()
            refresh.cancel()
            again.cancel()
            self.next_tasks.cancel()
            if self._deliveries:
                _, late = await asyncio.wait(self._deliveries, timeout=LEAVE_TIMEOUT)
                for delivery in late:
                    delivery.cancel()
            keeps.cancel()

    # --- adopt ----------------------------------------------------------------------------------------------

    async def _refresh(self, tasks: asyncio.TaskGroup) -> None:
        """Fetch every release that is better than mine; it is ready after the injected delay."""
        host = self.host
        while True:
            above = self._above()
            if (found := await host.releases.obtain(above)) is None:
                await host.releases.changed(host.releases.retry_after(above))
                continue
            await host.ports.clock.sleep(delays.draw(host.config.peer.delay.policy, host.rng))
            self._ready = (*found, host.now())
            self.next_tasks.ask(found[0].weights, tasks)
            self._stop_doomed()
            host.move()

    def _above(self) -> tuple[Any, ...]:
        """The rank that a release must exceed: that of the release I have, or will adopt next."""
        mine = self._ready or self._policy
        if mine is None:
            return ()
        return self.host.releases.agreement.above((mine[0].version, mine[0].weights))

    async def _adopt(self) -> None:
        """Load the ready release into the engine. Raises EngineError; then this release, or a newer one, is
        loaded again before anything is sampled."""
        assert self._ready is not None
        ready, start = self._ready, self.host.now()
        release, weights, fetched = ready
        try:
            await self.engine_calls.load(self.engine, weights)
        except Damaged:
            return self._clear_ready(ready)
        except ValueError as error:
            self._clear_ready(ready)
            self.host.releases.refuse(release)
            self.host.emit(
                events.Noted, level="error", text=f"release {release.version} cannot be sampled from: {error}"
            )
            return None
        self._clear_ready(ready)
        self._policy = (release, fetched)
        self.host.status.version, self.host.status.weights = release.version, release.weights
        self.host.status.lags(versions=0.0)
        self.engine_calls.adopted(release, fetched, start)

    def _clear_ready(self, ready: tuple[Release, Weights, float]) -> None:
        if self._ready is ready:  # else a newer one has arrived
            self._ready = None

    # --- draw, sample, score, seal --------------------------------------------------------------------------

    async def _turn(self, tasks: asyncio.TaskGroup) -> None:
        """Adopt a ready release, draw as many tasks as there is credit, sample them, start their deliveries.
        A learner is chosen after sampling."""
        host = self.host
        if self._ready is not None:
            await self._adopt()
        if self._policy is None:
            return await self._idle(Phase.NO_POLICY)
        credit = host.roster.credit(host.steady()) - self._scoring
        count = min(host.config.peer.engine.tasks, credit, self.curriculum.at_once)
        if count <= 0 or self._queue.locked():
            return await self._idle(Phase.NO_CREDIT)
        host.status.phase = Phase.SAMPLING
        weights = self._policy[0].weights
        draws = [self.curriculum.next(weights) for _ in range(count)]
        self.next_tasks.ask((self._ready or self._policy)[0].weights, tasks)
        try:
            sampled = await self._drawn(draws)
        except (RewardError, EngineError) as error:
            self.curriculum.failed(weights, draws, again=not isinstance(error, NoRoom))
            if isinstance(error, EngineError) and not isinstance(error, NoRoom):
                raise
            if isinstance(error, NoRoom):
                self._note_long(str(error))
                if len(draws) > 1:
                    return None  # the others come at once
            return await self._idle(Phase.NO_TASKS)
        if sampled is None:
            return self.curriculum.stopped(weights, draws)
        self.curriculum.sampled()
        tasks.create_task(self.outbox.count(weights, draws[-1].number + 1))
        for drawn in sampled:
            await self._start_delivery(tasks, self._score_and_deliver(drawn))

    def _note_long(self, why: str) -> None:
        if not self._reported_long:
            self._reported_long = True
            self.host.emit(events.Noted, level="warning", text=f"{why}; such tasks are left out")

    async def _start_delivery(self, tasks: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
        await self._places.acquire()
        self._deliveries.add(delivery := tasks.create_task(work))
        delivery.add_done_callback(self._delivered)

    async def _idle(self, why: Phase) -> None:
        self.host.status.phase = why
        await self.host.changed(self.host.config.run.pace.beat)

    async def _drawn(self, draws: list[Draw]) -> list[Drawn] | None:
        """Sample these draws, of which those that are left out give way to the next ones; None when their
        groups would come too late. Raises RewardError, EngineError."""
        host = self.host
        assert self._policy is not None
        with self.engine_calls.first():
            tasks = await self.next_tasks.of(draws)
            if self._cooldown is not None:
                tasks = await self._warm(self._cooldown, draws, tasks)
            used, prompts = host.now(), [task.prompt for task in tasks]
            call = self.engine_calls.sample(self.engine, prompts, [draw.seed for draw in draws])
        completions = len(tasks) * host.config.run.sampling.group_size
        with (
            host.status.computing(host.now),
            self.engine_calls.within(WorkStage.SAMPLING, self.engine, completions),
        ):
            sampled = await call
        finished = host.now()
        if sampled is None:
            return None
        release, fetched = self._policy
        host.status.finished(len(tasks), sum(len(completions.tokens) for completions in sampled), finished)
        host.status.lags(
            download=fetched - host.releases.released_here(release),
            queue=used - fetched,
            generation=finished - used,
        )
        made = zip(tasks, draws, sampled, strict=True)
        return [Drawn(task, draw, completions, self._policy, used) for task, draw, completions in made]

    async def _warm(self, cooldown: Cooldown, draws: list[Draw], tasks: list[Task]) -> list[Task]:
        """Put the next draws in the place of those that are left out; returns the tasks of all. Raises
        RewardError."""
        assert self._policy is not None
        count, weights = len(draws), self._policy[0].weights
        for _ in range(SEARCHED):
            pairs = zip(draws, tasks, strict=True)
            kept = [(draw, task) for draw, task in pairs if cooldown.samples(task.prompt, draw)]
            if len(kept) == count:
                break
            others = [self.curriculum.next(weights) for _ in range(count - len(kept))]
            draws[:] = [*(draw for draw, _ in kept), *others]
            tasks = [*(task for _, task in kept), *await self.next_tasks.more(others)]
        return tasks

    def _stop_doomed(self) -> None:
        """Stop the call if its groups will be outside the window before they are finished."""
        if self._policy is not None and self.freshness.is_over(self._policy[0]):
            self.engine_calls.stop(self.engine)

    async def _seal(self, drawn: Drawn) -> Group:
        """Score completions and make a group of them. Where the rewards cannot be computed it claims none: a
        learner that cannot compute them either answers so, and the draw is accounted for."""
        try:
            rewards = await self.reward_calls.rewards(drawn.task, drawn.completions.texts)
            if self._cooldown is not None:
                run, lengths = self.host.config.run, drawn.completions.lengths
                self._cooldown.scored(drawn.task.prompt, penalized(run, lengths, rewards))
        except RewardError:
            rewards = ()
        return sealed(self.host, drawn, rewards)

    async def _score_and_deliver(self, drawn: Drawn) -> None:
        await self.engine_calls.given.wait()
        self._scoring += 1
        try:
            group = await self._seal(drawn)
        finally:
            self._scoring -= 1
        await self._deliver(group)

    # --- deliver --------------------------------------------------------------------------------------------

    async def _deliver(self, group: Group, bound: PeerId | None = None) -> None:
        """`bound`: a learner that may have the group from an earlier life of mine."""
        host, wait, cause = self.host, 0.0, str(Verdict.OVER_QUOTA)
        await self.outbox.add(group)
        await host.ports.clock.sleep(delays.draw(host.config.peer.delay.upload, host.rng))
        if bound is not None:
            await self._receive(bound)
        learner = await self._destination(group, bound)
        while learner is not None:
            sent = host.steady()
            outcome, why = await self._send(group, learner)
            then = deliveries.TABLE[outcome]
            if then in (NextStep.DONE, NextStep.DROPPED):
                if then is NextStep.DROPPED and outcome is not DeliveryLoss.TOO_LARGE:
                    self._report_refused(learner, outcome, why)
                if self._would_refuse_next(learner, outcome, why):  # nor its next ones: it asks now and then
                    host.roster.start_pause(learner, sent, host.steady())
                else:
                    host.roster.end_pause(learner, sent)
                host.status.admitted += then is NextStep.DONE
                host.status.refused += then is NextStep.DROPPED
                if outcome is DeliveryLoss.TOO_LARGE:
                    host.status.wasted[UNDELIVERED] += sum(group.lengths)
                    await self.outbox.done(group.id)
                return
            cause = UNDELIVERED if isinstance(outcome, DeliveryLoss) else outcome
            if host.roster.start_pause(learner, sent, host.steady()):
                level = "info" if outcome is Verdict.OVER_QUOTA else "warning"
                host.emit(events.Noted, level=level, text=f"{learner} took no group ({outcome.value}): {why}")
            wait = deliveries.pause(wait, host.rng)
            await host.ports.clock.sleep(wait)
            if self.freshness.is_late(group):
                break
            learner = await self._destination(group, learner if then is NextStep.AGAIN else None)
        host.status.refused += 1
        if not host.stop.is_set():
            host.status.wasted[cause] += sum(group.lengths)
            await self.outbox.done(group.id)

    async def _deliver_again(self, tasks: asyncio.TaskGroup) -> None:
        """Redeliver groups that a learner held in memory alone, once that learner is gone or has
        restarted."""
        host = self.host
        while True:
            if not self._in_memory:
                self._any_in_memory.clear()
                await self._any_in_memory.wait()
            await host.changed(host.config.run.pace.beat)
            for group, learner, life in [*self._in_memory.values()]:
                late = self.freshness.is_late(group)
                if not late and self._life(learner) == life:
                    continue
                self._in_memory.pop(group.id, None)  # first: a delivery may put it back
                if late:
                    await self.outbox.done(group.id)
                else:
                    await self._start_delivery(tasks, self._deliver(group, learner))

    def _life(self, learner: PeerId) -> int:
        """Its incarnation; 0 while it is absent."""
        beat = self.host.roster.beat(learner)
        return beat.incarnation if beat is not None else 0

    def _would_refuse_next(self, learner: PeerId, outcome: Outcome, why: str) -> bool:
        """Whether a learner that answered so about a group would drop the next ones, too."""
        if outcome in FRUITLESS:
            self._unscored[learner] += 1
        elif deliveries.TABLE[outcome] is NextStep.DONE:
            self._unscored.pop(learner, None)
        if outcome in FRUITLESS and self._unscored[learner] == UNSCORED:
            did, todo = FRUITLESS[Verdict(outcome)]
            text = (
                f"{learner} {did} none of {UNSCORED} groups in a row ({why}): it is sent one now and then,"
                f" until it takes one; {todo}"
            )
            self.host.emit(events.Noted, level="warning", text=text)
        return outcome is Verdict.UNVERIFIED or self._unscored[learner] >= UNSCORED

    def _report_refused(self, learner: PeerId, outcome: Outcome, why: str) -> None:
        """Report why a group was refused, once a minute for each verdict."""
        if (now := self.host.now()) - self._refused.get(outcome, -math.inf) >= REPEAT_AFTER:
            self._refused[outcome] = now
            text = f"{learner} refused a group ({outcome.value}): {why or 'it gave no reason'}"
            self.host.emit(events.Noted, level="warning", text=text)

    async def _receive(self, learner: PeerId) -> None:
        """Wait for a heartbeat of a learner, for as long as a peer may be silent."""
        host = self.host
        until = host.steady() + host.config.run.pace.patience
        while learner not in host.roster and (left := until - host.steady()) > 0 and not host.stop.is_set():
            await host.changed(left)

    async def _destination(self, group: Group, bound: PeerId | None) -> PeerId | None:
        """Wait for the learner that the group is sent to: `bound`, which may have it already, while it is
        alive; else a learner with credit, or any when half of the group's window is over. None when the group
        is too old by then, or when the sampler is asked to stop while no learner has credit."""
        host = self.host
        while bound is not None and bound in host.roster:
            if host.roster.sent(bound, host.steady()):
                return bound
            if not await self._wait_unless_late(group):
                return None
        async with self._queue:
            while (learner := host.roster.choose(host.steady(), self.freshness.is_urgent(group))) is None:
                if host.stop.is_set() or not await self._wait_unless_late(group):
                    return None
            return learner

    async def _wait_unless_late(self, group: Group) -> bool:
        """Wait for a change in the host. False when the group is too old by then."""
        host = self.host
        await host.changed(min(host.config.run.pace.beat, host.roster.wait(host.steady())))
        return not self.freshness.is_late(group)

    async def _send(self, group: Group, learner: PeerId) -> tuple[Outcome, str]:
        """Send the group to a learner, once. Returns the outcome and the reason for it."""
        host, receipt, life = self.host, None, self._life(learner)
        times = msgspec.structs.replace(group.times, sent=host.now())
        try:
            frame = host.seal(msgspec.structs.replace(group, times=times))
            await self.outbox.sent(group.id, learner)
            patience = RECEIPT + len(frame) / stream_slots.RATE
            receipt = _receipt(await host.ports.mail.send(learner, Service.GROUPS, frame, patience))
        except NetError as error:
            return LOSSES.get(type(error), DeliveryLoss.UNREACHABLE), str(error)
        except wire.WireError as error:
            text = (
                f"a group is dropped: {error}; a run of smaller run.sampling.group_size or max_tokens could"
                " send it"
            )
            host.emit(events.Noted, level="error", text=text)
            return DeliveryLoss.TOO_LARGE, str(error)
        finally:
            host.roster.acknowledged(learner, receipt.credit if receipt is not None else None)
            host.move()
        host.status.lags(upload=host.now() - group.times.finished, versions=receipt.version - group.version)
        if (beat := host.roster.beat(learner)) is not None and beat.lag.inbox > 0:
            host.status.lags(inbox=beat.lag.inbox)  # a receipt does not have the expected wait of the group
        if receipt.verdict is Verdict.ADMIT:
            host.suspensions.back(learner, host.ports.me, times.sent)
        host.suspensions.record(learner, host.ports.me, receipt.until, reason_of(receipt.detail))
        ends = deliveries.TABLE[receipt.verdict] in (NextStep.DONE, NextStep.DROPPED)
        if receipt.unkept:
            remember(self._in_memory, group.id, (group, learner, life), IN_MEMORY)
            self._any_in_memory.set()
        elif ends and (receipt.kept or receipt.verdict is not Verdict.ADMIT):
            await self.outbox.done(group.id)  # else the next life of mine may have to deliver it again
        return receipt.verdict, receipt.detail

    def _delivered(self, delivery: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        self._places.release()
        self.host.status.inbox = len(self._deliveries)


def _receipt(answer: bytes) -> Receipt:
    """Decode a learner's answer. Raises BadReceipt."""
    try:
        return wire.decode(answer, Receipt)
    except wire.WireError as error:
        raise BadReceipt(str(error)) from error
