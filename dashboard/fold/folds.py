"""Folds events into a SwarmState: one function for each kind of event.

Each takes (state, event, when it happened by this peer's clock), cleans strings and numbers of peers and
passes it to the part that keeps it. Judged, Sampled and other kinds without a function here become sentences,
or nothing. No clock and no I/O: the same events give the same state, live or from a journal. Not handled
here: whether a sender may report an event (the roles check that).
"""

from __future__ import annotations

from collections.abc import Callable

from dashboard.fold.parts import evaluations, pulse
from dashboard.fold.parts.rounds import EndedRound, members
from dashboard.fold.peer import known_verdicts
from dashboard.fold.sentences import News, sentence_of
from dashboard.fold.state import SwarmState
from dashboard.text import LARGEST, clean, count, duration, moment, number, proper, version_of, whole
from swarm import events as happened
from swarm.core.revocation import WAS_REVOKED
from swarm.membership.identity import human_name
from swarm.protocol import Phase, Role
from swarm.types import PeerId


def _started(state: SwarmState, event: happened.Started, at: float) -> None:
    known = state.peers.get(event.peer)
    again = known is not None and known.introduced
    peer = state.touch(event.peer, at, event.role)
    if event.peer not in state.peers:
        return
    if known is None or known.gone or again:
        _join(state, event.peer, at, human_name(event.peer), event.role, again)
        state.rounds.restart(event.peer)
    peer.call(event.name)
    peer.role, peer.gone, peer.revoked = event.role, "", False
    peer.version, peer.hardware, peer.since = (
        version_of(event.version),
        clean(event.hardware, 80),
        moment(event.at),
    )
    peer.introduced = True
    state.at(peer, peer.version, at)


def _join(state: SwarmState, peer: PeerId, at: float, name: str, role: Role, again: bool = False) -> None:
    text = f"{name} {'started again' if again else 'is here'}: {role}."
    state.add_line(at, News(f"joined {peer}", "info", text, (peer,)))


def _left(state: SwarmState, event: happened.Left, at: float) -> None:
    peer = state.touch(event.peer, at)
    peer.gone, peer.revoked = "left", peer.revoked or WAS_REVOKED in event.reason


def _heard(state: SwarmState, event: happened.Heard, at: float) -> None:
    known = state.peers.get(event.subject)
    if known is None:
        if not proper(event.subject):
            return
    elif known.gone == "left" and event.beat.incarnation <= known.order[0]:
        return  # gossip delivers the last beats of a peer after its farewell
    peer = state.touch(event.subject, at, event.beat.role, event.invited)
    if event.subject not in state.peers:
        return
    if event.beat.incarnation > peer.order[0]:
        state.rounds.restart(peer.id)
    if not peer.receive(event.beat, at):
        return
    peer.invited = event.invited
    if state.counts(peer.id):
        state.tally.waste(peer.id, peer.order[0], peer.wasted)
    if known is None:
        _join(state, peer.id, at, peer.name, peer.role)
    elif peer.gone:
        state.add_line(at, News(f"back {peer.id}", "info", f"{peer.name} is back.", (peer.id,)))
    peer.gone, peer.revoked = "", False
    state.at(peer, peer.version, at)
    if peer.role is Role.LEARNER:
        state.agreement.show(peer.version, peer.id, event.beat.weights)
        state.rounds.move(peer.id, peer.phase, peer.version, at, moment(event.beat.at))


def _lost(state: SwarmState, event: happened.Lost, at: float) -> None:
    peer = state.peers.get(event.subject)
    if peer is not None and not peer.gone:
        peer.gone, peer.revision = "lost", state.revision


def _rejected(state: SwarmState, event: happened.Rejected, at: float) -> None:
    """This peer refuses messages of a revoked peer, its departure too; refusals of other peers are their
    claims."""
    peer, mine = state.peers.get(event.sender), event.peer == state.recent.me != event.sender
    if peer is not None and mine and WAS_REVOKED in event.reason and not peer.revoked:
        peer.gone, peer.revoked, peer.heard = "left", True, at
        peer.changed(state.revision)


def _counted(state: SwarmState, event: happened.Counted, at: float) -> None:
    state.tally.take(event.verdicts, event.versions, event.seconds, event.tokens)
    for sampler, verdicts in event.samplers.items():
        peer = state.peers.get(PeerId(sampler))
        if peer is not None:
            count(peer.verdicts, known_verdicts(verdicts))
            peer.revision = state.revision


def _transferred(state: SwarmState, event: happened.Transferred, at: float) -> None:
    if not state.counts(event.peer):
        return
    state.flows.take(event, state.last)
    for source, link in event.links.items():
        peer = state.peers.get(PeerId(source))
        if peer is not None and peer.id != event.peer:
            peer.reached(link, state.last)
            peer.revision = state.revision


def _shown(state: SwarmState, event: happened.Shown, at: float) -> None:
    state.samples.take(event, at, state.revision)


