"""Plans of faults for a swarm of processes, and what must hold after them."""

from __future__ import annotations

from lab.rows import faults
from lab.rows.faults import Plan


def endured(plan: Plan) -> None:
    """Fails with what went wrong, and the ends of all logs."""
    report = faults.trials(print, plan)
    struck = "\n".join(str(trial.fault) for trial in report.trials)
    assert not report.stuck, f"{report.stuck}\nafter (seed {plan.seed})\n{struck}"
    assert report.trials
    assert [trial for trial in report.trials if None in (trial.next_version, trial.full_strength)] == []
    assert (report.left, report.ended, report.differing) == ([], [], {})
    assert report.groups.once > 0
    assert plan.fills or report.groups.passed, (report.groups.lost, report.groups.doubled)


def only(kills: int = 0, **more: object) -> Plan:
    """A plan without what it does not name."""
    return Plan(**({"kills": kills, "stops": (), "parts": (), "fills": ()} | more))
