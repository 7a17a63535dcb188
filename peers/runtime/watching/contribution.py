"""What a peer gave to its run, in a sentence at its end: groups, tokens, hours, share, accuracy."""

from __future__ import annotations

from peers.runtime.host import Host
from swarm.protocol import Role


class Contribution:
    """Looks at the host now and then; `look` at least as often as versions are forgotten."""

    def __init__(self, host: Host) -> None:
        self._host, self._since = host, host.now()
        self._version: int | None = None
        """The newest one whose groups are counted; those that were there at the start do not count."""
        self._trained = 0
        self._accuracies: list[float] = []
        """The first that an evaluator told, and the last."""

    def look(self) -> None:
        """Count what was released since the last look."""
        for release in self._host.releases.announced():
            if self._version is not None and release.version > self._version:
                self._trained += release.groups
                self._version = release.version
        if self._version is None and (newest := self._host.releases.announced()):
            self._version = newest[-1].version
        for _, beat in self._host.roster:
            if beat.role is Role.EVALUATOR and 0 <= beat.accuracy <= 1:
                self._accuracies = [*self._accuracies[:1], beat.accuracy]

    def sentence(self) -> str:
        """The sum."""
        host, status = self._host, self._host.status
        lasted = _time(host.now() - self._since)
        given = {Role.SAMPLER: status.admitted, Role.LEARNER: status.done}.get(host.who.role)
        if given is None:
            return f"this {host.who.role.value} was here for {lasted}{self._learned()}"
        verb = "gave" if host.who.role is Role.SAMPLER else "trained on"
        share = (
            f", {min(1.0, given / self._trained):.0%} of what the run trained meanwhile"
            if self._trained
            else ""
        )
        what = f"{given:,} groups in {lasted} ({status.handled:,} tokens)"
        return f"this {host.who.role.value} {verb} {what}{share}{self._learned()}"

    def _learned(self) -> str:
        if not self._accuracies:
            return ""
        return f"; held-out accuracy {self._accuracies[0]:.1%} -> {self._accuracies[-1]:.1%}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
