"""What an invite names runs as a program of the joiner's where the joiner consents, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from peers.build.consent import mind_code, named_code
from peers.errors import Refusal
from swarm.config import ObjectiveSettings, Run, TaskSettings
from swarm.protocol import Role

OWN_OBJECTIVE = Run(name="lab", objective=ObjectiveSettings(name="lab_losses.mine:NAME"))
INSTALLED_TASK = Run(name="lab", task=TaskSettings(name="verifiers:gsm8k"))
WORKERS = {Role.LEARNER, Role.SAMPLER, Role.EVALUATOR, Role.AUDITOR}


def folder(run: Run, owned: bool = False) -> Any:
    return SimpleNamespace(name=run.name, settings=run, is_owners=owned)


@pytest.mark.parametrize("role", Role)
def test_the_settings_that_begin_installed_code_are_named_to_whom_they_matter(role: Role) -> None:
    assert bool(named_code(OWN_OBJECTIVE, role)) == (role is Role.LEARNER)
    assert bool(named_code(INSTALLED_TASK, role)) == (role in WORKERS)
    assert named_code(Run(), role) == []


@pytest.mark.parametrize("run", [OWN_OBJECTIVE, INSTALLED_TASK])
def test_a_joiner_is_asked_and_its_settings_answer(run: Run) -> None:
    for code in ("sandbox", "refuse"):
        with pytest.raises(Refusal, match=r"run lab has this learner begin .*--set peer.rewards.code=trust"):
            mind_code(folder(run), Role.LEARNER, code)
    mind_code(folder(run), Role.LEARNER, "trust")
    mind_code(folder(run, owned=True), Role.LEARNER, "refuse")
    mind_code(folder(run), Role.SEED, "refuse")
