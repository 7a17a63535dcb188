"""Finds the role that fits this machine and opens a peer's engine, once the run is known.

    fitting_role    in the engine's process where the role samples, else in this one
    open_engine     `hf` and `vllm` in their process (engine_process.py), so that this one needs no torch

Not handled here: which engine is chosen (engine_choice), which model is loaded (peers.build.model.factory).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from peers.build.model import base_model, engine_choice
from peers.build.model.engine_process import NAMES, EngineProcess
from peers.errors import say
from swarm.protocol import ROLES, Kind, PolicyUse, Role
from swarm.sample.base import Engine
from swarm.settings.config import Config
from swarm.types import Task

if TYPE_CHECKING:
    from peers.build.model.engine_worker import Fitted
    from peers.fit.fits import RoleChoice
    from swarm.net.ports import Work

LOADING = "loading what computes: torch and transformers (some seconds; longer the first time)"


class Tokens(Protocol):
    """A run's tokenization, as far as it is known outside the engine."""

    def render_all(self, tasks: Sequence[Task]) -> list[str]:
        """Tasks as prompts."""
        ...


def samples(role: Role) -> bool:
    """Whether a peer of that role has an engine."""
    return ROLES[role].policy in (PolicyUse.SAMPLED, PolicyUse.USED)


async def fitting_role(
    work: Work,
    process: EngineProcess | None,
    model: Path,
    config: Config,
    asked: Role | None,
    allowed: Collection[Role],
) -> tuple[Role, Config]:
    """The role that fits this machine, `asked` or another allowed one, and the settings for it. `process`:
    where it is computed; None: here. Raises CannotHere."""
    if process is not None:
        say(LOADING)
        fit: Callable[..., RoleChoice | Fitted] = process.fit
    else:
        await imported(work)
        from peers.fit.fits import choose_here as fit
    choice = await work.run(Kind.LOAD, fit, model, config, asked, allowed)
    if choice.reason:
        say(choice.reason)
    if process is not None and not samples(choice.role):
        process.close()
    return choice.role, msgspec.structs.replace(
        config, peer=msgspec.structs.replace(config.peer, engine=choice.engine)
    )


async def open_engine(
    work: Work, process: EngineProcess | None, model: Path, config: Config
) -> tuple[Engine, Tokens, str]:
    """The engine of `[peer.engine]`, or the choice of `auto`, without a policy until it loads a release; its
    tokens; its name, and the reason. `process`: the one in which `fitting_role` ran. The caller closes the
    engine. Raises UserError and ModelError."""
    choice = engine_choice.chosen(model, config)
    if process is not None and process.name != choice.name:
        process.close()
        process = None
    if choice.name in NAMES:
        process = process or EngineProcess(config.peer.engine, choice.name)
        try:
            if choice.name == "vllm":  # its process has no network
                await work.run(Kind.LOAD, base_model.base, model, config.run)
            await work.run(Kind.LOAD, process.set_up, model, config)
        except BaseException:
            process.close()
            raise
        return process, process, str(choice)
    await imported(work)
    from peers.build.model import factory
    from swarm.learn.models import tokenization

    engine = await work.run(Kind.LOAD, factory.server, model, config)
    return engine, tokenization.of_run(model, config.run), str(choice)


async def imported(work: Work) -> None:
    """Import the libraries that load a model, beside the event loop, and print a message where it takes a
    while."""
    if "peers.build.model.factory" not in sys.modules:
        say(LOADING)
    await work.run(Kind.LOAD, _import)


def _import() -> None:
    """Torch gets one thread before it computes anything: its threads do not survive a fork."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)  # on a machine that peers share, two threads are six times slower than one

    from peers.build.model import factory  # noqa: F401
