"""Exchanges the totals of a round's batches between its learners, before they compute gradients.

    my batch closes -> `tell`: heartbeat with its BatchRewards -> the others close theirs
    theirs          -> `hear` -> my gradient

Only objectives that take something over the round's whole batch (`of_round`: the spread of its rewards) need
it. A learner waits for the others at most as long as a round waits for its members; who is not heard by then
is left out, and `note` says so when it took part after all. Not handled here: the average, whose weights make
up for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from peers.runtime.host import Host
from swarm import events
from swarm.config import Run
from swarm.learn import objectives
from swarm.types import BatchRewards, Beat, Group, PeerId

FAR = 1e100
"""No reward is further from 0: squares of it, a million times, are still numbers."""


class BatchClosing:
    def __init__(self, host: Host, others: Callable[[], Collection[PeerId]]) -> None:
        """`others` are the learners that can take part in a round now."""
        objective = host.config.run.objective
        self.host, self._others = host, others
        self._of_round = objectives.trainable(objective.name, objective.options).of_round
        self.heard: dict[PeerId, BatchRewards] = {}
        """Batches that the gradient takes in."""

    def tell(self, groups: Sequence[Group], rewards: Sequence[tuple[float, ...]]) -> None:
        """My batch is closed: the next heartbeats say what it is made of."""
        if self._of_round:
            self.host.status.closed = objectives.Total.of([group.lengths for group in groups], rewards).closed

    async def hear(self, version: int) -> bool:
        """Wait for the others' batches of `version`. True when they are not those heard before: a gradient is
        of no use then."""
        if not self._of_round:
            return False
        host, run, before = self.host, self.host.config.run, self.heard
        until = host.now() + run.averaging.match
        while True:
            beats = {peer: beat for peer in self._others() if (beat := host.roster.beat(peer)) is not None}
            told = {
                peer: closed
                for peer, beat in beats.items()
                if (closed := closed_of(beat, version, run)) is not None
            }
            # Who is a version behind is about to learn of the release; who is further behind misses this
            # round.
            late = [
                peer
                for peer, beat in beats.items()
                if peer not in told and version - 1 <= beat.version <= version
            ]
            left = until - host.now()
            if not late or left <= 0 or host.stop.is_set():
                break
            await host.changed(left)
        self.heard = told
        return told != before

    def note(self, version: int, members: Collection[PeerId]) -> None:
        """Say it when a version was averaged over others than its gradient took in."""
        if self._of_round and self.heard.keys() != {*members} - {self.host.ports.me}:
            text = (
                f"version {version} was averaged over {len(members)} learners, and its advantages were scaled"
                f" by the batches of {1 + len(self.heard)}: a heartbeat was late, or a learner came or left"
                " in between"
            )
            self.host.emit(events.Noted, level="info", text=text)

    def forget(self) -> None:
        """There is no batch any more."""
        self.heard, self.host.status.closed = {}, None


def closed_of(beat: Beat, version: int, run: Run) -> BatchRewards | None:
    """The batch of `version` that a learner says it has closed; None when there is none, or no batch of this
    run can be so."""
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
