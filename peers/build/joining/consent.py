"""Code that an invite names and that would run here as a program of this user: requires the joiner's consent.

    run.objective.name = package.module:NAME   a learner imports it
    run.task.name = verifiers:NAME             whoever has tasks runs the package with the run's options
    run.evaluation.sets.SET.name = verifiers:NAME       evaluators do

Neither comes with the run: both are installed here, and the run selects which of them starts. Under `swarm
up` they are the owner's own. Not handled here: code that runs in a sandbox, which is reward code that came
with the run (swarm.tasks.rewards.rewards) and texts that gym: runs as code (swarm.tasks.workers.gym).
"""

from __future__ import annotations

from peers.build.run_folder import RunFolder
from peers.errors import Refusal
from swarm.frames.grammar import an
from swarm.protocol import ROLES, PolicyUse, Role
from swarm.settings.config import Run
from swarm.tasks import evaluation_sets

CONSENT = (
    "look at it, then say `--set peer.rewards.code=trust` where you trust its authors and the run's owner"
)


def named_code(run: Run, role: Role) -> list[str]:
    """Settings of a run that make a peer of this role begin installed code outside of the sandbox."""
    policy = ROLES[role].policy
    found = []
    if policy is PolicyUse.TRAINED and ":" in run.objective.name:
        found.append(f"run.objective.name = {run.objective.name!r}")
    if policy not in (PolicyUse.KEPT, PolicyUse.UNUSED) and run.task.name.startswith("verifiers:"):
        found.append(f"run.task.name = {run.task.name!r}")
    if policy is PolicyUse.USED:
        sets = {name: one.name for name, one in run.evaluation.sets.items()}
        found += [
            f"{evaluation_sets.KEY}.{name}.name = {source!r}"
            for name, source in sets.items()
            if source.startswith("verifiers:")
        ]
    return found


def check_code(run: RunFolder, role: Role, code: str) -> None:
    """Raise Refusal where the run names such code and the peer's settings (`peer.rewards.code`) do not
    consent."""
    if run.trusted or code == "trust":
        return
    if found := named_code(run.settings, role):
        raise Refusal(
            f"run {run.name} has {an(role.value)} begin code that is installed here, outside of the sandbox:"
            f" {' and '.join(found)}; {CONSENT}"
        )
