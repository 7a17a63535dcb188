"""Row `lines`: a swarm of real processes behind lines of 20 Mbit/s: seconds until the last sampler has a
version, beside those of one whole copy over one line; bytes that the publisher sends; a round of averaging; a
joiner's first version; a publisher that is killed while the others fetch its release.

A random Llama takes real steps at lr 1e-6. Its rewards (the share of digits) are what a random model can
earn: without them there is no gradient. Not handled here: delay and loss, and hundreds of peers
(configs/scenarios).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from lab.figures.table import Figure, Unmeasured
from lab.swarms.local_swarm import LocalSwarm, Place
from lab.swarms.shaped_lines import ShapedLines
from swarm import events
from swarm.protocol import Role
from swarm.types import Release

if TYPE_CHECKING:
    from lab.figures.table import Say

REWARDS = """
def has_digit(prompts, completions, **columns):
    said = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [sum(map(str.isdigit, text)) / max(1, len(text)) for text in said]
"""

SETTINGS = (
    "run.model.name={folder}/model",
    "run.task.name=digit-sums",
    'run.task.rewards=["{folder}/rewards.py:has_digit"]',
    "peer.rewards.code=trust",  # what runs is this module's
    "run.sampling.max_tokens=24",
    "run.optimizer.lr=1e-6",
    "run.optimizer.warmup=1",
    "run.batch.groups=8",
    "run.averaging.compression=int8",
    "run.averaging.deadline=120",
    "run.averaging.chunk=20",
)

INT8 = 1 + 4 / 64
"""Bytes of a value in a round: one, and a scale for each 64 (swarm.net.averaging.codec)."""


@dataclass(frozen=True)
class Swarm:
    """What is measured."""

    hidden: int = 320
    layers: int = 6
    """Of a model of 8M parameters: all processes hold it, on two cores."""
    up: float = 20.0
    down: float = 100.0
    """Mbit/s of every line."""
    learners: int = 2
    samplers: int = 3
    versions: int = 6
    """Steps of which the figures are middle values: the first rung of the ladder is not among them."""
    settings: tuple[str, ...] = ()
    """Of the run, KEY=VALUE."""
    patience: float = 240.0
    """Seconds that any wait may take."""


def measure(say: Say, swarm: Swarm = Swarm()) -> list[Figure]:
    from swarm.learn.models import tiny

    with (
        tempfile.TemporaryDirectory(prefix="swarm-bench-") as made,
        ShapedLines(swarm.up, swarm.down) as lines,
    ):
        folder = Path(made)
        tiny.make(folder / "model", "llama", hidden=swarm.hidden, layers=swarm.layers)
        (folder / "rewards.py").write_text(REWARDS)
        sets = [one.format(folder=folder) for one in SETTINGS] + list(swarm.settings)

        def place() -> Place:
            words, address = lines.line()
            return words, (f"peer.listen.host={address}",)

        with LocalSwarm(*sets, place=place, patience=swarm.patience) as home:
            return list(_measured(home, say, swarm))


def _measured(home: LocalSwarm, say: Say, swarm: Swarm) -> Iterator[Figure]:
    trained = [home.join(Role.LEARNER) for _ in range(swarm.learners)]
    sampled = [home.join(Role.SAMPLER) for _ in range(swarm.samplers)]
    say("waiting for the first version that is trained")
    home.until("a first version", lambda: _newest(home) >= 1)
    last = _newest(home) + swarm.versions
    say(f"waiting for version {last}")
    home.until(f"version {last}", lambda: _newest(home) >= last)
    yield from _spread(home, swarm, trained, sampled, last)
    yield from _rounds(home, swarm, trained)
    yield _joined(home, say, swarm)
    if swarm.learners > 1:
        yield _killed(home, say, trained, sampled)


def _spread(
    home: LocalSwarm, swarm: Swarm, trained: list[str], sampled: list[str], last: int
) -> Iterator[Figure]:
    """How long a version takes to the last sampler, and what learners send for it."""
    released = _released(home)
    size = _size(home)
    late = [
        max(found)
        for version in range(last - swarm.versions + 1, last)
        if (found := [age for peer in sampled if (age := _age(home, peer, version)) is not None])
    ]
    if not late:
        raise Unmeasured("no sampler adopted a version")
    patch = median(release.patches[0].size for release in released.values() if release.patches)
    yield Figure.of_turns(
        late,
        row="lines",
        what=f"a version at the last of {swarm.samplers} samplers",
        unit="s",
        against="one whole copy over one line",
        other=8 * size / swarm.up / 1e6,
        note=f"{swarm.up:g} Mbit/s up, {size / 1e6:.0f} MB, a patch {patch / size:.2%}; loading included, the"
        f" middle one of {len(late)}",
    )
    sent = sum(
        event.sent.get("weights", 0)
        for peer in trained
        for event in home.events(peer)
        if isinstance(event, events.Transferred)
    )
    yield Figure(
        row="lines",
        what="weights that learners send for a version",
        value=sent / len(released) / 1e6,
        unit="MB",
        against="a whole copy for each sampler",
        other=swarm.samplers * size / 1e6,
    )


def _rounds(home: LocalSwarm, swarm: Swarm, trained: list[str]) -> Iterator[Figure]:
    seconds = [event.seconds for event in home.events(trained[0]) if isinstance(event, events.Averaged)]
    if seconds:
        share = 2 * (swarm.learners - 1) / swarm.learners
        yield Figure.of_turns(
            seconds,
            row="lines",
            what=f"a round of {swarm.learners} learners",
            unit="s",
            against="its bytes over one line",
            other=8 * share * (_size(home) / 2) * INT8 / swarm.up / 1e6,
            note=f"int8, the middle one of {len(seconds)}",
        )


def _joined(home: LocalSwarm, say: Say, swarm: Swarm) -> Figure:
    say("a joiner fetches its first version")
    joiner = home.join(Role.SAMPLER)
    home.until("the joiner's first version", lambda: _first(home, joiner) is not None)
    return Figure(
        row="lines",
        what="a joiner's first version, fetched whole",
        value=_first(home, joiner) or 0.0,
        unit="s",
        against="one whole copy over one line",
        other=8 * _size(home) / swarm.up / 1e6,
        note="from its announcement, or from the joiner's start where that is later",
    )


def _killed(home: LocalSwarm, say: Say, trained: list[str], sampled: list[str]) -> Figure:
    """The publisher dies as soon as it has announced a version."""
    before = _newest(home)
    home.until("the next version", lambda: _newest(home) > before)
    publisher = _released(home)[_newest(home)].publisher
    home.kill(next(peer for peer in trained if next(event.peer for event in home.events(peer)) == publisher))
    lost = _newest(home)
    say(f"the publisher of version {lost} was killed")
    home.until("two versions more", lambda: _newest(home) >= lost + 2)
    home.until("one at a sampler", lambda: any(_age(home, peer, lost + 1) is not None for peer in sampled))
    times = {
        event.release.version: event.at
        for event in home.events(Role.SEED)
        if isinstance(event, events.Released)
    }
    return Figure(
        row="lines",
        what="from the kill of a publisher to the next version",
        value=times[lost + 1] - times[lost],
        unit="s",
        against="the version before",
        other=times[lost] - times[lost - 1],
    )


def _released(home: LocalSwarm) -> dict[int, Release]:
    return {
        event.release.version: event.release
        for event in home.events(Role.SEED)
        if isinstance(event, events.Released)
    }


def _size(home: LocalSwarm) -> int:
    """Bytes of a whole release."""
    return next(iter(_released(home).values())).size


def _newest(home: LocalSwarm) -> int:
    return max(_released(home), default=0)


def _age(home: LocalSwarm, peer: str, version: int) -> float | None:
    """Seconds from the release of a version until this sampler had loaded it."""
    for event in home.events(peer):
        if isinstance(event, events.Adopted) and event.version == version:
            return event.age
    return None


def _first(home: LocalSwarm, peer: str) -> float | None:
    started = next((event.at for event in home.events(peer) if isinstance(event, events.Started)), 0.0)
    for event in home.events(peer):
        if isinstance(event, events.Adopted):
            return min(event.fetch, event.at - started)
    return None
