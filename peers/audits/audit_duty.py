"""Audits as a duty: a peer that has another role replays groups beside its work, as an auditor does.

    evaluator                          with `peer.audit.share` above 0, between its evaluations
    sampler that is a member           with `peer.audit.duty`, too, between its groups
      -> peers.audits.auditor_peer, beside the role

Members are all of a private run, and in a public one whom the owner's folder starts: its words for samplers
make none. Heartbeats say who has the duty (`Beat.audits`), which counts for members alone. Not handled here:
replays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from peers.errors import WrongUsage
from peers.runtime.host import Host
from swarm import events
from swarm.core.audits.auditing import NOTHING_REPLAYED
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.tasks.base import TaskSource

if TYPE_CHECKING:
    from peers.audits.auditor_peer import AuditorPeer
    from peers.audits.replayer import MakeReplay

STRANGER = (
    "peer.audit.duty is left out: this sampler is no member of the run, so that learners would not hear what"
    " it finds; in a public run a word for auditors (`swarm invite --role auditor`) makes one that they hear"
)


def check_that_groups_are_audited(config: Config) -> None:
    """Raises WrongUsage where an auditor has nothing to do."""
    if config.run.sampling.quantized:
        raise WrongUsage(
            f"this run has no work for an auditor: {NOTHING_REPLAYED}; ask its owner for an invite of another"
            " role"
        )


class Program(Protocol):
    """A role."""

    async def run(self) -> None: ...


def has_duty(host: Host) -> bool:
    """Whether a peer audits beside its own work."""
    audit, can = host.config.peer.audit, not host.config.run.sampling.quantized
    asked = host.who.role is Role.EVALUATOR or _asks(host)
    return asked and can and audit.share > 0 and host.who.membership is not None


def _asks(host: Host) -> bool:
    return host.who.role is Role.SAMPLER and host.config.peer.audit.duty


def on_duty(
    host: Host, role: Program, source: TaskSource, vocabulary: Callable[[], int], make: MakeReplay
) -> Program:
    """The role, with audits beside it where they are its peer's duty; the rest as in AuditorPeer."""
    if not has_duty(host):
        if _asks(host) and host.who.membership is None:
            host.emit(events.Noted, level="warning", text=STRANGER)
        return role
    from peers.audits.auditor_peer import AuditorPeer  # and torch with it

    return OnDuty(role, AuditorPeer(host, source, vocabulary(), make, beside=True))


class OnDuty:
    """Audits end when the role does."""

    def __init__(self, role: Program, auditor: AuditorPeer) -> None:
        self._role, self._auditor = role, auditor

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            duty = tasks.create_task(self._auditor.run())
            await self._role.run()
            duty.cancel()
