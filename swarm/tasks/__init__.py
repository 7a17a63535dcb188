"""Task sources: where tasks come from, and how completions are scored."""

from swarm.tasks.base import RewardError, TaskError, TaskSource
from swarm.tasks.catalog import source, warm_start

__all__ = ["RewardError", "TaskError", "TaskSource", "source", "warm_start"]
