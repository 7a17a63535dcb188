"""Checks the ingredients of a new run, before anything is started, warmed up or downloaded.

    run.optimizer   a learning rate, or a known one
    run.objective   trains                           run.task.name     a source, and its file is there
    run.model.name  the folder is there, a model     run.task.rewards  known, and their files are there

Raises ConfigError with the setting's origin. Except for the objective it takes a fraction of a second,
without torch and without the network: models and data of the Hub, the data's format and whether tasks fit the
model are checked where the run is made (peers.build.run_folder).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from peers.errors import USAGE, explain
from swarm import extras
from swarm.settings.config import Model, Run, TaskSettings
from swarm.settings.layers import ConfigError
from swarm.settings.page import Track

if TYPE_CHECKING:
    from swarm.settings.loading import LoadedConfig

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def check(loaded: LoadedConfig, folder: Path | None = None) -> None:
    """Raise ConfigError for settings of which no run can be made, but for the objective's. A run that is in
    `folder` has its files: they are not looked for."""
    run = loaded.config.run
    if folder is None or not (folder / "spec").exists():
        _check_files(loaded, run)
        if why := unknown_rate(run):
            raise ConfigError(why)
    need_tracker(loaded.config.peer.track)


def check_objective(loaded: LoadedConfig) -> None:
    """Raise ConfigError for an objective that cannot be trained, or that does not read its options. Imports
    torch."""
    from swarm.learn import objectives as methods

    chosen = loaded.config.run.objective
    with _from(loaded, "run.objective.name"):
        methods.check_options(methods.objective(chosen.name, chosen.options), chosen.options)


def unknown_rate(run: Run) -> str:
    """Why no run can begin without run.optimizer.lr being set; empty where it is, or a rate is known, or the
    model's size is not: its weights are not on this disk."""
    if run.optimizer.lr > 0:
        return ""
    from peers.build.model import base_model
    from swarm.learn.learners import learning_rates

    parameters = base_model.parameters_here(run)
    try:
        if parameters is not None:
            learning_rates.known_rate(run, parameters)
    except learning_rates.UnknownRate as error:
        return str(error)
    return ""


def need_tracker(settings: Track) -> None:
    """Raise ModuleNotFoundError when the tracker of these settings is not installed."""
    if settings.to != "none":
        extras.need_module(settings.to)


def _check_files(loaded: LoadedConfig, run: Run) -> None:
    with _from(loaded, "run.model.name"):
        _check_model(run.model)
    with _from(loaded, "run.model.adapter"):
        _check_adapter(run.model)
    with _from(loaded, "run.task.name"):
        _check_task(run.task, run.model, run.seed)
    with _from(loaded, "run.task.rewards"):
        _check_rewards(run.task)
    from swarm.tasks import evaluation_sets

    for name in run.evaluation.sets:
        key = f"{evaluation_sets.KEY}.{name}."
        with _from(loaded, next(known for known in loaded.origins if known.startswith(key))):
            with evaluation_sets.telling(name):
                one = evaluation_sets.completed(run, name)
                _check_source(one)
                _check_rewards(one)


@contextmanager
def _from(loaded: LoadedConfig, key: str) -> Iterator[None]:
    """A ValueError of the body names the origin of this setting."""
    try:
        yield
    except ValueError as error:
        if (known := explain(error)) is not None and known[0] != USAGE:
            raise  # this machine cannot, whatever the setting
        raise ConfigError(f"{loaded.origins[key]}: {error}") from error


def _check_adapter(model: Model) -> None:
    """Raises ValueError."""
    folder = Path(model.adapter).expanduser()
    if not model.adapter:
        return
    if folder.is_dir() and not (folder / "adapter_config.json").exists():
        raise ValueError(
            f"{folder} has no adapter_config.json: name the folder that peft's save_pretrained wrote"
        )
    if not folder.is_dir() and not _HUB_ID.fullmatch(model.adapter):
        raise ValueError(
            f"there is no folder {folder} of an adapter (looked from {Path.cwd()}): name one, or a Hub id"
            " such as org/adapter"
        )


def _check_model(model: Model) -> None:
    """Raises ValueError."""
    from peers.build.model import base_model

    if model.name in base_model.MADE:
        return
    folder = Path(model.name).expanduser()
    if why := file_of_weights(model.name):
        raise ValueError(why)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(f"{folder} has no config.json: name the folder that save_pretrained wrote")
    if not folder.is_dir() and (folder.exists() or not _HUB_ID.fullmatch(model.name)):
        raise ValueError(
            f"there is no model folder {folder} (looked from {Path.cwd()}): name a folder, a Hub id such as"
            f" org/model, or one of {', '.join(base_model.MADE)}"
        )


WEIGHTS: dict[str, str] = {
    ".gguf": "GGUF, which is not trained",
    ".safetensors": "weights alone",
    ".bin": "weights alone",
    ".pt": "weights alone",
    ".pth": "weights alone",
    ".onnx": "ONNX, which is not trained",
}
"""Suffix of a model file of another program -> its description."""


def file_of_weights(name: str) -> str:
    """Why a model's name is none here, where it is that of a file; else nothing."""
    path = Path(name).expanduser()
    kind = WEIGHTS.get(path.suffix.lower(), "a file" if path.is_file() else "")
    if not kind or path.is_dir():
        return ""
    return (
        f"{name} is {kind}: name the folder that save_pretrained wrote, with config.json, tokenizer and"
        " safetensors, or the Hub id that it was made from"
    )


def _check_task(task: TaskSettings, model: Model, seed: int) -> None:
    """Raises ValueError."""
    from swarm.tasks import catalog

    if model.name == "embedded":
        catalog.warm_start(task, seed)
    _check_source(task)


def _check_source(task: TaskSettings) -> None:
    """Raises ValueError."""
    from swarm.tasks import catalog
    from swarm.tasks.data import rows

    catalog.about(task)
    word, _, name = task.name.partition(":")
    if word == "data" and (why := rows.missing(rows.DatasetLocation(name))):
        raise ValueError(f"{why}: name a file, a folder or a Hub id")


def _check_rewards(task: TaskSettings) -> None:
    """Raises ValueError."""
    from swarm.tasks.rewards import rewards

    rewards.files(task.rewards)
    rewards.RunRewards(task.rewards, task.weights, None, "trust", task.timeout)
    for name in task.rewards:
        place, _, function = name.rpartition(":")
        if place.endswith(".py"):
            _check_function(Path(place), function)


def _check_function(file: Path, function: str) -> None:
    """Raises ValueError for a file that is not Python, or lacks the name."""
    from swarm.frames.grammar import nearest

    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise ValueError(
            f"the reward file {file} is not Python: {error.msg} in line {error.lineno}"
        ) from error
    except (RecursionError, MemoryError) as error:  # the latter is its parser's, of what is nested
        raise ValueError(
            f"the reward file {file} cannot be read by Python: an expression in it has too many terms; write"
            " it as data, or cut it into several"
        ) from error
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = {node.name for node in ast.walk(tree) if isinstance(node, defined)}
    others = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    others |= {alias.asname or alias.name for node in ast.walk(tree) for alias in _imported(node)}
    if function.partition(".")[0] not in names | others and "*" not in others:
        raise ValueError(f"the reward file {file} has no function {function!r}{nearest(function, names)}")


def _imported(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
