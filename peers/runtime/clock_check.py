"""Tells when the clock of this machine differs from those of the other peers.

Ages are counted around wrong clocks (swarm.core.roster), so a peer with one works; it is told all the same,
since hivemind refuses it when it joins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm import events
from swarm.core.roster import CLOCK

if TYPE_CHECKING:
    from peers.runtime.host import Host


class ClockCheck:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._told = 0.0
        """Seconds by which this machine's clock was last said to be ahead."""

    def look(self) -> None:
        """Say so once, and again when it is wrong by something else."""
        wrong = self._host.roster.wrong()
        if abs(wrong - self._told) <= CLOCK:
            return
        self._told = wrong
        if wrong:
            text = (
                f"the clock of this machine is {abs(wrong):.0f} s {'ahead of' if wrong > 0 else 'behind'} the"
                " other peers': ages are counted around it; set it, for example with `timedatectl set-ntp"
                " true`, and start this peer again"
            )
            self._host.emit(events.Noted, level="warning", text=text)
