"""Where tests find the repository and each other's programs."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""

SUPPORT = Path(__file__).parent
"""Modules that tests import by name, and the programs that some of them start."""
