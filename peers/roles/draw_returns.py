"""Settles which draws of a release came to no learner, for all learners of a run (swarm.core.returns).

    judged groups -> Returns;  a release left the window, and LEFT passed -> the other learners are asked
        all who were there for all of it say what came to them -> settled -> who returns too little is told
        one is away, silent, or began later                    -> nobody is blamed: the release is forgotten

Of what came to nobody this learner looks itself whether it can be sampled: an exercise that cannot be made,
or whose prompt is too long for the model, is no gap.

Each learner counts for itself. Nothing of it outlives a learner's process: one that comes back begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from peers.runtime.host import Host
from swarm import events, wire
from swarm.core.admission import released_here
from swarm.core.returns import DrawsCame, DrawsQuery, OpenRelease, Returns, missing
from swarm.net.ports import NetError, Refused, read_question
from swarm.protocol import Service
from swarm.types import Digest, Group, PeerId

LEFT = 3.0
"""Times `run.pace.patience`: a group that met a silent learner goes to another one after about one; others
have the same time again once the release has left the window."""

ASKED = 5.0
"""Seconds for an answer of a learner."""


LAPSES = 2.0
"""Times `run.window.seconds` without a release that is settled, after which nobody is refused. While versions
come, each leaves the window within one."""


LOOKED = 512
"""Missing draws of a sampler under one release that are looked at: of more each counts as missing. A tenth of
what was due is as many where a sampler had more than 5,000 groups of one release."""

IsSampled = Callable[[Digest, PeerId, int], Awaitable[bool]]
"""(weights, sampler, number of a draw) -> whether it can be sampled."""


class DrawReturns:
    def __init__(self, host: Host, version: Callable[[], int], is_sampled: IsSampled) -> None:
        self._host, self._version, self._is_sampled = host, version, is_sampled
        self.returns = Returns()
        sampling = host.config.run.sampling
        limit = wire.group_limit(sampling.group_size, sampling.max_tokens, sampling.heads)
        self._fits = limit.inflated <= limit.sealed
        """Whether any group of this run fits a message: else honest samplers send some to nobody."""
        self._since = host.now()
        self._closed: dict[Digest, float] = {}
        """Release that left the window -> when that was seen."""
        self._settled: set[Digest] = set()
        """Those of them that are settled here, and may not be at others."""
        self._judged = self._since
        """When a release was settled last."""
        self._learners: dict[PeerId, float] = {}
        """Other learners -> when each was alive last."""

    def objection(self, sampler: PeerId) -> str | None:
        """Why a sampler's groups teach nothing now, or None. Where all are refused no version comes, and no
        release leaves the window: what was found before lapses."""
        lapsed = self._host.now() - self._judged > LAPSES * self._host.config.run.window.seconds
        return None if lapsed or not self._fits else self.returns.objection(sampler)

    def came(self, group: Group) -> None:
        """A group came that is its sampler's draw of a known release."""
        host = self._host
        known, same = host.releases.known(group.version, group.weights), host.releases.candidates.by_weights()
        released = released_here(group, known, host.releases.released_here)
        began = min(map(host.releases.released_here, same.get(group.weights, ())), default=released)
        if not self.returns.came(group, released, began, host.now()):
            self._since = host.now()

    async def run(self) -> None:
        await self._host.ports.mail.serve(Service.DRAWS, self._tell)
        async with asyncio.TaskGroup() as settlements:
            while True:
                await self._host.ports.clock.sleep(self._left() / 3)
                for due in self._look():
                    settlements.create_task(self._settle(*due))

    def _look(self) -> list[tuple[Digest, OpenRelease, float]]:
        """The releases that left the window long enough ago, as `_settle` takes them."""
        host, now, due = self._host, self._host.now(), list[tuple[Digest, OpenRelease, float]]()
        self._learners |= {peer: now for peer in host.roster.learners() if peer != host.ports.me}
        for weights, its in self.returns.open.items():
            if not self._has_left(its, now):
                self._closed.pop(weights, None)  # a later version has the same weights
            elif now - self._closed.setdefault(weights, now) >= self._left() and weights not in self._settled:
                self._settled.add(weights)
                due.append((weights, its, self._closed[weights] - self._left()))
        for weights, at in self._closed.items():
            if now - at >= 4 * self._left():
                self.returns.forget(weights)
        self._closed = {weights: at for weights, at in self._closed.items() if weights in self.returns.open}
        self._settled &= self._closed.keys()
        oldest = min((its.began for its in self.returns.open.values()), default=now)
        self._learners = {peer: at for peer, at in self._learners.items() if at >= oldest}
        return due

    def _has_left(self, its: OpenRelease, now: float) -> bool:
        window, behind = self._host.config.run.window, self._version() - its.version
        return behind > window.versions or (behind > 0 and now - its.released > window.seconds)

    async def _settle(self, weights: Digest, its: OpenRelease, until: float) -> None:
        """What came until then makes the draws below it due. Who answers late delays no other release."""
        host = self._host
        there = [peer for peer, at in self._learners.items() if at >= its.began]
        told = await asyncio.gather(*(self._ask(peer, weights, until, its.began) for peer in there))
        mine = self.returns.came_of(weights, until)
        others = {peer: came for peer, came in zip(there, told, strict=True) if came is not None}
        if len(others) < len(there) or self._since > its.began:
            return
        lost = missing(mine, others)
        unsampled = {sampler: await self._unsampled(weights, sampler, lost[sampler]) for sampler in lost}
        self._judged = host.now()
        for sampler in self.returns.settle(mine, others, unsampled):
            reason = str(self.returns.objection(sampler))
            host.emit(events.Rejected, sender=sampler, kind=Service.DRAWS, reason=reason)

    async def _unsampled(self, weights: Digest, sampler: PeerId, lost: Sequence[int]) -> set[int]:
        """Which of a sampler's missing draws nobody can sample."""
        found = set[int]()
        for number in lost[:LOOKED]:
            await asyncio.sleep(0)  # others have a turn between two quick ones
            if not await self._is_sampled(weights, sampler, number):
                found.add(number)
        return found

    async def _ask(self, learner: PeerId, weights: Digest, until: float, began: float) -> DrawsCame | None:
        """What came to another learner; None where it does not say, or was not there for all of it."""
        host = self._host
        question = wire.encode(DrawsQuery(weights=weights, before=host.now() - until))
        try:
            answer = await host.ports.mail.send(learner, Service.DRAWS, question, ASKED)
            came = wire.decode(answer, DrawsCame)
        except NetError:
            return None
        except wire.WireError as error:
            host.emit(events.Rejected, sender=learner, kind=Service.DRAWS, reason=str(error))
            return None
        return came if came.since - host.roster.ahead(learner) <= began else None

    async def _tell(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, DrawsQuery)
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run are told which draws came")
        came = self.returns.came_of(asked.weights, self._host.now() - asked.before)
        more = self.returns.is_beyond(asked.weights)
        return wire.encode(DrawsCame(since=self._since, samplers=tuple(came), more=more))

    def _left(self) -> float:
        return LEFT * self._host.config.run.pace.patience
