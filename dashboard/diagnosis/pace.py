"""How far the swarm is in what takes long, how fast versions come, and which settings change that most.

    heartbeats' progress and downloads --work--> one line for each kind of work
    releases, seconds of steps ---------pace--> seconds of a version, the run's end, a sentence about settings

Progress is a peer's own claim; only peers that count are asked. Not handled here: what is wrong
(dashboard.diagnosis), and whether samplers are too many or too few (dashboard.diagnosis.condition).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean

from dashboard.fold.recent import STRETCH, StepSeconds
from dashboard.fold.state import SwarmState
from dashboard.text import moment
from dashboard.views import FetchView, PaceView, ProgressView, WorkView
from swarm.protocol import STAGES, Role, WorkStage

FEW, LONG_ENOUGH = 3, 60.0
"""Intervals between versions, or seconds of fewer, from which on there is a forecast: one call of a sampler
may be enough for several versions, which follow each other at once."""

LENGTH, SIZE = "run.sampling.max_tokens", "run.sampling.group_size"
"""What makes a group's tokens fewer: the limit, where completions come near it, else their number."""

OVERLAP, CODEC = "run.averaging.overlap", "run.averaging.compression"
"""What makes a round cost less: another gradient beside it, or where there is one already, fewer bytes."""

NEAR = 0.5
"""Part of the limit from which on completions come near it, on average."""

COSTS: dict[str, tuple[str, tuple[str, str]]] = {
    "gather": ("waiting for groups", ("run.batch.groups", LENGTH)),
    "learn": ("computing gradients", ("run.batch.groups", LENGTH)),
    "average": ("averaging", (OVERLAP, "run.averaging.mode")),
    "step": ("optimizer steps", ("run.model.training", "run.optimizer.name")),
}
"""Phase of a step -> what it is, and the two settings that change its length most."""

SITES = "run.averaging.local_steps", "run.averaging.density"
"""Those of averaging in `sites` mode."""


def work(state: SwarmState, now: float) -> tuple[WorkView, ...]:
    """What takes long now, in the order of a version."""
    said = [*_progress(state, now)]
    return tuple(
        _together(stage, unit, those)
        for stage, unit in STAGES.items()
        if (those := [one for kind, one in said if kind == stage])
    )


def coming(state: SwarmState, now: float) -> float | None:
    """Mean reward of the groups that have come for the next version; None before one has."""
    patience = state.run.pace.patience
    rewards = [peer.coming for peer in state.proven() if peer.status(now, patience) == "alive"]
    told = [(reward, groups) for reward, groups in rewards if groups]
    groups = sum(weight for _, weight in told)
    return sum(reward * weight for reward, weight in told) / groups if told else None


def pace(state: SwarmState, now: float) -> PaceView | None:
    """None before there are some versions, and where no learner is here. The first version does not count: it
    waits for all peers to come."""
    if not state.alive(Role.LEARNER, now):
        return None
    newest = [state.releases[version] for version in sorted(state.releases) if version > 0][-STRETCH:]
    times = [(release.version, moment(release.released)) for release in newest]
    gaps = sorted((at - since) / (one - before) for (before, since), (one, at) in pairwise(times))
    if len(gaps) < FEW and (not gaps or times[-1][1] - times[0][1] < LONG_ENOUGH):
        return None
    # The longest of many is left out: a run that stood still over night goes on at the pace it had.
    seconds = fmean(gaps[:-1] if len(gaps) > FEW else gaps)
    if (open_gap := now - times[-1][1]) > seconds:
        seconds = fmean([seconds] * len(gaps) + [open_gap])
    if seconds <= 0:
        return None
    last = state.run.stop.versions
    left = last - newest[-1].version
    return PaceView(
        seconds=seconds,
        whole=seconds * last if last else None,
        ends=max(times[-1][1] + seconds * left, now) if left > 0 else None,
        note=_note(state),
    )


def _progress(state: SwarmState, now: float) -> Iterator[tuple[str, ProgressView | FetchView]]:
    """(stage, how far) of each peer that is here and counts; of a download whose pace can be seen."""
    for peer in state.proven():
        if peer.status(now, state.run.pace.patience) != "alive":
            continue
        if peer.progress is not None:
            yield peer.progress.stage, peer.progress
        if peer.fetching is not None and peer.fetching.ends is not None:
            yield WorkStage.RELEASE, peer.fetching


def _together(stage: str, unit: str, those: list[ProgressView | FetchView]) -> WorkView:
    ends = [one.ends for one in those if one.ends is not None]
    return WorkView(
        stage=stage,
        unit=unit,
        done=sum(one.held if isinstance(one, FetchView) else one.done for one in those),
        total=sum(one.size if isinstance(one, FetchView) else one.total for one in those),
        ends=max(ends) if len(ends) == len(those) else None,
        peers=len(those),
    )


def _note(state: SwarmState) -> str:
    steps = [*state.recent.spent][-STRETCH:]
    seconds = {phase: sum(getattr(one, phase) for one in steps) for phase in StepSeconds._fields}
    if (whole := sum(seconds.values())) <= 0:
        return ""
    most = max(seconds, key=lambda phase: seconds[phase])
    what, settings = COSTS[most]
    if most == "average" and state.run.averaging.mode == "sites":
        settings = SITES
    first, second = (_setting(state, one) for one in settings)
    return f"{seconds[most] / whole:.0%} of it is {what}; {first} and {second} change that most."


def _setting(state: SwarmState, name: str) -> str:
    lengths = state.recent.metric("length", STRETCH)
    if name == LENGTH and lengths and fmean(lengths) < NEAR * state.run.sampling.max_tokens:
        return SIZE
    return CODEC if name == OVERLAP and state.run.averaging.overlap else name
