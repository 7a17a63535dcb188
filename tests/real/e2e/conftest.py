"""One swarm of processes for all tests of this folder that change nothing in it."""

from observed_swarm import observed

__all__ = ["observed"]
