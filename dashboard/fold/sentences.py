"""Events as plain sentences, for the dashboard and the terminal.

An event becomes News, or None when it has no sentence (heartbeats, counts, training steps: the table and the
curves show those). News with the same key share one line with a count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dashboard.fold.parts import evaluations
from dashboard.text import TEXT_LIMIT, clean, confidence, duration, estimates, is_full, number, whole
from dashboard.views import Level
from swarm import events as happened
from swarm.core import intervals
from swarm.core.audits.auditing import Finding
from swarm.core.revocation import WAS_REVOKED
from swarm.frames.grammar import some
from swarm.protocol import PARTS, Part
from swarm.types import PeerId, Verdict

Namer = Callable[[PeerId], str]

MOST = 8
"""Peers that one sentence names."""

_IDS = re.compile(r"\b12D3Koo[1-9A-HJ-NP-Za-km-z]{30,60}\b")
"""Peer ids inside a text that a program wrote."""


class News(NamedTuple):
    key: str
    """Of several News with one key only the newest is kept, with a count."""
    level: Level
    text: str
    peers: tuple[PeerId, ...] = ()
    """Peers that the sentence is about."""


def sentence_of(event: happened.Event, name: Namer) -> News | None:
    """The sentence of an event, from the event alone."""
    make = _SENTENCES.get(type(event))
    if make is None:
        return None
    news = make(event, name)
    return news._replace(text=clean(news.text, TEXT_LIMIT)) if news else None


def named(text: str, name: Namer) -> str:
    """The text with peer ids replaced by names."""
    return _IDS.sub(lambda found: name(PeerId(found.group())), text[: 4 * TEXT_LIMIT])


def _left(event: happened.Left, name: Namer) -> News:
    text = f"{name(event.peer)} left: {event.reason or 'no reason given'}."
    return News(f"left {event.peer}", "info", text, (event.peer,))


def _lost(event: happened.Lost, name: Namer) -> News:
    text = f"{name(event.subject)} has been silent for {duration(event.silent)}."
    return News(f"lost {event.subject}", "warning", text, (event.subject,))


def _judged(event: happened.Judged, name: Namer) -> News | None:
    if event.verdict is Verdict.ADMIT:
        return None
    text = f"A group of {name(event.sampler)} was refused: {event.verdict}"
    text += (
        f" ({event.detail})."
        if event.detail
        else f", {event.versions} versions and {duration(event.seconds)} old."
    )
    return News(f"judged {event.sampler} {event.verdict}", "warning", text, (event.sampler, event.peer))


def _released(event: happened.Released, name: Namer) -> News:
    release = event.release
    made = (
        f"{some(release.groups, 'group')} at {some(release.learners, 'learner')}"
        if release.groups
        else "the start"
    )
    text = f"Version {release.version} was released by {name(release.publisher)}: {made}."
    return News("released", "info", text, (release.publisher,))


def _averaged(event: happened.Averaged, name: Namer) -> News | None:
    if not event.scaled:
        return None
    about = dict(list(event.scaled.items())[:MOST])
    shares = ", ".join(f"{name(peer)} ({share:.2g} of it)" for peer, share in about.items())
    text = f"In the round for version {event.version} gradients longer than usual were scaled down: {shares}."
    return News(f"scaled {' '.join(about)}", "info", text, tuple(about))


def _broke(event: happened.RoundBroke, name: Namer) -> News:
    reason = named(event.reason, name)
    about = dict.fromkeys((event.peer, *map(PeerId, _IDS.findall(event.reason[: 4 * TEXT_LIMIT]))))
    return News(
        f"broke {reason}", "warning", f"The round for version {event.version} broke: {reason}.", tuple(about)
    )


def _unreached(event: happened.Unreached, name: Namer) -> News:
    text = (
        f"{name(event.peer)} hears {name(event.subject)} and has not met it in {some(event.rounds, 'round')}"
        " in a row: it does not wait for it any more."
    )
    return News(f"unreached {event.peer} {event.subject}", "warning", text, (event.peer, event.subject))


def _snapped(event: happened.Snapped, name: Namer) -> News:
    text = f"{name(event.peer)} had other weights than release {event.version} and took the release's."
    return News(f"snapped {event.peer}", "warning", text, (event.peer,))


def _caught_up(event: happened.CaughtUp, name: Namer) -> News:
    text = (
        f"{name(event.peer)} has its first policy, version {event.version}."
        if event.behind > event.version
        else f"{name(event.peer)} was {some(event.behind, 'version')} behind and caught up with version"
        f" {event.version}."
    )
    return News(f"caught {event.peer}", "info", text, (event.peer,))


def _forked(event: happened.Forked, name: Namer) -> News:
    lost = f"{some(event.versions, 'version')} with {some(event.groups, 'group')}"
    text = (
        f"{name(event.peer)} trained apart after version {event.since} and took version {event.version}:"
        f" {lost} do not count any more."
    )
    return News(f"forked {event.peer}", "warning", text, (event.peer,))


def _evaluated(event: happened.Evaluated, name: Namer) -> News:
    low, high = intervals.of_share(number(event.accuracy, high=1.0), whole(event.tasks))
    text = f"Version {event.version} solves {event.accuracy:.1%} of {some(event.tasks, 'held-out task')}"
    text += f" ({confidence(low, high)})"
    text += f"; sampled: {estimates(event.sampled)}" if event.sampled else ""
    text += "".join(f"; {of} {one.accuracy:.1%}" for of, one in evaluations.view(event).sets.items())
    return News("evaluated", "info", f"{text}.", (event.peer,))


def _returned(event: happened.Returned, name: Namer) -> News:
    text = f"{some(len(event.groups), 'group')} of {name(event.peer)} wait for a batch again: "
    text += "their step is not in the line of releases, or it restarted."
    return News(f"returned {event.peer}", "info", text, (event.peer,))


def _saved(event: happened.Saved, name: Namer) -> News:
    text = f"{name(event.peer)} saved a checkpoint of version {event.version}."
    return News(f"saved {event.peer}", "info", text, (event.peer,))


def _faulted(event: happened.Faulted, name: Namer) -> News:
    row = PARTS.get(event.part)
    if event.part == Part.DISK and is_full(event.detail):
        text = (
            f"The disk of {name(event.peer)} is full: kept in memory until there is space ({event.detail})."
        )
        return News(f"faulted {event.peer} {event.part}", "error", text, (event.peer,))
    what = row.text if row is not None else "failed and is being restarted"
    text = f"{event.part} of {name(event.peer)} {what}: {named(event.detail, name)}"
    return News(f"faulted {event.peer} {event.part}", "error", text, (event.peer,))


def _recovered(event: happened.Recovered, name: Namer) -> News:
    text = f"{event.part} of {name(event.peer)} is back after {duration(event.seconds)}."
    return News(f"recovered {event.peer} {event.part}", "info", text, (event.peer,))


def _audited(event: happened.Audited, name: Namer) -> News | None:
    who, about = name(event.sampler), (event.sampler, event.peer)
    if event.until > 0:
        how = f"for {duration(event.until - event.at)}: {named(event.why, name)}"
        text = f"{name(event.peer)} suspends {who} {how}."
        return News(f"suspended {event.sampler}", "warning", text, about)
    if event.finding == Finding.UNLIKELY:
        text = f"A token of {who} is not what its seed draws, by {event.largest:.3g} nats: bad luck, or it"
        text += " will show in its next groups, which are all replayed."
        return News(f"unlikely {event.sampler}", "info", text, about)
    return None


def _left_out(event: happened.LeftOut, name: Namer) -> News:
    who, how = name(event.learner), f"for {duration(event.until - event.at)}: {named(event.why, name)}"
    text = f"{name(event.peer)} leaves {who} out of its means {how}."
    return News(f"left out {event.learner}", "warning", text, (event.learner, event.peer))


def _rejected(event: happened.Rejected, name: Namer) -> News:
    who, why = name(event.sender), named(event.reason, name)
    if WAS_REVOKED in event.reason and event.sender != event.peer:
        text = f"{who} was revoked by the run's owner: nothing that it says is taken any more."
        return News(f"revoked {event.sender}", "info", text, (event.sender,))
    text = f"{event.kind} from {who} was not believed: {why}."
    if event.sender == event.peer:  # no other peer refused it
        text = f"{event.kind} of {who} itself is left out: {why}."
    return News(f"rejected {event.sender} {event.kind}", "warning", text, (event.sender,))


def _noted(event: happened.Noted, name: Namer) -> News:
    level: Level = "error" if event.level == "error" else "warning" if event.level == "warning" else "info"
    return News(f"noted {event.text}", level, named(event.text, name), (event.peer,))


_SENTENCES: dict[type[happened.Event], Callable[..., News | None]] = {
    happened.Left: _left,
    happened.Lost: _lost,
    happened.Judged: _judged,
    happened.Released: _released,
    happened.Averaged: _averaged,
    happened.RoundBroke: _broke,
    happened.Unreached: _unreached,
    happened.Snapped: _snapped,
    happened.CaughtUp: _caught_up,
    happened.Forked: _forked,
    happened.Evaluated: _evaluated,
    happened.Returned: _returned,
    happened.Saved: _saved,
    happened.Faulted: _faulted,
    happened.Recovered: _recovered,
    happened.Audited: _audited,
    happened.LeftOut: _left_out,
    happened.Rejected: _rejected,
    happened.Noted: _noted,
}
