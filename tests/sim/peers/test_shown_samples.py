"""What a learner shows of its groups fits a gossiped event, and is not more than anybody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import msgspec
import pytest
from still_host import membership, still_host

from peers.intake.inbox import LearnerInbox, TaskAndRewards
from swarm import events
from swarm.frames import wire
from swarm.journal import from_line, to_line
from swarm.limits import EVENT_LIMIT, cut
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Config, DelayLaw, Pace, Run
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.tasks import catalog as tasks
from swarm.types import Array, Digest, Group, PeerId, Task, Times

ME, SAMPLER = PeerId("12D3KooW" + "m" * 44), PeerId("12D3KooW" + "s" * 44)
TIMES = Times(released=0.0, fetched=0.0, used=0.0, finished=0.0, sent=0.0)


def group_of(size: int) -> Group:
    """A group with completions of one token each."""
    tokens = Array(dtype="int32", shape=(size,), data=bytes(4 * size))
    return Group(
        id="a" * 32,
        sampler=SAMPLER,
        task=1,
        version=1234,
        weights=Digest("0" * 64),
        draw=0,
        seed=1,
        lengths=(1,) * size,
        tokens=tokens,
        logprobs=tokens,
        rewards=(1.0,) * size,
        times=TIMES,
    )


def showing(
    text: str, prompt: str, play: Callable[[LearnerInbox, Group], None], size: int, beat: float = 1.0
) -> list[events.Shown]:
    """What a member of a private run shows while `play` goes on; every event is sealed as it is for
    gossip."""
    told: list[events.Shown] = []

    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.05), 1e6, Random(1))
        async with MemoryNetwork(Random(2), links) as network:
            config = Config(run=Run(pace=Pace(beat=beat, patience=1000.0)))
            mine = membership(ME, Role.LEARNER)
            host = still_host(network, ME, Role.LEARNER, config, private=True, membership=mine)
            source = tasks.source(config.run.task, 1)
            inbox = LearnerInbox(
                host,
                source,
                SimpleNamespace(vocabulary=8, decode_batch=lambda rows: [text] * len(rows)),
                lambda: 1,
                lambda: 1,
            )
            group = group_of(size)
            exercise = TaskAndRewards(
                Task(environment="toy", index=1, prompt=prompt, answer=prompt), group.rewards
            )
            inbox._tasks[group.id] = exercise

            def keep(event: events.Event) -> None:
                if isinstance(event, events.Shown):
                    assert len(host.seal([event], EVENT_LIMIT)) < EVENT_LIMIT.sealed
                    assert len(wire.encode(event)) < EVENT_LIMIT.sealed - 600, "a bundle takes it"
                    told.append(event)

            host.bus.add(keep)
            for _ in range(30):
                play(inbox, group)
                await asyncio.sleep(0.1)

    run(main())
    return told


@pytest.mark.parametrize("text", ["x" * 5000, "漢字" * 100, "🦦" * 200, ""])
@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_group_of_any_size_and_script_fits_an_event(text: str, size: int) -> None:
    figures = [0.123456789 * k - 1.0 for k in range(size)]
    event = showing(text, "なぜ？" * 1000, lambda inbox, group: inbox.show(group, figures, figures), size)[0]
    shown = len(event.completions)
    assert shown == len(event.rewards) == len(event.advantages) == len(event.weights) == min(size, 16)
    assert event.advantages[:2] == tuple(round(figure, 4) for figure in figures[:2])
    assert all(text.startswith(completion) for completion in event.completions)
    assert min(len(completion.encode()) for completion in event.completions) >= min(len(text.encode()), 80)


def test_a_fast_learner_shows_one_group_a_second_and_a_slow_one_a_heartbeat() -> None:
    def often(beat: float) -> int:
        return len(showing("x", "y", lambda inbox, group: inbox.show(group, (0.0,), (1.0,)), 1, beat))

    assert (often(0.5), often(1.0), often(2.0)) == (3, 3, 2)


def test_figures_that_are_no_numbers_are_not_told() -> None:
    event = showing("x", "y", lambda inbox, group: inbox.show(group, (float("nan"),), (1.0,)), 1)[0]
    assert event.advantages == event.weights == () and event.completions == ("x",)
    assert from_line(to_line(event)) == event == msgspec.structs.replace(event)


def test_a_cut_never_splits_a_character() -> None:
    assert cut("a\ud800b", 3) == "a?b"
    assert [cut("a漢🦦", size) for size in range(10)] == [
        "",
        "a",
        "a",
        "a",
        "a漢",
        "a漢",
        "a漢",
        "a漢",
        "a漢🦦",
        "a漢🦦",
    ]
