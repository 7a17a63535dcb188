"""Rules about groups on their way: policies that no sampler loads, samplers whose groups come too late, are
refused, or that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dashboard.diagnosis.situation import LONGEST_BEAT, MANY, Situation, problem
from dashboard.fold.peer import PeerRow
from dashboard.fold.sentences import named
from dashboard.text import TEXT_LIMIT, clean, duration
from dashboard.views import Problem
from swarm.events import LOGPROBS, REWARDS
from swarm.frames.grammar import some
from swarm.protocol import RESTING, Phase, Role
from swarm.types import Verdict

FEW = 3
"""Verdicts that a sampler needs before it is judged."""

UNFETCHED = 10.0
"""Seconds in which a small release finds its first taker on any link."""

LINGER = 20.0
"""Seconds that a sampler may wait before it is reported; eight heartbeats where those are slow."""

FULL = 20
"""Over-quota verdicts in a minute that make a habit: a few are the race of many samplers for the last unit of
credit."""

REFUSALS = {
    "malformed": (
        "they do not have this run's shape",
        "It runs another version of swarm: install the swarm's version there.",
    ),
    "untrusted": (
        "learners do not accept its claims, or it was not invited",
        (
            "If you know its owner: invite it anew (`swarm invite`), and see that its task code is that of"
            " the swarm's version."
        ),
    ),
    "unverified": (
        "a replay of its groups says that they are not what its policy and seed draw, or that it claims false"
        " log-probabilities: it is suspended",
        (
            "Its engine may use another temperature, precision or version; the events say what was found, and"
            " `swarm verify` replays the evidence."
        ),
    ),
    "unscored": (
        (
            "the learners could not compute the rewards of its completions: the reward function fails there,"
            " or takes too long"
        ),
        (
            "Look at the learners' log for the reason, try the function with `swarm task try`, and give it"
            " more time (`run.task.timeout`) if it is slow."
        ),
    ),
    "duplicate": (
        "it sends groups that were already judged",
        "Its receipts get lost: look at its network, then start it again.",
    ),
    "over-quota": (
        "the learners have no room for them, or it has its part of the batches already",
        (
            "Nothing is broken there: more learners, or fewer samplers, use what is sampled. An invite by the"
            " run's owner has no such limit, one for strangers has."
        ),
    ),
}
"""Verdict -> (why, what to do)."""


@dataclass(frozen=True)
class Late:
    """A sampler whose groups are too old, and the part that makes half of their age or more: a part that
    explains less is no reason for advice."""

    peer: PeerRow
    what: str
    cause: str
    seconds: float


def unfetched(s: Situation) -> Iterator[Problem]:
    """Releases that no sampler takes."""
    takers = [peer for peer in s.samplers() if s.settled(peer) and _has_policy(peer)]
    if not takers or s.newest is None:
        return
    have = max(peer.version for peer in takers)
    waiting = sorted(version for version in s.recent.releases if version > have)
    if not waiting:
        return
    oldest = s.recent.releases[waiting[0]]
    usual = sorted(s.recent.first)[len(s.recent.first) // 2] if s.recent.first else 0.0
    claimed = min(peer.lag.get("download", 0.0) + peer.lag.get("generation", 0.0) for peer in takers)
    allowed = max(UNFETCHED, 4 * s.beat, 5 * usual, 3 * claimed) + s.transfer()
    if min(s.stalled(peer, oldest) for peer in takers) <= allowed:
        return
    count = f"Version {waiting[0]}" if len(waiting) == 1 else f"Versions {waiting[0]} to {waiting[-1]}"
    publisher = s.state.peers.get(s.newest.publisher)
    there = s.newest.publisher in s.here
    yield problem(
        "unfetched",
        "warning",
        (
            (
                f"{count} {'was' if len(waiting) == 1 else 'were'} released {duration(s.now - oldest)} ago"
                f" and no sampler has fetched {'it' if len(waiting) == 1 else 'them'}: all still use version"
                f" {have} or older."
            ),
            (
                f"Its publisher {s.name(s.newest.publisher)}"
                f" {'is here, so its link may be cut or too slow' if there else 'is not heard'}; the release"
                f" has {s.newest.size / 1e6:.3g} MB."
            ),
            (
                "Look for `could not be fetched` in a sampler's log; see that the publisher or a seed can be"
                " reached from there."
            ),
        ),
        [publisher] if publisher else [],
        oldest,
    )


def _has_policy(peer: PeerRow) -> bool:
    return peer.phase not in (Phase.UNKNOWN, Phase.STARTING, Phase.NO_POLICY, Phase.LEAVING, *RESTING)


def _is_suspended(s: Situation, peer: PeerRow) -> bool:
    _, found = s.recent.suspended.get(peer.id, ("", None))
    return found is not None and s.now < found.until


def suspended(s: Situation) -> Iterator[Problem]:
    """Samplers whose groups did not match their claims."""
    for sampler, (by, found) in list(s.recent.suspended.items())[-MANY:]:
        if s.now >= found.until:
            continue
        peer, whole = s.state.peers.get(sampler), clean(sampler, TEXT_LIMIT)
        yield problem(
            f"suspended {whole}",
            "warning",
            (
                f"{s.name(by)} suspends sampler {s.name(sampler)} for another"
                f" {duration(found.until - s.now)}: its groups are refused.",
                f"{found.why[:1].upper()}{named(found.why[1:], s.name)}.",
                "Who runs it: look at its engine's settings. `swarm verify"
                f" {clean(found.evidence) or '*'}.evidence` replays what lies in folder `evidence` of"
                f" {s.name(by)}, on any machine with the run's folder; the run's owner lets it back:"
                f" `swarm pardon {whole}`.",
            ),
            [peer] if peer else [],
            found.since,
        )


def late(s: Situation) -> Iterator[Problem]:
    """Samplers whose groups arrive too old, or that sample with a policy too old for any group to arrive in
    time."""
    found = [
        finding for peer in s.samplers() if (finding := _expired(s, peer) or _behind(s, peer)) is not None
    ]
    if len(found) <= MANY:
        for finding in found:
            yield _late(s, finding)
        return
    cause, count = Counter(finding.cause for finding in found).most_common(1)[0]
    seconds = sorted(finding.seconds for finding in found if finding.cause == cause)[count // 2]
    peers = [finding.peer for finding in found]
    why, todo = _advice(s, cause, seconds)
    yield problem(
        "late many",
        "warning",
        (
            f"The groups of {len(found)} samplers are too old when they arrive: {s.names(peers)}.",
            f"At {count} of them {why}",
            todo,
        ),
        peers,
    )


def _late(s: Situation, finding: Late) -> Problem:
    why, todo = _advice(s, finding.cause, finding.seconds)
    return problem(
        f"late {finding.peer.id}", "warning", (finding.what, why[0].upper() + why[1:], todo), [finding.peer]
    )


def _share(s: Situation, peer: PeerRow, verdicts: tuple[str, ...], least: int) -> tuple[int, int] | None:
    """(groups with these verdicts, all groups) of the newest ones, when the share is a half or more."""
    counts = s.judged.get(peer.id, {})
    bad, every = sum(counts.get(verdict, 0) for verdict in verdicts), sum(counts.values())
    return (bad, every) if bad >= least and 2 * bad >= every else None


def _expired(s: Situation, peer: PeerRow) -> Late | None:
    share = _share(s, peer, ("stale", "expired"), FEW)
    if share is None:
        return None
    window, (cause, seconds) = s.run.window, _largest(s, peer)
    explains = 2 * s.versions(seconds) > window.versions or 2 * seconds > window.seconds
    what = (
        f"{share[0]} of the last {some(share[1], 'group')} of sampler {peer.name} came too late to be"
        " trained on"
    )
    behind = s.version - peer.version
    far = behind > window.versions // 2
    what += f"; it is {some(behind, 'version')} behind." if far else "."
    return Late(peer, what, cause if explains else "policy" if far else "unexplained", seconds)


def _behind(s: Situation, peer: PeerRow) -> Late | None:
    """Whether a sampler's policy alone is too old for the window, before any verdict."""
    window, behind = s.run.window, s.version - peer.version
    heard_within = 2 * LONGEST_BEAT * s.beat * peer.slower
    # A heartbeat's figures may be as old as the heartbeat.
    age = s.now - s.recent.releases.get(peer.version, s.now)
    inside = behind <= 0 or (behind <= window.versions and age <= window.seconds)
    if inside or not _has_policy(peer) or s.now - s.listening < heard_within:
        return None
    slack = min(s.versions(heard_within), max(window.versions, 4))
    name, (cause, seconds) = f"Sampler {peer.name}", _largest(s, peer)
    if behind > window.versions + slack:
        what = (
            f"{name} is {some(behind, 'version')} behind; groups older than {window.versions} are never"
            " trained on."
        )
        explains = 2 * s.versions(seconds) >= behind
    elif age > window.seconds + heard_within:
        what = (
            f"{name} samples with a policy {duration(age)} old; beyond {duration(window.seconds)} no group is"
            " trained on."
        )
        explains = 2 * seconds >= age
    else:
        return None
    return Late(peer, what, cause if explains else "policy", seconds)


