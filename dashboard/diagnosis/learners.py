"""Rules about learners and their rounds: training that stopped, learners that wait, rounds that break, two
learners whose gradients cannot both be right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import median

from dashboard.diagnosis.samplers import refusal
from dashboard.diagnosis.situation import Situation, listed, problem
from dashboard.fold.peer import PeerRow
from dashboard.fold.recent import STRETCH
from dashboard.text import duration
from dashboard.views import Problem
from swarm.core.agreement.shares import SHORTEST, SLOWER, UNKNOWN
from swarm.core.gradient_checks.norm_screening import FAR
from swarm.events import NOT_FINITE
from swarm.frames.grammar import some
from swarm.protocol import Phase, Role

STOPPED = 30.0
"""Seconds without a version that count as chance, however quick the earlier versions were; ten times the
usual interval where that is longer."""

BEGIN = 300.0
"""Seconds from the first learner to the first version: loading and sampling with a large model takes
minutes."""

GATHER = 30.0
"""Seconds without groups at a learner that count as chance."""

STEPS = 3
"""Rounds before a learner's weights or gradients are judged."""

BREAKS = 3
"""Broken rounds in two minutes: a killed learner costs the others one or two."""

SPAN = 120.0
"""Seconds of rounds and snaps that are looked at."""

ROUNDS = 8
"""Rounds before the sizes of gradients count as a habit."""


def stopped(s: Situation) -> Iterator[Problem]:
    """No version for much longer than usual though learners and samplers are there."""
    learners, samplers = s.working(Role.LEARNER), s.working(Role.SAMPLER)
    if not learners or not samplers or not s.recent.releases or not all(map(s.settled, learners)):
        return
    newest = max(s.recent.releases)
    arrived = s.recent.releases[newest]
    quiet = s.now - max(arrived, s.listening, min(s.trace(peer).first for peer in learners))
    averaging = _round_limit(s) if s.recent.averaging else s.run.averaging.deadline
    usual = s.usual
    if quiet <= (
        max(STOPPED, 10 * usual, 8 * s.beat, 2 * averaging)
        if usual
        else max(BEGIN, 20 * s.beat) + s.transfer()
    ):
        return
    states = Counter(peer.state or "silent" for peer in learners)
    at = listed([f"{count} {state}" for state, count in states.most_common()])
    yield problem(
        "stopped",
        "error",
        (
            f"Training stands still: no version for {duration(quiet)}"
            + (f", where {duration(usual)} is usual." if usual else " since the learners came."),
            f"{some(len(samplers), 'sampler')} here; the learners: {at}.",
            "Begin with the learner problems below; without any, look at the end of a learner's log.",
        ),
        learners,
        arrived,
    )


def stuck(s: Situation) -> Iterator[Problem]:
    """Learners that stay in one state for long."""
    for peer in s.learners():
        trace = s.trace(peer)
        catching = s.now - max(trace.behind, s.listening) if trace.behind is not None else 0.0
        patience = 20.0 + 2 * s.beat + s.transfer()
        if trace.behind is not None and s.stalled(peer, trace.behind) > patience:
            yield problem(
                f"waits {peer.id}",
                "warning",
                (
                    (
                        f"Learner {peer.name} has tried to take version {s.version} for {duration(catching)},"
                        " and does not train."
                    ),
                    "The release's bytes do not arrive, or no peer that holds them can be reached.",
                    (
                        "Look for `could not be` in its log, and at its network; a seed near it holds every"
                        " release."
                    ),
                ),
                [peer],
                trace.behind,
            )
            continue
        waits = _WAITS.get(peer.phase)
        if waits is not None and trace.phase is peer.phase:
            yield from waits(s, peer)


def _gathering(s: Situation, peer: PeerRow) -> Iterator[Problem]:
    samplers = s.working(Role.SAMPLER)
    waited = s.since(peer)
    lacking = bool(samplers) and all(p.phase is Phase.NO_POLICY for p in samplers)
    quiet = min(s.stalled(p, s.trace(peer).since) for p in samplers) if lacking else waited
    if not samplers or not s.settled(peer) or quiet <= _patient(s, samplers):
        return
    if peer.inbox > 0:
        cause = (
            f"It has {some(peer.inbox, 'group')}, but its version is not released yet: the publisher of it is"
            " silent."
        )
        todo = "Look at the other learners; the next one publishes after `run.release.timeout`."
    elif lacking:
        cause, todo = "All samplers wait for a policy.", "See that a seed is here and can be reached."
    elif refusals := _refusals(s, samplers):
        cause = f"The samplers' groups are refused, mostly as {refusals}."
        todo = "See what is said of the samplers here."
        if (known := refusal(s, samplers, refusals)) is not None:
            cause, todo = f"{cause[:-1]}: {known[0]}.", known[1]
    elif peer.credit > 0 and all(p.phase is Phase.NO_CREDIT for p in samplers):
        cause = (
            f"It advertises credit for {some(peer.credit, 'group')} and all samplers wait for credit: they do"
            " not hear it."
        )
        todo = "Look at its network: samplers must reach its address."
    else:
        cause = f"{some(len(samplers), 'sampler')} here, but no group that it can use arrives."
        todo = (
            "See that samplers can dial its address (firewall, NAT), and look in their logs for groups that"
            " were refused."
        )
    yield problem(
        f"waits {peer.id}",
        "warning",
        (
            f"Learner {peer.name} has waited for groups for {duration(waited)}.",
            cause,
            todo,
        ),
        [peer],
        s.now - waited,
    )


