"""Functions in the worker process of `verifiers:NAME`: the tasks of an installed taskset, and their rewards.

Single-turn ones: a task is a prompt, a completion is the model's only message, and the task's own rewards see
the conversation that these two make, without a runtime. Runs under any interpreter that has verifiers (0.4 or
later: its v1) and msgspec: nothing of swarm is imported, and the text of this file travels to the worker.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import state_cls
from verifiers.v1.types import content_text
from verifiers.v1.utils import loaders
from verifiers.v1.utils.generic import concrete_type

Options = dict[str, Any]


def problem(name: str, options: Options, size: int) -> str:
    """Why this taskset cannot be used here; empty when it can."""
    try:
        loaders.taskset_class(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        # Raised by verifiers, with its search.
        return str(error)
    try:
        tasks = _tasks(name, json.dumps(options), size)
    except ValidationError as error:
        return "; ".join(f"option {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    if not tasks:
        return "it has no tasks"
    first = tasks[0]
    if loaders.environment_class(name) is not vf.SingleAgentEnv:
        return "it has an environment of its own: only tasks for one agent and one turn can be used"
    if (
        first.NEEDS_CONTAINER
        or type(first).toolsets(first.config)
        or _taskset(name, json.dumps(options)).toolsets(first.config)
    ):
        return "its tasks need tools or a container: only tasks of one turn can be used"
    if boxed := [f.__name__ for f in first.hooks("reward") if _needs_runtime(f)]:
        return f"its reward {boxed[0]} needs a runtime: only rewards of the conversation can be used"
    if not first.hooks("reward") and not first.plugged_judges():
        return "its tasks have no reward"
    if bad := [i for i, task in enumerate(tasks) if not _messages(task) or not _messages(task)[-1][1]]:
        return f"its task {bad[0]} has no prompt"
    return ""


def rows(
    name: str, options: Options, size: int, first: int, n: int
) -> list[tuple[list[tuple[str, str]], str]]:
    """Tasks `first` to `first` + n, or as far as there are any: ([(role, content)], answer, if it has a field
    of that name)."""
    tasks = _tasks(name, json.dumps(options), size)[first : first + n]
    return [(_messages(task), str(getattr(task.data, "answer", ""))) for task in tasks]


async def scores(name: str, options: Options, size: int, row: int, completions: list[str]) -> list[float]:
    """The weighted sum of the task's rewards and judges, for each completion."""
    task = _tasks(name, json.dumps(options), size)[row]
    traces = [_trace(task, completion) for completion in completions]
    await asyncio.gather(*(task.score(trace) for trace in traces))
    for trace in traces:
        if unscored := [key for key, reward in trace.rewards.items() if reward is None]:
            raise ValueError(f"the reward {unscored[0]} was not computed")
    return [float(trace.reward) for trace in traces]


@functools.lru_cache(1)
def _taskset(name: str, options: str) -> Any:
    made = loaders.taskset_class(name)
    config = concrete_type(made, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
    return made(config.model_validate({**json.loads(options), "id": name}))


@functools.lru_cache(1)
def _tasks(name: str, options: str, size: int) -> list[Any]:
    return list(itertools.islice(_taskset(name, options), size))


def _needs_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _messages(task: Any) -> list[tuple[str, str]]:
    """(role, content) of all that the model reads."""
    data = task.data
    turns = [("system", data.system_prompt)] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*turns, ("user", data.prompt)]
    return [*turns, *((message.role, content_text(message.content)) for message in data.prompt or [])]


def _trace(task: Any, completion: str) -> Any:
    """The conversation as verifiers would have recorded it."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    messages = [kinds[role](content=content) for role, content in _messages(task)]
    nodes = [MessageNode(parent=i - 1 if i else None, message=message) for i, message in enumerate(messages)]
    nodes.append(
        MessageNode(parent=len(messages) - 1, message=vf.AssistantMessage(content=completion), sampled=True)
    )
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        is_completed=True,
        ok=True,
    )