def _largest(s: Situation, peer: PeerRow) -> tuple[str, float]:
    """The cause with the largest part of its groups' age; the inbox is the learners' part."""
    causes = {cause: peer.lag.get(cause, 0.0) for cause in ("download", "queue", "generation", "upload")}
    inboxes = [learner.lag.get("inbox", 0.0) for learner in s.learners()]
    causes["inbox"] = sum(inboxes) / len(inboxes) if inboxes else 0.0
    cause = max(causes, key=lambda name: causes[name])
    return (cause, causes[cause]) if causes[cause] > 0.0 else ("policy", 0.0)


def _advice(s: Situation, cause: str, seconds: float) -> tuple[str, str]:
    """Why groups are late, and what to do about it."""
    took = duration(seconds) + (
        f", in which {some(n, 'version')} came" if (n := s.versions(seconds)) > 0 else ""
    )
    window = f"`run.window` ({s.run.window.versions} versions, {duration(s.run.window.seconds)})"
    return {
        "download": (
            f"most of the delay is the policy's download: {took}.",
            (
                "Give it more bandwidth or a peer near it that holds the policy (a seed there); a delay set"
                " in `peer.delay.policy` counts here too."
            ),
        ),
        "queue": (
            f"most of the delay is waiting with a policy before it is used: {took}.",
            (
                "It waits for credit or for its engine: fewer samplers, more learners, or a smaller"
                " `peer.engine.tasks` there."
            ),
        ),
        "generation": (
            f"most of the delay is sampling: {took}.",
            (
                "Set a smaller `peer.engine.tasks` there, use a faster engine or device, or let learners"
                f" make versions more slowly (`run.batch.groups`) or widen {window}."
            ),
        ),
        "upload": (
            f"most of the delay is the groups' way to the learner: {took}.",
            "Give it a better link to the learners; a delay set in `peer.delay.upload` counts here too.",
        ),
        "inbox": (
            f"most of the delay is waiting in the learners' inboxes: {took}.",
            "Add learners, let fewer peers sample, or lower `run.batch.buffer`.",
        ),
        "unexplained": (
            f"the delays that it reports do not explain it: the largest is {duration(seconds)}.",
            "Look at its log and at the clock of its machine; start it again if it goes on.",
        ),
        "policy": (
            "newer releases do not reach it, and it does not say why.",
            "Look for `could not be fetched` in its log; start it again if it goes on.",
        ),
    }[cause]


