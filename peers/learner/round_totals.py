"""Exchanges the totals of a round's batches between its learners, before they compute gradients.

    my batch closes     -> `announce`: heartbeat with its totals (BatchRewards) -> the others close theirs
    theirs, with totals -> `collect` -> my gradient

Only objectives with a statistic over the round's whole batch (`of_round`: the spread of its rewards) need
this. A learner waits for the others at most as long as a round waits for its members. It leaves out learners
whose totals are missing by then; when such a learner takes part after all, `report_mismatch` says so. Not
handled here: the average, whose weights compensate for all other differences between batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from peers.runtime.host import Host
from swarm import events
from swarm.learn import objectives
from swarm.settings.config import Run
from swarm.types import BatchRewards, Beat, Group, PeerId

FAR = 1e100
"""Largest absolute value of a mean reward: the sum of a million of its squares is still finite."""


class RoundTotals:
    def __init__(self, host: Host, others: Callable[[], Collection[PeerId]]) -> None:
        """`others()` are the learners that can take part in a round now."""
        objective = host.config.run.objective
        self.host, self._others = host, others
        self.of_round = objectives.objective(objective.name, objective.options).of_round
        """Gradients take in the batches of the others."""
        self.collected: dict[PeerId, BatchRewards] = {}
        """Learner -> totals of its batch, as the gradient uses them."""

    def announce(self, groups: Sequence[Group], rewards: Sequence[tuple[float, ...]]) -> None:
        """Put my closed batch's totals into the next heartbeats."""
        if self.of_round:
            self.host.status.closed = objectives.Total.of([group.lengths for group in groups], rewards).closed

    async def collect(self, version: int) -> bool:
        """Wait for the totals of the others' batches of `version`. True when they differ from those collected
        before: a gradient that was computed with those is useless."""
        if not self.of_round:
            return False
        host, run, before = self.host, self.host.config.run, self.collected
        until = host.steady() + run.averaging.match
        while True:
            beats = {peer: beat for peer in self._others() if (beat := host.roster.beat(peer)) is not None}
            totals = {
                peer: closed
                for peer, beat in beats.items()
                if (closed := closed_of(beat, version, run)) is not None
            }
            # A learner one version behind is about to get the release; one further behind misses the round.
            late = [
                peer
                for peer, beat in beats.items()
                if peer not in totals and version - 1 <= beat.version <= version
            ]
            left = until - host.steady()
            if not late or left <= 0 or host.stop.is_set():
                break
            await host.changed(left)
        self.collected = totals
        return totals != before

    def report_mismatch(self, version: int, members: Collection[PeerId]) -> None:
        """Emit a note when a version's members are not the learners whose totals its gradient used."""
        if self.of_round and self.collected.keys() != {*members} - {self.host.ports.me}:
            text = (
                f"version {version} was averaged over {len(members)} learners, and its advantages were scaled"
                f" by the batches of {1 + len(self.collected)}: a heartbeat was late, or a learner came or"
                " left in between"
            )
            self.host.emit(events.Noted, level="info", text=text)

    def clear(self) -> None:
        """Forget all totals: the batch is gone."""
        self.collected, self.host.status.closed = {}, None


def closed_of(beat: Beat, version: int, run: Run) -> BatchRewards | None:
    """The totals of the batch of `version` that a learner's heartbeat claims; None when there are none, or
    when no batch of this run can have them."""
    closed = beat.closed
    if closed is None or beat.version != version:
        return None
    groups, completions = closed.groups.count, closed.completions.count
    sizes = (
        1 <= groups <= run.batch.groups
        and 0 <= closed.live <= completions == groups * run.sampling.group_size
    )
    numbers = all(
        abs(one.mean) <= FAR and 0 <= one.square <= completions * FAR**2
        for one in (closed.groups, closed.completions)
    )
    return closed if sizes and numbers else None
