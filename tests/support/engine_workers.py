"""Engines' processes that run code of a test before they answer calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from forks import fork_children

from peers.build.model import engine_process, engine_worker

FAKE_VLLM = "import fake_vllm; fake_vllm.install()"


def run_programs(patch: pytest.MonkeyPatch, code: str = "pass") -> None:
    """Processes that start from now on are programs."""
    answers = "from peers.build.model import engine_worker; engine_worker.main(sys.argv[1])"
    patch.setattr(engine_process, "COMMAND", (sys.executable, "-c", f"import sys; {code}; {answers}"))


def fork_workers(patch: pytest.MonkeyPatch, code: str = "pass") -> None:
    """Processes that start from now on are forks."""

    def program(command: Sequence[str]) -> None:
        exec(code, {})
        engine_worker.main(command[-1])

    fork_children(patch, engine_process, program)