def refused(s: Situation) -> Iterator[Problem]:
    """Samplers whose groups are mostly refused for another reason than their age."""
    for peer in s.samplers() if s.judged else ():
        counts = s.judged.get(peer.id, {})
        if REFUSALS.keys().isdisjoint(counts):
            continue
        verdict = max(REFUSALS, key=lambda name: counts.get(name, 0))
        if verdict == Verdict.UNVERIFIED and _is_suspended(s, peer):
            continue
        share = _share(s, peer, (verdict,), FULL if verdict == "over-quota" else FEW)
        if share is None:
            continue
        why, todo = refusal(s, [peer], verdict) or REFUSALS[verdict]
        yield problem(
            f"refused {peer.id}",
            "warning",
            (
                (
                    f"{share[0]} of the last {some(share[1], 'group')} of sampler {peer.name} were refused as"
                    f" {verdict}."
                ),
                f"{why[0].upper()}{why[1:]}.",
                todo,
            ),
            [peer],
        )


def refusal(s: Situation, peers: list[PeerRow], verdict: str) -> tuple[str, str] | None:
    """Why groups of these samplers are refused so, and what to do; None for one that needs no advice."""
    told = {known.kind: known.reason for peer in peers if (known := s.recent.distrust.get(peer.id))}
    if verdict == Verdict.UNTRUSTED and REWARDS in told:
        return (
            f"its rewards differ from the learners': {told[REWARDS]}",
            (
                "Is the reward random, or does it read the clock, the network or what is installed? `swarm"
                " task try` computes it twice. If it is the same number everywhere, the sampler claims what"
                " is false."
            ),
        )
    if verdict == Verdict.MALFORMED and LOGPROBS in told:
        return (
            "the log-probabilities that it claims are not finite: the policy overflows, or its engine does",
            (
                f"Where it is so at all samplers the steps were too large: lower `run.optimizer.lr`"
                f" ({s.run.optimizer.lr:g}) and begin again, from a version before it if there is one. At one"
                " alone, look at its engine, device and precision."
            ),
        )
    return REFUSALS.get(verdict)


