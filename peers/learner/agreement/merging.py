"""Merges the line of versions that this learner trained into the one that counts, with
run.release.fork = "merge".

    a better release that this line is no part of -> its trained weights are kept (here)
    the release, with its learner's whole state -> loaded, and the others wait (catch_up.py)
    both                                         -> their mean, by the groups that only one was trained on:
                                                    the next version, released as any; it names both parents

The learner whose line gives way merges: only it has both policies in float32, and it has the moments of the
line that counts. One learner of a part does it, the first by the order of publishers among those that are at
the last version of their line; the others see that their line is part of the next release, and follow it.
When it is gone the next one does it. What holds in any order of events: a line that a release is made of is
not merged again, and of two releases of one version one counts, as ever; the learner of the other one merges
anew, or finds that nothing of it is missing. A fork that is too old, or whose learners are gone, is resolved
by the rule of run.release.fork = "longest", where the groups come back (peers.learner.trained_groups). Not
handled: a line of one version. A race of two lone steps leaves such lines, and the groups of one step come
back as soon as a merge comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.agreement.own_release import Had, OwnRelease
from peers.learner.checkpoints import Progress
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.lineage import Fork, Point
from swarm.core.agreement.releases import publishers
from swarm.core.agreement.solo_turns import GOSSIP_SECONDS
from swarm.learn.learners.base_learner import BaseLearner
from swarm.net.ports import NetError
from swarm.protocol import Kind
from swarm.storage.blocks import Damaged
from swarm.storage.weights import Weights
from swarm.types import Merge, Release

LEAST = 2
"""Versions of a line that is merged, at least."""


class Mine(NamedTuple):
    """My policy, as it was before I took another one."""

    point: Point
    masters: Mapping[str, Tensor]


class Merging:
    def __init__(
        self, host: Host, learner: BaseLearner, own_release: OwnRelease, other_learners: OtherLearners
    ) -> None:
        self._host, self._learner = host, learner
        self._own_release, self._other_learners = own_release, other_learners
        self._mine: Mine | None = None
        self._fork: Fork | None = None
        """That the last merge ended."""

    async def keep(self, had: Had) -> None:
        """Keep my policy if it can be merged with the release that I am about to take, once it is my turn."""
        host, until = self._host, self._host.steady() + self._other_learners.most
        while await self._is_mergeable(had):
            if self._is_first_at(had.released) or host.steady() >= until or host.stop.is_set():
                return await self._copy(had.released)
            await host.changed(host.config.run.pace.beat)
        self._mine = None
        return None

    async def merge(self, taken: Release) -> Progress | None:
        """Merge the kept weights with the loaded release, into the next version; returns the content of that
        version. None where nothing can be merged: then the release stays as it is. The others wait until
        `released`."""
        if (mine := self._mine) is None or (fork := await self._young_fork(mine.point, taken)) is None:
            self._mine = None
            return None
        self._other_learners.set_syncing(True)
        await self._host.ports.work.run(Kind.LOAD, self._learner.merge, mine.masters, fork.share)
        self._fork = fork
        merged = Merge(version=mine.point[0], weights=mine.point[1])
        return Progress(parent=taken.weights, learners=1, groups=fork.groups, merged=merged)

    async def released(self) -> None:
        """Wait until the merge is released, or another release is to be taken: then it is tried again."""
        own, host, fork = self._own_release, self._host, self._fork
        while own.is_publishing() and not own.is_overtaken():
            await host.changed(host.config.run.pace.beat)
        # the others get the release before they see this learner as ready: else they would begin a round
        await host.ports.clock.sleep(GOSSIP_SECONDS)
        self._other_learners.set_syncing(False)
        if fork is not None and own.is_settled():
            self._mine = None
            host.emit(
                events.Forked,
                version=self._learner.version,
                since=fork.since,
                versions=len(fork.lost),
                groups=fork.groups,
                first=fork.lost[-1][1],
                share=round(fork.share, 4),
            )

    async def _is_mergeable(self, had: Had) -> bool:
        run, own = self._host.config.run, self._own_release
        release = own.awaited()
        if run.release.fork != "merge" or had.version <= 0 or release is None or had.is_of_its_round(release):
            return False
        return await self._young_fork(had.released, release) is not None

    async def _young_fork(self, mine: Point, theirs: Release) -> Fork | None:
        """Where these lines part, if that is worth a merge and younger than the window."""
        releases, window = self._host.releases, self._host.config.run.window
        fork = await releases.lines.fork(mine, theirs)
        if fork is None or len(fork.lost) < LEAST or not fork.groups:
            return None
        since = min(map(releases.released_here, releases.known(*fork.lost[-1])), default=-math.inf)
        young = self._host.now() - since < window.seconds and theirs.version - fork.since < window.versions
        return fork if young else None

    def _is_first_at(self, point: Point) -> bool:
        me, incarnation = self._host.ports.me, self._other_learners.incarnation
        here = {me, *self._other_learners.at_point(point)}
        return publishers([(incarnation(peer), peer) for peer in here])[0] == me

    async def _copy(self, point: Point) -> None:
        """Keep this learner's trained weights as of a release; later steps of its own are not in its line."""
        if self._mine is not None and self._mine.point == point:
            return  # it was tried before
        releases, self._mine = self._host.releases, None
        if (release := releases.named(*point)) is None:
            return
        try:
            weights = await releases.fetch(release)
            masters = await self._host.ports.work.run(Kind.COPY, self._masters_at, weights)
        except NetError:
            return
        except Damaged:  # the next try fetches it from others
            await releases.lose(release.weights)
            return
        self._mine = Mine(point, masters)

    def _masters_at(self, weights: Weights) -> Mapping[str, Tensor]:
        restore = self._learner.restorer()
        self._learner.load(weights)
        masters = self._learner.masters()
        restore()
        return masters
