"""The view of a SwarmState and its problems: sent by the stream and answered by `/api/state`.

    SwarmState --diagnosis--> problems, condition
          ------------------------------------view_of--> everything, or what changed after a revision

Pure: the same state and time give the same view. Not handled here: how it is sent (dashboard.serve.feed).
"""

from __future__ import annotations

from collections import Counter

from dashboard import views
from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import condition, unprotected
from dashboard.diagnosis.pace import coming, pace, work
from dashboard.fold.parts.lines import WIRE
from dashboard.fold.parts.spread import KEPT
from dashboard.fold.state import SwarmState
from dashboard.text import clean, moment
from swarm.protocol import Role
from swarm.settings.config import Run


def view_of(
    state: SwarmState,
    now: float,
    since: int = 0,
    quiet: float = 0.0,
    replay: views.Span | None = None,
    flows: bool = True,
) -> views.StateView:
    """The changes after revision `since`; everything when it is 0, or when an update is not enough (`full` is
    set then). `quiet`: seconds since the last message of another peer; `flows`: include flows in an
    update."""
    full = since < state.reset or since == 0 or since > state.revision
    start = 0 if full else since
    problems = diagnose(state, now)
    return views.StateView(
        full=full,
        revision=state.revision,
        now=now,
        last=state.last,
        quiet=quiet,
        run=_run(state.run),
        head=head_of(state, now),
        condition=condition(state, now, problems, 0.0 if replay else quiet),
        problems=problems,
        round=state.rounds.view(state.alive(Role.LEARNER, now)),
        peers=state.rows(now, start),
        gone=state.gone(start),
        verdicts=dict(state.tally.verdicts),
        tokens=state.tokens(),
        lag=state.tally.view(),
        agreement=state.agreement.view(),
        events=state.lines.view(start, most=WIRE),
        series={name: points for name in state.series if (points := state.points(name, start))},
        releases=state.release_views(now, start, KEPT),
        flows=state.flows.view(now) if flows or full else None,
        traffic=state.flows.traffic(now),
        samples=state.samples.view(start),
        replay=replay,
    )


def head_of(state: SwarmState, now: float) -> views.HeadView:
    """The swarm in a line."""
    patience, newest, reward = state.run.pace.patience, state.newest, state.series.get("reward")
    here: Counter[Role] = Counter()
    known: Counter[Role] = Counter()
    groups = tokens = busy = 0.0
    strangers = 0
    for peer in state.peers.values():
        status = peer.status(now, patience)
        if not state.counts(peer.id):
            strangers += status == "alive"
            continue
        known[peer.role] += status != "left"
        if status == "alive":
            here[peer.role] += 1
            if peer.role is Role.LEARNER:
                groups, tokens, busy = groups + peer.rate, tokens + peer.tokens, busy + peer.busy
    learners = here[Role.LEARNER]
    return views.HeadView(
        version=state.version,
        released=moment(newest.released) if newest else None,
        age=max(now - moment(newest.released), 0.0) if newest else None,
        note=unprotected(state, now),
        weights=clean(newest.weights[:12]) if newest else None,
        trained=state.tally.trained,
        reward=reward.last() if reward else None,
        coming=coming(state, now),
        work=work(state, now),
        pace=pace(state, now),
        first_accuracy=state.accuracies.get("first"),
        last_accuracy=state.accuracies.get("last"),
        evaluation=state.evaluations.last,
        roles={str(role): (here[role], known[role]) for role in Role if known[role]},
        strangers=strangers,
        groups_per_second=groups,
        tokens_per_second=tokens,
        busy=busy / learners if learners else None,
    )


def _run(run: Run) -> views.RunView:
    return views.RunView(
        name=clean(run.name),
        task=clean(run.task.name),
        model=clean(run.model.name),
        objective=clean(run.objective.name),
        private=run.private,
        patience=run.pace.patience,
        window=views.WindowView(versions=run.window.versions, seconds=run.window.seconds),
        versions=run.stop.versions,
        accuracy=run.stop.accuracy,
    )