def idle(s: Situation) -> Iterator[Problem]:
    """Samplers that wait for long: for credit, or for a first policy."""
    least = max(LINGER, 8 * s.beat, 10 * (s.usual or 0.0))
    waiting = (p for p in s.samplers() if p.phase is Phase.NO_CREDIT and not _is_suspended(s, p))
    hungry = [p for p in waiting if _workless(s, p) > least]
    if hungry and s.working(Role.LEARNER):
        yield _hungry(s, hungry)
    allowed = max(LINGER, 8 * s.beat) + s.transfer()
    lacking = [
        p for p in s.samplers() if p.phase is Phase.NO_POLICY and s.stalled(p, s.trace(p).since) > allowed
    ]
    if lacking:
        longest = max(s.since(peer) for peer in lacking)
        none = s.newest is None
        yield problem(
            "no policy",
            "warning",
            (
                (
                    f"{s.names(lacking)} {'has' if len(lacking) == 1 else 'have'} waited for a first policy"
                    f" for {duration(longest)}."
                ),
                (
                    "No policy has been released yet: the seed or a learner has to release one."
                    if none
                    else f"Version {s.version} is released but does not arrive there."
                ),
                (
                    "Look at the seed's log."
                    if none
                    else "Look for `could not be fetched` in the log there, and at its network."
                ),
            ),
            lacking,
            s.now - longest,
        )


def _workless(s: Situation, peer: PeerRow) -> float:
    """Seconds since it finished a group."""
    return s.now - max(s.trace(peer).worked, s.listening)


def _hungry(s: Situation, hungry: list[PeerRow]) -> Problem:
    longest = max(_workless(s, peer) for peer in hungry)
    open_ = sum(learner.credit for learner in s.learners())
    has = "has" if len(hungry) == 1 else "have"
    return problem(
        "no credit",
        "info",
        (
            f"{s.names(hungry)} {has} waited for credit for {duration(longest)}.",
            (
                "The learners have all the groups that they can use inside the window."
                if open_ == 0
                else (
                    f"The learners advertise credit for {some(open_, 'group')}, but other samplers are faster"
                    " or it is not heard there."
                )
            ),
            (
                "Nothing is broken: more learners would use it, or let it sample elsewhere."
                if open_ == 0
                else "Nothing to do while other samplers fill the batches; else look at the network there."
            ),
        ),
        hungry,
        s.now - longest,
    )