def _patient(s: Situation, samplers: list[PeerRow]) -> float:
    """Usual seconds without a batch: groups take as long as the samplers report, and a first one longer."""
    slowest = max(sum(p.lag.get(cause, 0.0) for cause in ("generation", "upload")) for p in samplers)
    in_flight = any(p.inbox > 0 for p in samplers)
    least = max(GATHER, 8 * s.beat, 10 * (s.usual or 0.0), 3 * slowest, 3 * s.run.batch.close_after)
    if any(p.phase is Phase.SAMPLING for p in samplers) and not any(p.done for p in samplers):
        least = max(least, BEGIN)
    return max(least, s.run.window.seconds / 3) if in_flight else least  # groups on a slow way may still come


def _refusals(s: Situation, samplers: list[PeerRow]) -> str:
    """The commonest refusal of the last minutes when hardly anything is admitted; empty else."""
    total: Counter[str] = Counter()
    for peer in samplers:
        for at, counts in s.trace(peer).verdicts:
            if s.now - at < SPAN:
                total.update(counts)
    admitted = total.pop("admit", 0)
    return total.most_common(1)[0][0] if total and 5 * admitted < sum(total.values()) else ""


def _matching(s: Situation, peer: PeerRow) -> Iterator[Problem]:
    waited = s.since(peer)
    usual = median(s.recent.averaging) if s.recent.averaging else 0.0
    if waited <= max(10.0, _round_limit(s) / 2, 5 * usual, 4 * s.beat):
        return
    missing = [other for other, _ in s.silent if other.role is Role.LEARNER]
    slow = [
        other
        for other in s.learners()
        if other is not peer and other.phase not in (Phase.MATCHING, Phase.STEPPING)
    ]
    if missing:
        cause = f"It waits for {s.names(missing)}, who fell silent."
    elif slow:
        cause = (
            f"The others do something else: {listed([f'{other.name} is {other.state}' for other in slow])}."
        )
    else:
        cause = "The others are in the round as well, but their parts do not come."
    yield problem(
        f"waits {peer.id}",
        "warning",
        (
            f"Learner {peer.name} has been in an averaging round for {duration(waited)}"
            + (f", where {duration(usual)} is usual." if usual else "."),
            cause,
            (
                f"A round is given up after about {duration(_round_limit(s))} and begun anew; if that goes"
                " on, look at the links between the learners."
            ),
        ),
        [peer],
        s.now - waited,
    )


def _round_limit(s: Situation) -> float:
    """Seconds after which a round is begun anew, as far as a dashboard can know: learners know their
    lines."""
    if s.run.averaging.deadline:
        return s.run.averaging.deadline
    size = s.newest.size if s.newest else 0
    return max(SHORTEST, SLOWER * (median(s.recent.averaging) if s.recent.averaging else size / UNKNOWN))


def _learning(s: Situation, peer: PeerRow) -> Iterator[Problem]:
    waited, last = s.since(peer), [one.learn for one in s.recent.spent][-STRETCH:]
    usual = median(last) if last else None
    if usual is None or waited <= max(60.0, 10 * usual, 8 * s.beat):
        return
    yield problem(
        f"waits {peer.id}",
        "warning",
        (
            (
                f"Learner {peer.name} has computed one gradient for {duration(waited)}, where"
                f" {duration(usual)} is usual."
            ),
            "Its machine is overloaded, out of memory, or its accelerator hangs.",
            "Look at the load of its machine and the end of its log; start it again if it goes on.",
        ),
        [peer],
        s.now - waited,
    )


_WAITS = {Phase.GATHERING: _gathering, Phase.MATCHING: _matching, Phase.LEARNING: _learning}


def broken(s: Situation) -> Iterator[Problem]:
    """Rounds that break often."""
    span = max(SPAN, 10 * (s.usual or 0.0))
    breaks = [entry for entry in s.recent.broken if s.now - entry[0] < span]
    ended = sum(s.now - at < span for at in s.recent.averaged)
    if len(breaks) < BREAKS or 4 * len(breaks) < len(breaks) + ended or s.now - breaks[-1][0] > span / 2:
        return
    who = [
        peer
        for peer_id in dict.fromkeys(peer_id for _, peer_id, _ in breaks)
        if (peer := s.state.peers.get(peer_id))
    ]
    overflowed = sum(reason.startswith(NOT_FINITE) for _, _, reason in breaks)
    if 2 * overflowed >= len(breaks):
        yield _not_finite(s, overflowed, who, breaks[0][0])
        return
    yield problem(
        "broken",
        "warning",
        (
            f"{len(breaks)} of the last {len(breaks) + ended} averaging rounds broke, at {s.names(who)}.",
            f"The last one: {breaks[-1][2]}",
            (
                "Look at the links between the learners; over slow ones raise `run.averaging.chunk`, and"
                " leave out `run.averaging.deadline`."
            ),
        ),
        who,
        breaks[0][0],
    )


