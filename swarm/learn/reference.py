"""Whether learners of a run need version 0 beside their policy: for a KL term against it.

Not handled here: the passes through it (swarm.learn.models.policy).
"""

from __future__ import annotations

from swarm.settings.config import Run


def has_reference(run: Run) -> bool:
    """Raises ValueError as `objectives.objective`. Imports torch, which takes seconds, only where the run may
    have such a term: no method has one without an option of the run's own."""
    if run.objective.options.keys().isdisjoint(("kl", "kl_against")) and ":" not in run.objective.name:
        return False
    from swarm.learn.objectives import objective

    return objective(run.objective.name, run.objective.options).has_reference
