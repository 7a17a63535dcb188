"""Rules about which peers are here, and whether they are sound: silent peers, missing roles, clocks, strange
frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from dashboard.diagnosis.situation import LONGEST_BEAT, MANY, Situation, listed, problem
from dashboard.fold.peer import PeerRow
from dashboard.text import duration
from dashboard.views import Level, Problem
from swarm.frames.grammar import some
from swarm.protocol import RESTING, Role
from swarm.types import PeerId

FIRST_COME = 60.0
"""Seconds in which the first peer of a role may come: on a busy machine a learner takes half a minute to
load."""

GOODBYE = 5.0
"""Seconds after a farewell before its role is missed: a peer that is started again, or the end of a run."""

SKEW = 2.0
"""Seconds that a clock may be off: hivemind refuses a join at 3."""

BACKLOG = 6
"""Heartbeats after a pause of this window before clocks are judged: those that queued during the pause are
old."""

FRAMES = 10
"""Refused frames of one sender in a minute: fewer are a joiner, a restart, a damaged line."""

AWAITED = "awaited"
"""Key of the problem that a new run waits for peers."""

LOADING = "loading"
"""Prefix of the key of the problem that a start waits for peers."""

MISSED = ("lost ", "no ")
"""Prefixes of the keys of problems about missing peers."""

WITHOUT_SEED = "invites that name no other peer stop working, and no peer keeps the run's history"

OTHER_WORDS = "Meanwhile `swarm invite` in any peer's folder prints invites that work."

_ROLES = (Role.LEARNER, Role.SAMPLER, Role.SEED)


def cut_off(s: Situation) -> Iterator[Problem]:
    """This window itself is cut off."""
    clock = s.recent.clock or s.now
    yield problem(
        "deaf",
        "error",
        (
            f"This window has heard nothing for {duration(s.now - clock)}: what it shows is that old.",
            (
                "Not even its own heartbeat came: its process was stopped, its machine slept, or a journal"
                " ends here."
            ),
            "Look at the process and the log of the peer that reports this, and start it again.",
        ),
        since=clock,
    )


def lost(s: Situation) -> Iterator[Problem]:
    """Peers that were here and fell silent without a farewell. Samplers may be strangers: no crowd of them
    hides a learner."""
    alone = not any(peer.id != s.recent.me for role in Role for peer in s.alive[role])
    if alone and len(s.silent) > MANY:
        yield _many(
            s,
            s.silent,
            "No other peer is heard either, so it may be this window's own network.",
            "Look at this machine's network first.",
        )
        return
    for role in Role:
        peers = [(peer, silence) for peer, silence in s.silent if peer.role is role]
        if len(peers) > MANY:
            yield _many(
                s,
                peers,
                "So many at once have something in common: a site, a machine, a network or a relay.",
                "Look for what they share; those that come back go on where the swarm is, without a restart.",
            )
            continue
        for peer, silence in peers:
            yield _silent(s, peer, silence)


def _many(s: Situation, silent: list[tuple[PeerRow, float]], cause: str, todo: str) -> Problem:
    peers = [peer for peer, _ in silent]
    roles = Counter(peer.role for peer in peers)
    counts = listed([some(count, str(role)) for role, count in roles.most_common()], most=5)
    missing = [f"no {_kind(s, role)} is left" for role in roles if role in _ROLES and not s.alive[role]]
    shortest = min(silence for _, silence in silent)
    return problem(
        f"lost many {listed(sorted(roles), most=5)}",
        "error" if missing else "warning",
        (
            f"{counts} have been silent for {duration(shortest)} or longer, among them {s.names(peers)}"
            + (f"; {listed(missing)}." if missing else "."),
            cause,
            todo,
        ),
        peers,
        max(peer.heard for peer in peers),
    )


def _silent(s: Situation, peer: PeerRow, silence: float) -> Problem:
    cost, level = _cost(s, peer)
    missed, patience = int(silence / (LONGEST_BEAT * s.beat * peer.slower)), s.patience * peer.slower
    sure = silence > patience or peer.gone == "lost"
    return problem(
        f"lost {peer.id}",
        level,
        (
            f"{str(peer.role).capitalize()} {peer.name} has been silent for {duration(silence)}: {cost}.",
            (
                "It said no goodbye: its process was killed, or its machine or network is down."
                if sure
                else (
                    f"It missed {some(missed, 'heartbeat')}; after {duration(patience)} of silence it"
                    " counts as lost."
                )
            ),
            _restart(s, peer.role),
        ),
        [peer],
        peer.heard,
    )


def returning(problem: Problem, ids: Collection[str]) -> Problem:
    """`problem` for a program that restarts the peers `ids` itself: where only they are missing, the user has
    nothing to do."""
    if problem.key.startswith(MISSED) and problem.peers and set(problem.peers) <= set(ids):
        who = "the peer is" if len(problem.peers) == 1 else "the peers are"
        return replace(problem, todo=f"Wait for a minute: {who} started again here.")
    return problem


def _cost(s: Situation, peer: PeerRow) -> tuple[str, Level]:
    others = len(s.alive[peer.role])
    match peer.role:
        case Role.LEARNER if others == 0:
            return "no learner is left, so nothing is trained", "error"
        case Role.LEARNER:
            go_on = "learner goes on alone" if others == 1 else f"{others} learners average without it"
            return f"the other {go_on}", "warning"
        case Role.SAMPLER if others == 0:
            return f"no {_kind(s, Role.SAMPLER)} is left, so no new groups come", "error"
        case Role.SAMPLER:
            goes = "sampler goes" if others == 1 else f"{others} samplers go"
            return f"the other {goes} on without its groups", "warning"
        case Role.SEED if others == 0:
            return f"the others train on, but {WITHOUT_SEED}", "error"
        case Role.EVALUATOR:
            return (
                (
                    "no peer measures the held-out accuracy"
                    if others == 0
                    else "there are fewer to measure accuracy"
                ),
                "warning",
            )
        case Role.AUDITOR if others == 0:
            return "learners replay all that they draw themselves again", "warning"
    return "the others go on without it", "warning"


def _kind(s: Situation, role: Role) -> str:
    """The missed peers of a role: a stranger that is here, or not lost yet, is another of its peers."""
    silent = {peer.id for peer, _ in s.silent}
    others = (peer for peer in s.state.peers.values() if peer.role is role and not peer.gone)
    return f"{role} that has delivered" if any(peer.id not in silent for peer in others) else str(role)


def _restart(s: Situation, role: Role) -> str:
    if role is Role.SEED:
        return (
            "On its machine, read the end of `peers/seed/log` in the run folder; then start the run again"
            f" there with the same folder. {OTHER_WORDS}"
        )
    here = (
        "If `swarm up` started it here, that starts it again when its process ends; its log is in `logs/`. "
    )
    return (here if role in s.state.starts else "") + (
        "On its machine, read the end of its `log` in the run folder, below `peers/`; then `swarm join`"
        " again: it goes on where the swarm is."
    )


def loading(s: Situation) -> Iterator[Problem]:
    """Peers that the command behind this view starts, and that have not sent a heartbeat yet: no fault, and
    no invite is needed."""
    if not (missing := _loading(s)):
        return
    left, every = sum(missing.values()), sum(s.state.starts.values())
    so_far = f" ({duration(s.now - s.recent.began)} so far)" if s.recent.clock is not None else ""
    kinds = listed([some(count, str(role)) for role, count in missing.items()], most=4)
    yield problem(
        f"{LOADING} {left}",
        "info",
        (
            f"{left} of {every} peers {'is' if left == 1 else 'are'} loading{so_far}: {kinds}.",
            "`swarm up` starts them on its machine, and each loads the program and the model.",
            "Wait for them; if one does not come, read its log in the folder `logs` of the run.",
        ),
    )


def _loading(s: Situation) -> dict[Role, int]:
    came = Counter(
        peer.role for peer in s.state.peers.values() if peer.beating and peer.heard >= s.recent.began
    )
    return {role: many - came[role] for role, many in s.state.starts.items() if came[role] < many}


def awaited(s: Situation) -> Iterator[Problem]:
    """Peers that a run without any training yet waits for: no fault, since some peer has to come first."""
    if not (missing := _awaited(s)):
        return
    roles = " and ".join(f"no {role}" for role in missing)
    words = " and ".join(f"`swarm invite --role {role}`" for role in missing)
    yield problem(
        AWAITED,
        "info",
        (
            f"No training yet: {roles} has come.",
            "Samplers make groups of completions, learners train on them; a seed alone does neither.",
            f"Invite peers: {words} in the folder of this run prints one, `swarm join INVITE` takes it.",
        ),
    )


def _awaited(s: Situation) -> list[Role]:
    if s.state.begun or not any(s.alive[role] for role in Role if role is not Role.OBSERVER):
        return []
    known = {*(peer.role for peer in s.state.peers.values()), *_loading(s)}
    return [role for role in (Role.LEARNER, Role.SAMPLER) if role not in known and s.receives(role)]


def absent(s: Situation) -> Iterator[Problem]:
    """A missing role without which the swarm stands still; not where `lost` names a silent peer of it, or
    where a new run waits for the first one."""
    listening = s.now - s.listening if s.recent.beating else 0.0
    costs = {
        Role.LEARNER: "nothing is trained",
        Role.SAMPLER: "no groups come and nothing can be trained",
        Role.SEED: WITHOUT_SEED,
    }
    first = {*_awaited(s), *_loading(s), *s.unsure, *(peer.role for peer, _ in s.silent)}
    for role, cost in costs.items():
        last = s.gone.get(role)
        if s.alive[role] or role in first or not s.receives(role):
            continue
        if s.strangers[role]:
            yield from _unproven(s, role)
            continue
        if last is None and listening > max(FIRST_COME, 2 * s.grace):
            cause = f"None was heard in the {duration(listening)} that this window listens."
        elif last is not None and s.now - last.heard > max(GOODBYE, 2 * s.beat):
            cause = f"{last.name}, the last one, {_went(last)} {duration(s.now - last.heard)} ago."
        else:
            continue
        yield problem(
            f"no {role}",
            "error" if role is not Role.SEED else "warning",
            (f"No {role} is here: {cost}.", cause, _invite(role)),
            [last] if last is not None else [],
            last.heard if last is not None else s.listening,
        )


def _went(peer: PeerRow) -> str:
    if peer.revoked:
        return "was revoked by the run's owner"
    return "left" if peer.gone == "left" else "fell silent"


def _unproven(s: Situation, role: Role) -> Iterator[Problem]:
    """All of a role that are here are strangers."""
    peers = s.strangers[role]
    if not any(map(s.settled, peers)):
        return
    yield problem(
        f"unproven {role}",
        "info",
        (
            f"No group of {some(len(peers), role)} was admitted yet: {s.names(peers)}.",
            "A first group takes as long as the model takes to sample it; its row has what was refused.",
            "Wait for it. If none comes, `swarm why` in the folder of that peer says why.",
        ),
    )


def _invite(role: Role) -> str:
    if role is Role.SEED:
        return f"Start the run again where it was started, with the same folder. {OTHER_WORDS}"
    return f"Start one with `swarm join INVITE`; `swarm invite --role {role}` prints an invite."


def resting(s: Situation) -> Iterator[Problem]:
    """A role without which the swarm stands still, all of whose peers are paused: no fault, but the reason.
    Of a role that this dashboard does not see it knows its own peer alone."""
    for role, cost in ((Role.LEARNER, "nothing is trained"), (Role.SAMPLER, "no groups come")):
        peers = s.alive[role]
        others = [peer for peer in s.strangers[role] if peer.phase not in RESTING]
        if not peers or s.working(role) or others or any(peer.role is role for peer, _ in s.silent):
            continue
        shortest, one = min(map(s.since, peers)), len(peers) == 1
        every = s.receives(role)
        yield problem(
            f"rest {role}",
            "info",
            (
                (
                    f"Every {role} rests: {cost} until one goes on."
                    if every
                    else f"{s.names(peers)} {'rests' if one else 'rest'}; other {role}s are not heard here."
                ),
                f"{s.names(peers)} {'is' if one else 'are'} paused or limited by those who lend"
                f" {'it' if one else 'them'}, for {duration(shortest)} or longer.",
                "Nothing is broken: `swarm resume` there lets "
                + (f"{'it' if one else 'them'} go on." if not every else "them go on; or invite others."),
            ),
            peers,
            s.now - shortest,
        )


def clocks(s: Situation) -> Iterator[Problem]:
    """Clocks that disagree with the window's."""
    patient = s.now - s.listening > BACKLOG * LONGEST_BEAT * s.beat
    here = [peer for role in Role for peer in s.alive[role] if peer.id != s.recent.me]
    suspects = [peer for peer in here if peer.clocks and abs(peer.clocks[-1]) > SKEW] if patient else []
    off = [(peer, skew) for peer in suspects if (skew := peer.skew) is not None and abs(skew) > SKEW]
    if len(off) > max(2, 2 * len(here) // 3):
        middle = sorted(skew for _, skew in off)[len(off) // 2]
        yield problem(
            "clock",
            "warning",
            (
                f"This window's clock is {_ahead(-middle)} the clocks of {len(off)} of {len(here)} peers.",
                "So many cannot be wrong at once: the clock of this machine is off.",
                (
                    "Turn on time synchronisation (NTP) on this machine: ages and lags on this dashboard are"
                    " wrong by as much."
                ),
            ),
            [peer for peer, _ in off],
        )
        return
    for peer, skew in off:
        yield problem(
            f"clock {peer.id}",
            "warning",
            (
                f"The clock of {peer.name} is {_ahead(skew)} this window's.",
                (
                    "Its machine does not synchronise its time: it works on, since ages are counted around a"
                    " clock that is a minute off, but with 3 s it is refused when it joins again."
                ),
                "Turn on time synchronisation (NTP) on its machine, for example `timedatectl set-ntp true`.",
            ),
            [peer],
        )


def _ahead(skew: float) -> str:
    return f"{duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'}"


def distrust(s: Situation) -> Iterator[Problem]:
    """Senders whose frames are refused in numbers."""
    for sender, known in s.recent.distrust.items():
        count = sum(s.now - at < 60.0 for at in known.marks)
        if count < FRAMES or known.revoked:
            continue
        peer = s.state.peers.get(PeerId(sender))
        least = "At least " if count == known.marks.maxlen else ""
        yield problem(
            f"distrust {sender}",
            "warning",
            (
                (
                    f"{least}{count} frames ({known.kind}) of {s.name(sender)} were not believed in the last"
                    " minute."
                ),
                f"The last one: {known.reason.rstrip('.')}.",
                (
                    "They do no harm. If you know its owner: both must run the same version, with an invite"
                    " of this run."
                ),
            ),
            [peer] if peer else [],
            known.marks[0],
        )
