"""Begins a run: writes the folder of a new one from its pinned settings and its model.

    [run], model folder --create--> model/, task/, genesis, owner.key, keys, spec

Not handled here: the contents of a folder and how it is read (peers.build.run_folder), the choice of the
model (peers.build.model.base_model).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from peers.build import run_sources
from peers.build.run_folder import BASE, MODEL_FILES, START, STARTS, TASK, RunFolder, file_digest, keep_spec
from peers.errors import WARNING, say
from peers.runtime.membership import run_keys
from swarm import PROTOCOL
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.learn.reference import has_reference
from swarm.membership.identity import open_key
from swarm.settings.config import Run, TaskSettings
from swarm.settings.loading import run_dict
from swarm.storage.blocks import Blocks
from swarm.storage.durable import copy_durably, sync, write_durably
from swarm.tasks import catalog as tasks
from swarm.tasks import evaluation_sets, packages
from swarm.tasks.base import CodePolicy, TaskError, distinct, too_few
from swarm.tasks.data import task_files
from swarm.tasks.rendered import Rendered
from swarm.tasks.rewards import probes
from swarm.types import Digest, Task

if TYPE_CHECKING:
    from swarm.learn.models.tokenization import Tokenization


ROWS = 5
"""Rows whose numbers are reported."""


def create(path: Path, run: Run, policy: Path, texts: CodePolicy = "sandbox") -> RunFolder:
    """Create the folder of a new run from its pinned settings and the model folder `policy` (version 0).

    `texts`: how this peer runs completions that its tasks run as code. Raises ModelError or TaskError when
    model, task and template do not fit together, NoSandbox where tasks need bubblewrap and it does not work,
    OSError for a disk error.
    """
    from peers.build.model import base_model
    from swarm.learn.models import tokenization

    tokenization.of_run(policy, run)  # before anything is written
    owner = open_key(path / "owner.key")
    _copy_files(policy, path / "model")
    tokens = tokenization.of_run(path / "model", run)  # what peers have of it
    if (run.model.training != "full" or has_reference(run)) and not base_model.from_hub(run):
        from swarm.learn.models.model import write_base

        write_base(policy, path / "model" / BASE)
    task_files.pack(run.task, path / "task")
    _leave_out_long(run, path, tokens)
    _pack_sets(run, path, tokens)
    written = [path / "task" / name for name in _names(path / "task")]
    folders = {path, *(folder for file in written for folder in file.parents if folder.is_relative_to(path))}
    for one in (*written, *sorted(folders, reverse=True)):
        sync(one)
    _check_first_task(run, path / "task", tokens.render, texts)
    _check_sets(run, path / "task", tokens, texts)
    genesis = _genesis_of(policy, run)
    write_durably(path / "genesis", genesis)
    if run.model.adapter and has_reference(run):
        write_durably(path / "model" / START, genesis)
    files, carried = (
        _digests(path / "model", (*MODEL_FILES, *STARTS)),
        _digests(path / "task", _names(path / "task")),
    )
    sizes = {name: (path / "model" / name).stat().st_size for name in files}
    sizes |= {TASK + name: (path / "task" / name).stat().st_size for name in carried}
    run_sources.write(path, run)
    keys = run_keys.fresh() if run.private else b""
    if keys:
        run_keys.keep(path, keys)
    spec = Spec(
        protocol=PROTOCOL,
        run=run_dict(run),
        keys=run_keys.digest_of(keys) if keys else Digest(""),
        owner=owner.public.hex(),
        files=files,
        task=carried,
        sizes=sizes,
        genesis=Blocks.of(genesis).root,
        packages=packages.of_run(run),
        release_size=len(genesis),
    )
    return keep_spec(path, wire.encode(spec))


def _copy_files(policy: Path, target: Path) -> None:
    """Copy a model's files without its weights."""
    for name in MODEL_FILES:
        if (policy / name).exists():
            copy_durably(policy / name, target / name)


def _genesis_of(policy: Path, run: Run) -> bytes:
    """Version 0 as a release's bytes: the model's weights, or an adapter. Raises UserError and ModelError."""
    from peers.build.model import base_model
    from swarm.learn.models import adapters, model, pretrained

    # The embedded model's file is a release already: this saves the seconds of importing transformers.
    if run.model.name == "embedded" and run.model.training == "full":
        return (policy / "model.safetensors").read_bytes()
    if not any(policy.glob("*.safetensors")):
        raise pretrained.ModelError(model.no_weights(policy))
    if run.model.training != "full":
        adapter = base_model.adapter_folder(run) if run.model.adapter else None
        return adapters.genesis(policy, run.lora, run.seed, adapter)
    return model.first_release(policy)


def _digests(folder: Path, names: Sequence[str]) -> dict[str, Digest]:
    """Name -> sha256, for the named files that exist."""
    return {name: file_digest(folder / name) for name in names if (folder / name).exists()}


