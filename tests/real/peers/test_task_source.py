"""A peer's task source: a conversation that its template does not write is an event, and the peer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from peers.build.model import task_source
from peers.build.model.engine_worker import Beside, CallFailed, EngineWorker, RenderCall
from swarm import events
from swarm.processes.process import Child, ChildLost, Ended, Pipe
from swarm.settings import config as settings
from swarm.settings.config import Config
from swarm.tasks.base import RewardError
from swarm.types import Task

SPEC = SimpleNamespace(packages={})


def written(tasks: Sequence[Task]) -> list[str]:
    """A chat template that needs too much for one task and refuses another one."""
    if any(task.index == 2 for task in tasks):
        raise ChildLost("the chat template needs too much")
    if any(task.index == 3 for task in tasks):
        raise ValueError("no such role")
    return [f"<{task.prompt}>" for task in tasks]


def test_a_conversation_that_no_limit_lets_be_written_is_left_out_and_a_refused_one_is_told_once(
    tmp_path: Path,
) -> None:
    told: list[tuple[Any, str]] = []
    host: Any = SimpleNamespace(config=Config(), emit=lambda kind, level, text: told.append((kind, text)))
    work = SimpleNamespace(run=lambda kind, function, *args: asyncio.to_thread(function, *args))
    run: Any = SimpleNamespace(settings=host.config.run, spec=SPEC, path=tmp_path, trusted=True)

    async def body() -> None:
        node: Any = SimpleNamespace(work=work)
        async with task_source.open_source(run, host, node, written) as source:
            assert source.task(1).prompt.startswith("<")
            with pytest.raises(RewardError, match="needs too much"):
                source.task(2)
            assert not source.task(3).prompt.startswith("<")
            assert source.task(4).prompt.startswith("<")
            await asyncio.sleep(0)

    asyncio.run(body())
    assert [kind for kind, _ in told] == [events.Noted] and "no such role" in told[0][1]


@pytest.mark.parametrize("owned", [True, False])
def test_a_run_is_its_owners_code_and_its_texts_are_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    asked: dict[str, Any] = {}

    class Asked(Exception):
        pass

    def made(*_: Any, **how: Any) -> None:
        asked.update(how)
        raise Asked

    monkeypatch.setattr(task_source.tasks, "source", made)
    run: Any = SimpleNamespace(spec=SPEC, path=tmp_path, trusted=owned)
    config = Config(peer=settings.Peer(rewards=settings.Rewards(code="refuse")))
    with pytest.raises(Asked):
        task_source.source(run, config, written, print)
    assert (asked["code"], asked["texts"]) == ("trust" if owned else "refuse", "refuse")


def test_an_engines_process_answers_that_a_conversation_was_not_written() -> None:
    worker = EngineWorker(Path(), lambda: None)
    worker._tokens = SimpleNamespace(render_all=written)  # type: ignore[assignment]
    task = Task(environment="x", index=2, prompt="1+1", answer="2")
    assert worker.render(RenderCall([task])).answer == CallFailed(
        "engine", "the chat template needs too much"
    )


def test_a_bug_beside_a_call_ends_the_engines_process_with_its_traceback() -> None:
    def answers() -> None:
        worker, pipe = EngineWorker(Path(), lambda: None), Pipe()
        worker._tokens = SimpleNamespace(render_all=lambda tasks: tasks[7])  # type: ignore[assignment]
        pipe.listen(takes=Beside(worker, pipe))()

    child = Child(answers)
    try:
        with pytest.raises(Ended, match=r"exit code 1, after printing: .*IndexError"):
            child.ask(msgspec.msgpack.encode(RenderCall([])), 30)
    finally:
        child.end()
