"""Gets what computes (torch, transformers, the engine) ready beside the peer's way into the network.

    begin --> the process of engine `hf` starts        a sampler or evaluator that will most likely have it
          --> a thread imports `peers.build.model.factory`  a learner, an auditor, or where vLLM may be chosen
    fitted, engine, await imported()                   once the run is known

It takes seconds of processor, which the dialling of addresses leaves. `begin` comes after the node has
forked its DHT's process, which then has none of it, and `imported` before a learner forks its averager's,
which needs it. Not handled: which model is loaded (peers.build.model.factory), which engine is chosen
(engine_choice).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from peers.build.model import engine_choice
from peers.build.model.process_engine import ProcessEngine
from peers.errors import say
from swarm.protocol import ROLES, Kind, Policy, Role
from swarm.sample.base import Engine
from swarm.settings.config import Config
from swarm.types import Task

if TYPE_CHECKING:
    from swarm.net.ports import Work

LOADING = "loading what computes: torch and transformers (some seconds; longer the first time)"


class Tokens(Protocol):
    """What is known of a run's tokenization beside its engine."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens; every token is below it."""
        ...

    def render_all(self, tasks: Sequence[Task]) -> list[str]:
        """Tasks as prompts."""
        ...


class ModelCode:
    """`begin` may be left out. Closes the process that nobody took."""

    def __init__(self, role: Role, config: Config) -> None:
        """`role`: the one that this peer will most likely have."""
        self._role, self._settings = role, config.peer.engine
        self._process: ProcessEngine | None = None
        self._thread: Future[None] | None = None

    def __enter__(self) -> ModelCode:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.close()

    def begin(self) -> None:
        sampling = ROLES[self._role].policy in (Policy.SAMPLED, Policy.USED)
        if sampling and engine_choice.foreseen(self._settings):
            self._process = ProcessEngine(self._settings)
        else:
            self._import()

    async def fitted(
        self, work: Work, model: Path, config: Config, asked: Role | None, allowed: Collection[Role]
    ) -> tuple[Role, Config]:
        """The role that fits this machine, the one `asked` for or one that is allowed, and the settings for
        it. Raises CannotHere."""
        about: tuple[Any, ...] = (model, config, asked, allowed)
        if self._process is not None:
            say(LOADING)
            fit: Callable[..., Any] = self._process.fit
        else:
            await self.imported()
            from peers.build.model.fitting import fitting as fit
        choice = await work.run(Kind.LOAD, fit, *about)
        if choice.said:
            say(choice.said)
        return choice.role, msgspec.structs.replace(
            config, peer=msgspec.structs.replace(config.peer, engine=choice.engine)
        )

    async def engine(self, work: Work, model: Path, config: Config) -> tuple[Engine, Tokens, str]:
        """The engine that `[peer.engine]` names, or that `auto` chooses, without a policy until it loads a
        release; its tokens; which one it is, and why. The caller closes it. Raises
        UserError and ModelError."""
        choice = engine_choice.chosen(model, config)
        if choice.name == "hf":
            process, self._process = self._process or ProcessEngine(config.peer.engine), None
            try:
                await work.run(Kind.LOAD, process.set_up, model, config)
            except BaseException:
                process.close()
                raise
            return process, process, str(choice)
        await self.imported()
        from peers.build.model import factory
        from swarm.learn.models import tokenization

        engine = await work.run(Kind.LOAD, factory.chosen_engine, choice, model, config)
        return engine, tokenization.of_run(model, config.run), str(choice)

    async def imported(self) -> None:
        """Waits until `peers.build.model.factory` is there, and says so where it is not. Raises what its
        imports raised."""
        thread = self._thread or self._import()
        if not thread.done():
            say(LOADING)
        await asyncio.wrap_future(thread)

    def _import(self) -> Future[None]:
        thread = ThreadPoolExecutor(1, thread_name_prefix="imports")
        self._thread = thread.submit(_import)
        thread.shutdown(wait=False)
        return self._thread


def _import() -> None:
    one_thread()
    # What loading a model of any kind imports, so that it is not left for the loop.

    from peers.build.model import factory  # noqa: F401


def one_thread() -> None:
    """Limit torch to one thread before it computes anything: its threads do not survive a fork."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)  # on a machine that peers share, two threads are six times slower than one
