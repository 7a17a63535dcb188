"""Rules about a peer's parts that broke and are not back, and its disk, its membership and its key."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard.diagnosis.situation import Situation, problem
from dashboard.fold.peer import PeerRow
from dashboard.fold.recent import OpenFault
from dashboard.text import duration, is_full
from dashboard.views import Problem
from swarm.protocol import PARTS, Part

REPLACED_WITHIN = 5.0
"""Seconds in which a supervised part is replaced."""

MOMENTARY = {part for part, row in PARTS.items() if row.momentary}

REPEATED_HOURLY = 2 * 3600.0
"""Seconds after which a warning that is repeated every hour, more or less, is over."""

SINGLE_FAILURE = 60.0
"""Seconds after which a single failure is over."""


def _broken(s: Situation, momentary: bool) -> Iterator[tuple[PeerRow, str, OpenFault]]:
    for (peer_id, part), fault in s.recent.faults.items():
        peer = s.state.peers.get(peer_id)
        if peer is not None and peer_id in s.here and (part in MOMENTARY) is momentary:
            yield peer, part, fault


def faults(s: Situation) -> Iterator[Problem]:
    """Parts of a peer that broke and are not back."""
    for peer, part, fault in _broken(s, momentary=False):
        if s.now - fault.since <= REPLACED_WITHIN or s.now - fault.last >= 600.0:
            continue
        if part == Part.REWARDS:
            yield problem(
                f"fault {peer.id} {part}",
                "warning",
                (
                    (
                        f"{peer.name} has not been able to compute a reward for"
                        f" {duration(s.now - fault.since)}: {fault.detail}"
                    ),
                    "The reward function raises, hangs or returns no reward; those groups are lost.",
                    (
                        "Try it with `swarm task try` and the run's config; give it more time"
                        " (`run.task.timeout`) if it is slow."
                    ),
                ),
                [peer],
                fault.since,
            )
        else:
            yield problem(
                f"fault {peer.id} {part}",
                "warning",
                (
                    (
                        f"{part} of {peer.name} broke {duration(s.now - fault.since)} ago and is not back:"
                        f" {fault.detail}"
                    ),
                    "Its supervision tries again and again and has not succeeded.",
                    f"Look at the log of {peer.name}; if it goes on, start that peer again.",
                ),
                [peer],
                fault.since,
            )
    for peer, part, fault in _broken(s, momentary=True):
        if part == Part.MAIL and s.now - fault.last < SINGLE_FAILURE:
            yield problem(
                f"fault {peer.id} {part}",
                "warning",
                (
                    (
                        f"{peer.name} failed to answer a message {duration(s.now - fault.last)} ago:"
                        f" {fault.detail}"
                    ),
                    "That is a bug of this program, not of the peer that asked.",
                    f"Keep the log of {peer.name} and report it.",
                ),
                [peer],
                fault.since,
            )


def disk(s: Situation) -> Iterator[Problem]:
    """Disks that take no more or lost something; a learner tries again at its next checkpoint."""
    again = 1.5 * s.run.release.checkpoint_every * (s.usual or 0.0)
    for peer, part, fault in _broken(s, momentary=True):
        if part == Part.DISK and s.now - fault.last < max(SINGLE_FAILURE, again):
            yield problem(f"disk {peer.id}", "warning", _disk(peer, fault), [peer], fault.since)


def _disk(peer: PeerRow, fault: OpenFault) -> tuple[str, str, str]:
    detail = fault.detail.rstrip(".")
    if is_full(detail):
        return (
            f"The disk of {peer.name} is full: kept in memory until there is space.",
            f"It says: {detail}. The peer goes on; a crash before there is room costs what is not written.",
            "Make room on that disk: what it refused is written then, without a restart.",
        )
    return (
        f"The disk of {peer.name} refuses or lost something: {detail}.",
        "It is read-only, slow or failing, its peer was stopped for a while, or a file was changed. The"
        " peer goes on; a crash would cost what is not written, and what is damaged is fetched again.",
        "Look at that disk and at the peer's log; what it refused is written once it takes it.",
    )


def memberships(s: Situation) -> Iterator[Problem]:
    """Peers whose membership ends soon. They check and warn about once an hour."""
    for peer, part, fault in _broken(s, momentary=True):
        if part == Part.MEMBERSHIP and s.now - fault.last < REPEATED_HOURLY:
            yield problem(
                f"membership {peer.id}",
                "warning",
                (
                    f"The membership of {peer.name} ends soon: {fault.detail}",
                    (
                        "It lasts a month and is renewed by the seed where the run was started. After its"
                        f" end no peer listens to this {peer.role}."
                    ),
                    (
                        "Start the run again where it was started, or join with a new invite: `swarm invite"
                        f" --role {peer.role}`."
                    ),
                ),
                [peer],
                fault.since,
            )


def identities(s: Situation) -> Iterator[Problem]:
    """Peers whose key another process has. The newer one reports it each minute while it receives the older's
    heartbeats."""
    for peer, part, fault in _broken(s, momentary=True):
        if part == Part.IDENTITY and s.now - fault.last < SINGLE_FAILURE + 2 * s.patience:
            yield problem(
                f"identity {peer.id}",
                "warning",
                (
                    f"{peer.name} runs in two places with one key: {fault.detail}",
                    (
                        "Its folder was copied. Messages and connections of the two are taken for those"
                        " of one peer; the process that was started first stops once it notices."
                    ),
                    (
                        "Delete the file `key` in the folder of one of the two, which then is another peer at"
                        " its next start, or join anew from an empty folder."
                    ),
                ),
                [peer],
                fault.since,
            )
