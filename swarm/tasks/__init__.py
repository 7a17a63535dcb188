"""Where exercises come from, and what an answer is worth."""

from swarm.tasks.base import TaskSource, source

__all__ = ["TaskSource", "source"]
