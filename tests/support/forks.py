"""Programs that tests start as forks of their own process: a fork has its imports, and does not take the
seconds for them. A few tests start each program itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import pytest

from swarm.processes.process import LARGEST, Child


def fork_children(
    patch: pytest.MonkeyPatch, module: ModuleType, program: Callable[[Sequence[str]], object]
) -> None:
    """Each Child that `module` starts with a command is a fork from now on, which calls `program` with its
    words."""

    def child(
        command: Sequence[str],
        environ: Mapping[str, str],
        limit: int = LARGEST,
        descriptors: Sequence[int] = (),
        echo: bool = False,
    ) -> Child:
        def main() -> None:
            os.environ.clear()
            os.environ.update(environ)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as a program begins
            program(command)

        return Child(main, limit=limit, echo=echo)

    patch.setattr(module, "Child", child)
