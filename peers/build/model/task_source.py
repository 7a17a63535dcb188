"""Builds the task source of a peer: the run's tasks, with prompts as its model reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from peers.build.run_folder import RunFolder
from peers.errors import CannotHere, WrongUsage, say
from peers.runtime.host import Host
from swarm import events
from swarm.processes.process import ChildLost
from swarm.protocol import Kind
from swarm.settings.config import Config
from swarm.tasks import catalog as tasks
from swarm.tasks import evaluation_sets, packages
from swarm.tasks.base import RewardError, Say, TaskSource
from swarm.tasks.rendered import Render, Rendered
from swarm.types import Task

if TYPE_CHECKING:
    from swarm.net.libp2p.node import Node


def source(
    run: RunFolder,
    config: Config,
    render: Render,
    say: Say,
    slow: bool = False,
    scores: bool = True,
    of: str = "",
) -> TaskSource:
    """`render` may raise ChildLost, too: the process that writes is gone, or was ended by a limit. `slow`: it
    calls another process. Raises TaskError, also for packages of other versions than the run began with, or
    WrongUsage when the chat template does not fit.

    Reward code that came with the run is run as `peer.rewards.code` says; under `swarm up` it is trusted.
    There, too, texts come from models and other peers. Without `scores` no reward is made, and none of its
    code starts. `of`: the evaluation set whose source it is, instead of the one of `run.task`.
    """
    trained, folder = config.run.task, run.path / "task" / of
    task = evaluation_sets.completed(config.run, of) if of else trained
    packages.check(task, packages.of_set(run.spec.packages, of))
    texts = config.peer.rewards.code
    plain = tasks.source(
        task,
        config.run.seed,
        folder=folder if folder.is_dir() else None,
        code="trust" if run.trusted else texts,
        texts=texts,
        say=say,
        scores=scores,
    )
    try:
        system = task.system if task.system != trained.system else ""
        return Rendered(plain, partial(_written, render), say, slow, system)
    except (ValueError, RewardError) as error:
        plain.close()
        raise (WrongUsage if isinstance(error, ValueError) else CannotHere)(str(error)) from error


def _written(render: Render, tasks: Sequence[Task]) -> list[str]:
    try:
        return render(tasks)
    except ChildLost as lost:
        raise RewardError(str(lost)) from lost


@asynccontextmanager
async def open_source(
    run: RunFolder, host: Host, node: Node, render: Render, slow: bool = False, of: str = ""
) -> AsyncIterator[TaskSource]:
    """The same while the body runs; messages for the user are printed once, and become an event."""
    loop = asyncio.get_running_loop()

    def warn(line: str) -> None:
        say(line)
        host.emit(events.Noted, level="warning", text=line)

    def receive(line: str) -> None:  # in a thread: while the source is made, and where it is slow
        loop.call_soon_threadsafe(warn, line)

    made = await node.work.run(Kind.LOAD, source, run, host.config, render, receive, slow, True, of)
    try:
        yield made
    finally:
        made.close()
