"""Reports when this machine's clock differs from those of the other peers, and when this peer was suspended.

Ages are counted around wrong clocks (swarm.core.roster), so a peer with one works; it is reported all the
same, since hivemind refuses such a peer when it joins again. After a suspension the other peers look silent,
and its connections end: so the cause is reported first.
"""

from __future__ import annotations

from dashboard.text import duration
from peers.runtime.kernel import Kernel
from swarm import events
from swarm.core.roster import CLOCK


class ClockCheck:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._reported = 0.0
        """Last reported seconds by which this machine's clock is ahead."""
        self._looked: float | None = None
        """When `look` was called last."""

    def look(self) -> None:
        """To be called several times within the run's patience. Reports a wrong clock once, and again when
        the difference changes."""
        self._look_still()
        wrong = self._kernel.roster.wrong()
        if abs(wrong - self._reported) <= CLOCK:
            return
        self._reported = wrong
        if wrong:
            advice = (
                "ages are counted around it; set it, for example with `timedatectl set-ntp true`, and start"
                " this peer again"
            )
            self._kernel.emit(events.Noted, level="warning", text=f"{wrong_clock(wrong)}: {advice}")

    def _look_still(self) -> None:
        kernel, before, self._looked = self._kernel, self._looked, self._kernel.now()
        if before is None or (still := self._looked - before) <= kernel.config.run.pace.patience:
            return
        why = "its machine slept or was too busy for it, or it was stopped"
        after = "the others counted it as lost meanwhile, and it goes on where they are now"
        text = f"this peer stood still for {duration(still)}: {why}; {after}"
        kernel.emit(events.Noted, level="warning", text=text)


def wrong_clock(ahead: float) -> str:
    """That this machine's clock is so many seconds ahead of the others'; empty where it is right."""
    if not ahead:
        return ""
    where = "ahead of" if ahead > 0 else "behind"
    return f"the clock of this machine is {abs(ahead):.0f} s {where} the other peers'"