def _names(folder: Path) -> list[str]:
    """The files below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _leave_out_long(run: Run, path: Path, tokens: Tokenization) -> None:
    """Remove rows whose prompts are too long for the model from the data; those of the Hub are only counted.

    Raises ModelError when no prompt fits, or one has a token that the model does not know.
    """
    if not run.task.name.startswith("data:"):
        return None
    from swarm.learn.models.pretrained import ModelError
    from swarm.tasks.data.dataset import leave_out

    most, folder = _positions(path), path / "task"
    room = most - run.sampling.max_tokens
    data = tasks.data(run.task, run.seed, folder if folder.is_dir() else None)
    training, held = data.rows_without(lambda some: tokens.fits(some, room))
    if not (count := len(training) + len(held)):
        return None
    own = f"run.sampling.max_tokens = {run.sampling.max_tokens}"
    told = (
        f"{count} of {data.usable} prompts are longer than the {room} tokens for which the model has room: it"
        f" reads {most}, and {own} of these are the completion's"
    )
    if count == data.usable:
        raise ModelError(f"{told}. Take a model that reads more, or shorter prompts or completions")
    if folder.is_dir() and any(folder.glob("*.parquet")):
        leave_out(folder, training, held)
        return say(f"{told}. They are left out: {_rows(training, held)}")
    say(
        f"{told}. A data set of the Hub keeps them, and samplers pass them over: save it without them"
        f" ({_rows(training, held)})"
    )


def _positions(path: Path) -> int:
    """Tokens of a prompt and its completion that the model reads at most."""
    from swarm.learn.models.pretrained import config_of
    from swarm.sample.hf import positions

    return positions(config_of(path / "model"))


def _pack_sets(run: Run, path: Path, tokens: Tokenization) -> None:
    """Write the files of evaluation sets. Raises TaskError, and ModelError for a prompt with a token that the
    model does not know."""
    folder, trained = path / "task", set[int]()
    if run.evaluation.sets and run.task.name.startswith(evaluation_sets.DATA):
        trained = tasks.data(run.task, run.seed, folder if folder.is_dir() else None).prompts()
    for name, settings in evaluation_sets.settings(run).items():
        with evaluation_sets.telling(name):
            rows = None
            if settings.name.startswith(evaluation_sets.DATA):
                room = _positions(path) - run.sampling.max_tokens
                rows = evaluation_sets.rows(
                    settings,
                    run.seed,
                    evaluation_sets.number(run, name),
                    trained,
                    partial(tokens.fits, room=room),
                    partial(_warn_of_set, name),
                )
            task_files.pack(settings, folder / name, rows)


def _warn_of_set(name: str, line: str) -> None:
    say(f"{WARNING}evaluation set {name}: {line}")


def _rows(training: set[int], held: set[int]) -> str:
    """Which rows these are, those of the held-out split by themselves."""
    told = []
    for numbers, where in ((training, ""), (held, " of the held-out split")):
        first = ", ".join(str(number + 1) for number in sorted(numbers)[:ROWS])
        more = f" and {len(numbers) - ROWS} more" if len(numbers) > ROWS else ""
        told += [f"rows {first}{more}{where}"] if numbers else []
    return f"{'; '.join(told)}, counted from 1"


def _check_first_task(run: Run, folder: Path, render: Callable[[Task], str], texts: CodePolicy) -> None:
    """Render the first task's prompt and score answers to it: a run whose model, tasks and rewards do not fit
    must not start. A warning says where there are too few different tasks for an evaluation."""
    source = tasks.source(run.task, run.seed, folder=folder if folder.is_dir() else None, texts=texts)
    try:
        render(source.task(0))
        for line in probes.of_new_run(source):
            say(f"{WARNING}{line}")
        n = run.evaluation.tasks
        # gym: takes minutes to make as many of its slowest exercises: the evaluator says so then
        if not run.task.name.startswith("gym:") and (few := too_few(len(distinct(source, n)), n)):
            say(f"{WARNING}{few}")
        if run.evaluation.sets and not source.held_out(1):
            raise TaskError(
                f"{run.task.name} has no held-out tasks, and evaluation sets are judged beside them: set"
                " run.task.options.held_out above 0, or leave run.evaluation.sets out"
            )
    finally:
        source.close()


def _check_sets(run: Run, folder: Path, tokens: Tokenization, texts: CodePolicy) -> None:
    """The same for evaluation sets; also warns of prompts that the model has no tokens for."""
    for name, settings in evaluation_sets.settings(run).items():
        with evaluation_sets.telling(name):
            _check_set(run, name, settings, folder / name, tokens, texts)


def _check_set(
    run: Run, name: str, settings: TaskSettings, folder: Path, tokens: Tokenization, texts: CodePolicy
) -> None:
    if run.evaluation.sets[name].system and not tokens.templated:
        raise TaskError("its prompts have no chat template, and so no system message: leave system out")
    source = tasks.source(settings, run.seed, folder=folder if folder.is_dir() else None, texts=texts)
    try:
        read = Rendered(source, tokens.render_all, system=run.evaluation.sets[name].system)
        for line in probes.of_new_run(source):
            _warn_of_set(name, line)
        if settings.name.startswith("gym:"):
            return
        n = evaluation_sets.number(run, name)
        found = evaluation_sets.drawn(read, settings, n)
        if few := too_few(len(found), n, name):
            say(f"{WARNING}{few}")
        unknown = tokens.tokenizer.unk_token_id
        ids = tokens.encode([task.prompt for task in found])
        if lost := [task for task, row in zip(found, ids, strict=True) if unknown in row]:
            told = f"{len(lost)} of {len(found)} prompts, such as {lost[0].prompt!r}"
            _warn_of_set(name, f"the model has no tokens for all characters of {told}")
    finally:
        source.close()
