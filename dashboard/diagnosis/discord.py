"""Rules about two learners whose gradients cannot both be right."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard.diagnosis.situation import Situation, problem
from dashboard.text import duration
from dashboard.views import Problem


def frozen(s: Situation) -> Iterator[Problem]:
    """Two learners whose gradients point away from each other, or differ grossly in length."""
    found = [peer for peer in s.learners() if peer.id in s.recent.frozen]
    times = [s.recent.frozen[peer.id] for peer in found]
    if not found or (until := max(each.until for each in times)) <= s.now:
        return
    # A length may have many reasons; a direction that is wrong round after round has few.
    apart, wrong, out = (
        (
            "differ grossly in length",
            "One of them computes with wrong numbers (memory, drivers, precision, another version), or they"
            " train on groups of another kind",
            "stop the one that is wrong",
        )
        if any(each.unequal for each in times)
        else (
            "point away from each other",
            "One of them is wrong (memory, drivers, precision, another version of swarm), or means harm",
            "stop the wrong one, or have the owner revoke it (`swarm revoke`)",
        )
    )
    yield problem(
        "frozen",
        "error",
        (
            f"{s.names(found)} train nothing for another {duration(until - s.now)}: their gradients"
            f" {apart}, and neither steps.",
            f"{wrong}; of two learners neither is in the majority. They try again by themselves.",
            f"Look at both machines; {out}: the other goes on at once. A third learner outvotes it, and"
            " `peer.audit.gradients` tells which it is.",
        ),
        found,
        min(each.since for each in times),
    )
