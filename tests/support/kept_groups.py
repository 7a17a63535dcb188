"""Learners with groups that they have kept: what is in their logs and memory."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from nouns import group
from still_host import still_host

from peers.intake.inbox import LearnerInbox, Scored, TaskAndRewards
from peers.learner.trained_groups import TrainedGroups
from swarm.core.intake.batcher import Waiting
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Config, DelayLaw, Run, Window
from swarm.sim.links import SimLinks
from swarm.tasks.toy import Toy
from swarm.types import Digest, Task


def memory() -> MemoryNetwork:
    return MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1)))


def trained_in(
    network: MemoryNetwork, folder: Path | None, at: list[int], *under_way: Waiting, seconds: float = 1e9
) -> TrainedGroups:
    config = Config(run=Run(window=Window(versions=2, seconds=seconds)))
    host = still_host(network, "learner-0", Role.LEARNER, config)
    decoder: Any = SimpleNamespace(vocabulary=8, decode_batch=list)
    inbox = LearnerInbox(host, Toy(1, {}), decoder, lambda: at[0], lambda: 1, keeper=lambda: trained)
    trained = TrainedGroups(host, inbox, lambda: (at[0], digest(at[0])), lambda: under_way, folder)
    return trained


def digest(version: int) -> Digest:
    return Digest(f"{version:064}")


def scored(trained: TrainedGroups, *numbers: int) -> list[Scored]:
    """Groups of these numbers as a batch that the learner took."""
    tasks = {number: TaskAndRewards(Task("toy", number, "", ""), (1.0, 0.0)) for number in numbers}
    trained._inbox._tasks |= {group(number).id: task for number, task in tasks.items()}
    return [(Waiting(group(number), 0.0), task) for number, task in tasks.items()]


def waiting(trained: TrainedGroups) -> list[int]:
    """The numbers of the groups that wait for a batch."""
    return sorted(each.draw for each in trained._inbox.batcher.groups())


def heard(trained: TrainedGroups, *kinds: type[Any]) -> list[Any]:
    """What it tells from here on, of these kinds."""
    told = list[Any]()
    trained._host.bus.add(lambda event: told.append(event) if isinstance(event, kinds) else None)
    return told
