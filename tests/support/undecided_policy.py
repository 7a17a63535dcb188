"""A small policy to which many tokens are likely, and its completions row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from swarm.learn.models import embedded
from swarm.sample.base import Completions
from swarm.settings.config import TaskSettings
from swarm.tasks import catalog as tasks


def make(path: Path) -> Path:
    """A model's folder at `path`: high entropy and some end tokens, after a few steps of its warm start."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "LAST_STEP", 12)
        source = tasks.source(TaskSettings(name="digit-sums"), 1)
        embedded.make(path, 1, source.characters, source.example, lambda line: None)
    return path


def rows(group: Completions) -> list[list[int]]:
    """The tokens of each completion."""
    return [row.tolist() for row in np.split(group.tokens, np.cumsum(group.lengths)[:-1])]