def _moved(state: SwarmState, event: happened.Moved, at: float) -> None:
    peer = state.touch(event.peer, at)
    peer.state, peer.phase = clean(event.state).lower(), Phase(event.state)
    state.rounds.move(peer.id, peer.phase, whole(event.version), at, moment(event.at))


def _averaged(state: SwarmState, event: happened.Averaged, at: float) -> None:
    state.plot("average_seconds", event.version, at, event.seconds)
    mean = EndedRound(whole(event.version), members(event.members), number(event.seconds), at)
    state.rounds.average(event.peer, mean)
    state.flows.averaged(mean.members, state.last)
    if state.members and mean.members != state.members:
        names = clean(", ".join(map(state.name, mean.members)), 200)
        text = f"{len(mean.members)} learners now average in {duration(mean.seconds)}: {names}."
        state.add_line(at, News("members", "info", text, mean.members))
    state.members = mean.members


def _trained(state: SwarmState, event: happened.Trained, at: float) -> None:
    peer = state.touch(event.peer, at)
    peer.version = max(peer.version, whole(event.version))
    groups = whole(event.groups)
    peer.trained = min(peer.trained + groups, LARGEST)
    state.tally.trained = min(state.tally.trained + groups, LARGEST)
    state.at(peer, peer.version, at)
    for name, value in (
        event.metrics | {"groups": float(groups), "members": float(whole(event.members))}
    ).items():
        if name not in pulse.NAMES:
            state.plot(name, event.version, at, value, weight=max(groups, 1))


def _released(state: SwarmState, event: happened.Released, at: float) -> None:
    release = event.release
    if not 0 <= release.version < LARGEST or not proper(release.publisher):
        return
    known = state.releases.get(release.version)
    if known is None or known.groups < release.groups:
        state.releases[release.version] = release
        state.spreads.release(release, at, state.revision)
        for peer in state.peers.values():
            if peer.version == release.version:  # its row shows the release's age from now on
                peer.revision = state.revision
    while len(state.releases) > state.bounds.releases:
        del state.releases[min(state.releases)]


def _adopted(state: SwarmState, event: happened.Adopted, at: float) -> None:
    peer = state.touch(event.peer, at)
    peer.version = whole(event.version)
    here = event.at - peer.since if peer.since is not None else event.age
    state.at(peer, peer.version, at, age=min(event.age, here))
    if peer.role is Role.LEARNER:
        state.agreement.show(peer.version, peer.id, event.weights)


def _snapped(state: SwarmState, event: happened.Snapped, at: float) -> None:
    state.agreement.show(whole(event.version), event.peer, event.theirs)


def _caught_up(state: SwarmState, event: happened.CaughtUp | happened.Forked, at: float) -> None:
    peer = state.touch(event.peer, at)
    peer.version = max(peer.version, whole(event.version))
    state.at(peer, peer.version, at)


def _evaluated(state: SwarmState, event: happened.Evaluated, at: float) -> None:
    accuracy, version = number(event.accuracy, high=1.0), whole(event.version)
    weight = max(number(event.tasks), 1.0)
    state.plot("accuracy", event.version, at, accuracy, weight=weight)
    judged = state.evaluations.take(event)
    for name, one in judged.sampled.items():
        state.plot(evaluations.curve(name), event.version, at, one.value, weight=weight)
    for name, its in judged.sets.items():
        state.plot(evaluations.set_curve(name), event.version, at, its.accuracy, weight=max(its.tasks, 1))
    first, last = state.accuracies.get("first"), state.accuracies.get("last")
    if first is None or version < first[0]:
        state.accuracies["first"] = (version, accuracy)
    if last is None or version >= last[0]:
        state.accuracies["last"] = (version, accuracy)


FOLDS: dict[type[happened.Event], Callable[..., None]] = {
    happened.Started: _started,
    happened.Left: _left,
    happened.Heard: _heard,
    happened.Lost: _lost,
    happened.Rejected: _rejected,
    happened.Counted: _counted,
    happened.Transferred: _transferred,
    happened.Shown: _shown,
    happened.Moved: _moved,
    happened.Averaged: _averaged,
    happened.Trained: _trained,
    happened.Released: _released,
    happened.Adopted: _adopted,
    happened.Snapped: _snapped,
    happened.CaughtUp: _caught_up,
    happened.Forked: _caught_up,
    happened.Evaluated: _evaluated,
}


def fold(state: SwarmState, event: happened.Event) -> None:
    """Update the state with one event."""
    if event.peer not in state.peers and not proper(event.peer):
        return
    state.revision += 1
    now = state.timeline.take(event)
    if (ended := state.pulse.enter(now)) is not None:
        for name, value in pulse.measure(
            state.proven(), ended, state.run.pace.patience, state.version
        ).items():
            state.plot(name, ended, ended, value)
    state.recent.take(event)
    take = FOLDS.get(type(event))
    if take is not None:
        take(state, event, state.timeline.when(event))
    news = sentence_of(event, state.name)
    if news is not None:
        state.add_line(state.timeline.when(event), news)
