"""The program of a role, in a run."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from swarm.protocol import ROLES, PolicyUse, Role
from swarm.settings.config import Run

SITE_LEARNER = "peers.learner.sites:SiteLearnerPeer"
"""Replaces the table's entry for learners of a run in `sites` mode."""


def program_of(role: Role, run: Run) -> Any:
    """The class whose `run` method carries out the role."""
    row = ROLES[role]
    sites = row.policy is PolicyUse.TRAINED and run.averaging.mode == "sites"
    return resolve_name(SITE_LEARNER if sites else row.program)
