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
    apart = (
        "differ grossly in length" if any(each.unequal for each in times) else "point away from each other"
    )
    if found and (until := max(each.until for each in times)) > s.now:
        yield problem(
            "frozen",
            "error",
            (
                f"{s.names(found)} train nothing for another {duration(until - s.now)}: their gradients"
                f" {apart}, and neither steps.",
                "One of them is wrong (memory, drivers, precision, another version of swarm), or means harm;"
                " of two nobody is in the majority. They try again by themselves.",
                "Look at both machines; stop the wrong one, or have the owner revoke it (`swarm revoke`): the"
                " other goes on at once. A third learner outvotes it, and `peer.audit.gradients` tells which"
                " it is.",
            ),
            found,
            min(each.since for each in times),
        )
