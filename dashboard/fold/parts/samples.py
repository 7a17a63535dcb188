"""The newest trained groups for people to read: prompts, completions, rewards, advantages and weights."""

from __future__ import annotations

import msgspec

from dashboard.text import LARGEST, clean, moment, number, proper, prose, whole
from dashboard.views import SampleView
from swarm import events as happened
from swarm.types import PeerId

COMPLETIONS = 64
"""Completions of one group: as many as the largest groups in use have."""

PROMPT, COMPLETION = 2000, 1000
"""Most characters of a text on the dashboard; one event carries at most 4 KiB."""


class Samples(msgspec.Struct):
    most: int = 24
    kept: list[tuple[int, SampleView]] = []
    """(revision, group), oldest first."""

    def take(self, event: happened.Shown, at: float, revision: int) -> None:
        sample = SampleView(
            id=event.group,
            at=at,
            sampler=event.sampler,
            learner=event.peer,
            version=event.version,
            prompt=event.prompt,
            answer=event.answer,
            completions=event.completions,
            rewards=event.rewards,
            advantages=event.advantages,
            weights=event.weights,
        )
        self._keep(revision, _fit(sample))

    def view(self, since: int) -> tuple[SampleView, ...]:
        """Groups added after revision `since`, oldest first."""
        return tuple(sample for revision, sample in self.kept if revision > since)

    def sanitize(self, most: int) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        kept, self.kept, self.most = self.kept, [], most
        for revision, sample in kept[-most:]:
            self._keep(whole(revision), _fit(sample))

    def _keep(self, revision: int, sample: SampleView) -> None:
        others = (entry for entry in self.kept if entry[1].id != sample.id)
        self.kept = [*others, (revision, sample)][-self.most :]


def _fit(sample: SampleView) -> SampleView:
    return SampleView(
        id=clean(sample.id, 80),
        at=moment(sample.at),
        sampler=_peer(sample.sampler),
        learner=_peer(sample.learner),
        version=whole(sample.version),
        prompt=prose(sample.prompt, PROMPT),
        answer=prose(sample.answer, COMPLETION),
        completions=tuple(prose(text, COMPLETION) for text in sample.completions[:COMPLETIONS]),
        rewards=_numbers(sample.rewards),
        advantages=_numbers(sample.advantages),
        weights=_numbers(sample.weights),
    )


def _peer(peer: str) -> PeerId:
    return PeerId(peer if proper(peer) else clean(peer, 80))


def _numbers(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(number(value, -LARGEST, LARGEST)) for value in values[:COMPLETIONS])
