"""The role, and the precision of its engine, that fit this machine.

Imports torch. Not handled here: the estimates (peers.fit).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from peers.fit import fits, hardware
from peers.fit.fits import RoleChoice
from swarm.protocol import Role
from swarm.settings.config import Config


def fitting(model: Path, config: Config, asked: Role | None, allowed: Collection[Role]) -> RoleChoice:
    """`asked`: the role that the person or the word names. Raises CannotHere."""
    machine = hardware.lent(hardware.machine(), config.peer.limits)
    return fits.choose(fits.Case.of(model, config, machine), asked, allowed)
