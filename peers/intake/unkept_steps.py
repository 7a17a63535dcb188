"""Steps of learners whose disks refused them, in the memory of a seed.

    a learner's disk refuses a step -> service `unkept`: all that it lacks, before the release of that step
    a learner takes a release       -> service `trained`: the groups in it and in those before it

So a learner that dies before its disk takes the steps learns of them when it has loaded a release. Which
release a step made is for the learner to find: a seed may not have received it yet. Bounded: a seed keeps the
last report of each of the last LEARNERS learners. Not handled here: the groups' further handling
(peers.learner.trained_groups).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from peers.runtime.host import Host
from swarm.frames import wire
from swarm.limits import FRAME_LIMIT, remember
from swarm.net.ports import Refused, read_question
from swarm.protocol import Service
from swarm.types import PeerId, TrainedQuery, TrainedStep, TrainedSteps

LEARNERS = 64
"""Learners whose steps a seed remembers: as many as a round has."""

TOLD, TOLD_BYTES = 256, FRAME_LIMIT // 2
"""Steps in one answer, and bytes of their marks: a window has 64 versions by default."""


class UnkeptSteps:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._steps = OrderedDict[PeerId, tuple[TrainedStep, ...]]()

    async def serve(self) -> None:
        await self._host.ports.mail.serve(Service.UNKEPT, self._accept)
        await self._host.ports.mail.serve(Service.TRAINED, self._answer)

    async def _accept(self, sender: PeerId, message: bytes) -> bytes:
        steps = read_question(message, TrainedSteps).steps
        self._check(sender)
        own = newest(step for step in steps if sender in step.members)  # a peer reports its own steps alone
        remember(self._steps, sender, own, LEARNERS)
        return b""

    async def _answer(self, sender: PeerId, question: bytes) -> bytes:
        since = read_question(question, TrainedQuery).since
        self._check(sender)
        steps = [step for its in self._steps.values() for step in its if step.version >= since]
        return wire.encode(TrainedSteps(steps=newest(sorted(steps, key=lambda step: step.version))))

    def _check(self, sender: PeerId) -> None:
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run exchange which groups were trained")


def newest(steps: Iterable[TrainedStep]) -> tuple[TrainedStep, ...]:
    """The last of these steps, as many as one message has."""
    found = [*steps][-TOLD:]
    while sum(len(step.groups) for step in found) > TOLD_BYTES:
        del found[0]
    return tuple(found)