def _not_finite(s: Situation, count: int, who: list[PeerRow], since: float) -> Problem:
    return problem(
        "not finite",
        "error",
        (
            f"{some(count, 'gradient')} in {duration(s.now - since)} were not finite, at {s.names(who)}: no"
            " step is made of them.",
            "The loss overflows: steps were too large for the weights, or the model computes beyond its"
            " precision. No link has a part in it.",
            f"Lower `run.optimizer.lr` ({s.run.optimizer.lr:g}) and begin again, from a version before it if"
            " there is one; where it is small already, look at the model's weights and precision.",
        ),
        who,
        since,
    )


def _repeated(s: Situation, times: Iterable[float]) -> list[float]:
    """Those of the last SPAN seconds, the latest last, of a repeated event; else none."""
    lately = [at for at in times if s.now - at < SPAN]
    return lately if len(lately) >= STEPS and s.now - lately[-1] <= SPAN / 2 else []


def differing(s: Situation) -> Iterator[Problem]:
    """Learners whose weights differ from the releases again and again."""
    for peer in s.learners():
        if not (snaps := _repeated(s, s.trace(peer).snaps)):
            continue
        yield problem(
            f"differs {peer.id}",
            "warning",
            (
                (
                    f"Learner {peer.name} had other weights than the release {len(snaps)} times in"
                    f" {duration(s.now - snaps[0])}."
                ),
                (
                    "Its steps are thrown away each time: its rounds end differently from the others', or its"
                    " numbers do."
                ),
                (
                    "See that it runs the same versions of torch and swarm as the others, and that its rounds"
                    " have the same members."
                ),
            ),
            [peer],
            snaps[0],
        )


def disproved(s: Situation) -> Iterator[Problem]:
    """Learners whose gradients others computed again, and found to be others."""
    learners = {peer.id for peer in s.learners()}
    for peer in s.learners():
        by = {
            other: strike
            for (accused, other), strike in s.recent.left_out.items()
            if accused == peer.id and other in learners and strike.until > s.now
        }
        if not by:
            continue
        others, last = len(learners) - 1, max(by.values(), key=lambda strike: strike.until)
        left_out = "It is left out of all means, and its groups go to the other learners."
        if 2 * len(by) <= others:
            left_out = f"{listed(sorted(map(s.name, by)))} alone: one of them may be wrong instead."
        yield problem(
            f"disproved {peer.id}",
            "warning",
            (
                (
                    f"The gradients of learner {peer.name} are not what its groups give, as {len(by)} of"
                    f" {some(others, 'other learner')} found."
                ),
                f"It lies, or it computes otherwise than the others: {last.why.rstrip('.')}.",
                (
                    f"{left_out} If it is yours, compare its versions of torch and swarm with those of the"
                    " others; else the owner of the run can remove it with `swarm revoke`."
                ),
            ),
            [peer],
            min(strike.since for strike in by.values()),
        )


def far(s: Situation) -> Iterator[Problem]:
    """Learners whose gradients are scaled down in most of their rounds. That is about size alone: which
    learner is right, and the cause, no norm shows."""
    span = max(SPAN, 2 * ROUNDS * (s.usual or 0.0))
    rounds = [mean for mean in s.recent.means.values() if s.now - mean.at < span]
    for peer in s.learners():
        mine = [mean for mean in rounds if peer.id in mean.members]
        # Where most members are beyond the usual, it is the usual that has become small.
        longer = [
            mean for mean in mine if peer.id in mean.scaled and 2 * len(mean.scaled) <= len(mean.members)
        ]
        if len(mine) < ROUNDS or 2 * len(longer) <= len(mine):
            continue
        if _is_small(s, median(mean.scaled[peer.id] for mean in longer)):
            continue
        yield problem(
            f"far {peer.id}",
            "warning",
            (
                (
                    f"The gradient of learner {peer.name} was much longer than is usual in {len(longer)} of"
                    f" its last {some(len(mine), 'round')}, and was scaled down."
                ),
                (
                    "Its size alone does not tell why: fewer groups in its batches, another version of swarm"
                    " or torch, another precision, a machine's fault. It counts as one learner's at most."
                ),
                "Training goes on. Compare its versions, settings and log with those of the others.",
            ),
            [peer],
            longer[0].at,
        )


def _is_small(s: Situation, share: float) -> bool:
    """Whether a gradient of which this `share` was left is of a size that a step takes whole all the same: of
    a policy that has nearly converged the usual norm vanishes, and beside it any other is large."""
    norms = s.recent.metric("grad_norm")
    usual = median(norms) if norms else math.inf
    return share > 0 and usual * math.sqrt(FAR / share) <= s.run.optimizer.grad_clip
