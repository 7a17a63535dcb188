"""A learner's gradient, averaged with those of the others, or a step alone that the others yield to.

    gradient of a batch -> a learner syncs?   wait for it       (swarm.core.agreement.state_sync)
                        -> a round            the mean of its members, the marks of their groups
                        -> no round           the learners vote for one that steps alone, the oldest that
                                              waits; the others keep their gradients

Not handled here: how members find each other (the Averager port), which votes are enough
(peers.runtime.releases.agreement).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.agreement.own_release import OwnRelease
from peers.learner.agreement.rechecks import BatchRechecks
from peers.learner.agreement.state_transfer import StateTransfer
from peers.learner.checkpoints import Progress
from peers.learner.step_report import StepReport
from peers.learner.trained_groups import marks
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.electorate import PAIR, favourite
from swarm.core.agreement.rounds import Cause, State
from swarm.core.agreement.trained import marks_of
from swarm.core.gradient_checks.step_recipe import MeanRecipe
from swarm.core.intake.batcher import Waiting
from swarm.learn.learners.base_learner import Gradient
from swarm.membership.identity import human_name
from swarm.net.ports import Average, NotFinite, RoundLost
from swarm.types import Digest, PeerId

BREAKS = 3
"""Rounds of one version that may break before a learner steps alone: each costs at most the round's
deadline."""


class CommonRound:
    def __init__(
        self,
        host: Host,
        other_learners: OtherLearners,
        own_release: OwnRelease,
        report: StepReport,
        rechecks: BatchRechecks,
        transfer: StateTransfer,
        version: Callable[[], int],
    ) -> None:
        """`version()` is this learner's version."""
        self._host, self._other_learners, self._own_release = host, other_learners, own_release
        self._report, self._version, self._rechecks = report, version, rechecks
        self._transfer = transfer
        self.members: frozenset[PeerId] = frozenset()
        """Of the last round; me where I was alone."""
        self.marks: Mapping[PeerId, bytes] = {}
        """Marks of the groups of those members whose gradients count."""
        self.counts = True
        """My gradient does: no other member's is of one of its groups, and it is not left out."""
        self.recipe: MeanRecipe | None = None
        """How the mean was made; None for a learner alone, or where it cannot be recomputed."""
        self._false: frozenset[PeerId] = frozenset()
        """Members that reduced nothing in the last round, since most others doubt their means."""
        self._through: frozenset[PeerId] = frozenset()
        """Members to which p2pd carried this learner's parts in the last round."""
        self._breaks, self._patient_until = 0, 0.0
        """Rounds that broke, and until when I wait for others' gradients."""
        self._passed = set[str]()
        """Learners, or bytes, that were chosen and did not come in a time-out; a learner until it releases
        again."""
        self._gave_way = False
        """This learner left the last round before it began: the others wait for one that waits for its
        state."""

    def begin(self, learnt_ahead: float) -> None:
        """There is a new gradient, for which it took so many seconds beside an earlier round."""
        self._breaks, self._patient_until = 0, self._host.steady() + 2 * learnt_ahead

    async def average(self, gradient: Gradient, batch: Sequence[Waiting]) -> Cause:
        """Average the gradient over the learners that take part; mine counts alone where none is ready.
        Raises NotFinite."""
        host, start = self._host, self._host.now()
        learns = self._report.seconds.get("learn", 0.0)
        ahead, against = self._own_release.is_ahead, self._rechecks.against()
        await self._other_learners.all_here(learns, ahead, against)
        others = self._others()
        # the others cannot use a gradient of weights that are not the release's
        if self._own_release.is_overtaken():
            return Cause.AHEAD_SEEN
        self._rechecks.show(self._own_release.weights, gradient)
        self.members, self.marks, self.counts = frozenset([host.ports.me]), {}, True
        self.recipe = None
        partners = self._other_learners.to_meet() if others else ()
        gives_up = self._breaks > (0 if self._others_voted() else BREAKS)
        if gives_up or not partners or self._is_bound():
            return await self._without_round()
        self._rechecks.before_round(partners)
        try:
            outcome = await self._meet(gradient, batch, partners, self._other_learners.worth_waiting(learns))
        except NotFinite:
            raise  # no round helps
        except RoundLost as error:
            self._breaks += 1
            host.emit(events.RoundBroke, version=self._version(), reason=str(error))
            return Cause.AHEAD_SEEN if self._own_release.is_ahead() else Cause.ROUND_BROKE
        self._report.add("average", host.now() - start)
        if outcome is None:
            # a learner that had its gradient before the round waits for those that compute theirs
            early = host.steady() < self._patient_until and self._other_learners.are_learning()
            again = early or self._gave_way or self._transfer.comes_first
            return Cause.ROUND_BROKE if again else await self._without_round()
        await self._averaged(outcome, gradient)
        return Cause.AVERAGED

    async def join(self, gradient: Gradient, batch: Sequence[Waiting]) -> Cause:
        """Be in the others' round of my version, for which they waited: with a gradient, or with that of no
        batch. I get the mean, and step as they do. Raises NotFinite."""
        others, own, start = self._other_learners, self._own_release, self._host.now()
        partners = [*others.partners(), *others.syncing()] if self._others() else []
        if own.is_overtaken() or not partners:
            return Cause.AHEAD_SEEN if own.is_overtaken() else Cause.NO_PEER_CAME
        try:
            outcome = await self._meet(gradient, batch, partners, others.longest_wait())
        except NotFinite:
            raise
        except RoundLost as error:
            self._host.emit(events.RoundBroke, version=self._version(), reason=str(error))
            outcome = None
        if outcome is None:
            return Cause.AHEAD_SEEN if own.is_ahead() else Cause.NO_PEER_CAME
        self._report.add("average", self._host.now() - start)
        await self._averaged(outcome, gradient)
        return Cause.AVERAGED

    def _others(self) -> Sequence[PeerId]:
        """The other learners that can take part."""
        others = self._other_learners.ready()
        if len(others) == 1 and others[0] in self._rechecks.against():
            return ()  # of two learners neither is a majority: the one with the proof continues alone
        return others

    async def _meet(
        self, gradient: Gradient, batch: Sequence[Waiting], partners: Sequence[PeerId], waits: float
    ) -> Average | None:
        """One round with `partners`, which waits `waits` seconds for their gradients where that is more than
        the run's match window; see the Averager port."""
        host, settings = self._host, self._host.config.run.averaging
        patience, self._gave_way = max(0.0, waits - settings.match), False
        watch = asyncio.ensure_future(self._watch(partners))
        try:
            with self._other_learners.meeting() as members:
                outcome = await host.ports.averager.average(
                    self._version(),
                    [gradient.vector],
                    gradient.weight,
                    partners,
                    settings.deadline or host.config.run.window.seconds,
                    marks(batch),
                    self._own_release.weights,
                    patience,
                )
                members.update(outcome.members if outcome is not None else ())
        finally:
            watch.cancel()
        return outcome

    async def _watch(self, partners: Sequence[PeerId]) -> None:
        """The round stops waiting for the gradient of a learner that is lost, leaves, restarts or steps on
        meanwhile; and it is left where all others wait for a learner that waits for this one's state."""
        host, others, beat = self._host, self._other_learners, self._host.config.run.pace.beat
        awaited, since = {*partners}, host.steady()
        while awaited:
            await host.changed(beat)
            gone = awaited - others.may_meet()
            if not (self._transfer.comes_first and awaited - gone <= others.waiting()):
                since = host.steady()
            elif host.steady() - since > beat:
                gone, self._gave_way = awaited, True
            if gone:
                host.ports.averager.gone(gone)
                awaited -= gone

    async def _averaged(self, outcome: Average, mean: Gradient) -> None:
        """Keep the result of a round, whose mean took my gradient's place, and emit its events."""
        host, self.members, self.marks = self._host, outcome.members, outcome.marks
        self.counts, self.recipe = host.ports.me in outcome.marks, outcome.recipe
        self._report_members(outcome.false, outcome.through)
        host.traffic.averaged(outcome.exchanged)
        host.emit(
            events.Averaged,
            version=self._version(),
            members=tuple(sorted(outcome.members)),
            seconds=round(outcome.seconds, 3),
            scaled={peer: float(f"{share:.3g}") for peer, share in sorted(outcome.scaled.items())},
        )
        self._other_learners.set_state(State.STEPPING)  # a recheck may take long
        await self._rechecks.after_round(outcome, self._own_release.weights, mean.vector)

    def makes(self, batch: Sequence[Waiting]) -> Progress:
        """The content of a step along the mean; `batch` is this learner's."""
        groups = sum(len(marks_of(its)) for its in self.marks.values()) or len(batch) * len(self.members)
        return Progress(self._own_release.weights, len(self.members), groups, stepped=True)

    def _report_members(self, false: frozenset[PeerId], through: frozenset[PeerId]) -> None:
        """Report the members that reduce nothing from this round on, and those whose port for parts is
        unreachable."""
        for peer in false - self._false:
            reason = "its means leave out the gradients of most others: it reduces nothing"
            self._host.emit(events.Rejected, sender=peer, kind="mean", reason=reason)
        for peer in through - self._through:
            text = f"p2pd carries parts of rounds to {human_name(peer)}: its peer.listen.parts is not reached"
            self._host.emit(events.Noted, level="info", text=text)
        self._false, self._through = false, through

    def _others_voted(self) -> bool:
        votes = self._host.releases.agreement.of(self._version() + 1, self._own_release.weights)
        return bool(votes.keys() - {self._host.ports.me})

    def _is_bound(self) -> bool:
        """Does my vote for another learner's step bind me?"""
        return self._host.releases.agreement.bound(self._version() + 1, self._own_release.weights)

    async def _without_round(self) -> Cause:
        """No round of those that are ready succeeded: the learners vote for one that steps alone, the others
        keep their gradients."""
        host, agreement, me = self._host, self._host.releases.agreement, self._host.ports.me
        version, parent, until = self._version() + 1, self._own_release.weights, math.inf
        self._passed.discard(self._publisher())
        while not (self._own_release.is_overtaken() or host.stop.is_set()):
            if until == math.inf and not self._is_bound():
                agreement.vote(version, parent, self._choice(version, parent))
                until = host.steady() + host.config.run.release.timeout
            waits = host.steady() < until
            if agreement.agrees(version, parent, me, waits=waits):
                return Cause.ALONE
            if not waits:
                votes = {*agreement.of(version, parent).values()} - {me}
                self._passed |= {one for one in votes if agreement.agrees(version, parent, one, waits=False)}
                agreement.vote_ahead()
                return Cause.NO_PEER_CAME
            await host.changed(min(until - host.steady(), host.config.run.pace.beat))
        return Cause.AHEAD_SEEN if self._own_release.is_overtaken() else Cause.NO_PEER_CAME

    def _choice(self, version: int, parent: Digest) -> str:
        """The choice of several others, or of the other one of two; or the oldest learner that waits with a
        gradient, last the one that made this version, so that none makes all. Those that did not come when
        they were chosen are passed over."""
        agreement, me, last = self._host.releases.agreement, self._host.ports.me, self._publisher()
        votes = {peer: one for peer, one in agreement.of(version, parent).items() if peer != me}
        choice = favourite(votes, agreement.order(votes))
        enough = [*votes.values()].count(choice) > 1 or len(agreement.electors()) <= PAIR
        if choice and enough and choice not in self._passed:
            return choice
        waiting = {me, *self._other_learners.waiting()} - self._passed
        return min(agreement.order(waiting), key=last.__eq__)

    def _publisher(self) -> PeerId:
        """Of my version."""
        release = self._host.releases.named(self._version(), self._own_release.weights)
        return release.publisher if release is not None else self._host.ports.me
