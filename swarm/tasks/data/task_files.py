"""Task files of a run: local data and reward code, packed to travel with the run to joiners.

    data:./problems.jsonl    -> data.parquet, held-out.parquet (a split of its own)
    ./my_rewards.py:length   -> rewards-0.py, rewards-1.py, ... one a file, in the order of `run.task.rewards`
    an evaluation set        -> the same names, in a folder of its own: hard/data.parquet

`pack` writes them when a run is created; `swarm.tasks.source(..., folder=...)` reads them from there, also on
the machine that packed them: all peers work with the same bytes. Hub data sets stay Hub ids, at the commit
that `pinned` found. Not handled here: how they travel, and modules that a reward file imports (they have to
be installed where it runs).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from swarm.settings import config
from swarm.settings.sections import SET_NAME
from swarm.tasks.base import TaskError, check_options
from swarm.tasks.data import dataset, rows
from swarm.tasks.rewards import rewards

NAME = re.compile(rf"({SET_NAME}/)?(data\.parquet|held-out\.parquet|rewards-[0-9]{{1,2}}\.py)")
"""All names of task files; a joiner refuses every other name."""

LARGEST = 256 << 20
"""Bytes of a data set: a joiner at 40 Mbit/s waits a minute for it."""

LARGEST_CODE = 1 << 20
"""Bytes of a reward file: a thousand times the usual."""


def pack(settings: config.TaskSettings, folder: Path, rows: Any = None) -> None:
    """Write the task files of a run that is created with these settings. `rows`: the table of a data set,
    else it is read. Raises TaskError."""
    word, _, name = settings.name.partition(":")
    if rows is not None:
        _write(name, {dataset.DATA: rows}, folder)
    elif word == "data":
        _pack_data(name, settings, folder)
    try:
        code = rewards.files(settings.rewards)
    except ValueError as error:
        raise TaskError(str(error)) from error
    for packed, path in code.items():
        if (size := path.stat().st_size) > LARGEST_CODE:
            raise TaskError(
                f"{path} has {size >> 10} KiB, a run carries at most {LARGEST_CODE >> 10} of reward code a"
                " file"
            )
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / packed)


def named(settings: config.TaskSettings) -> dict[str, Path]:
    """The files that these settings name, by their names there; of a folder each file of data in it."""
    word, _, name = settings.name.partition(":")
    code = {place: Path(place) for place in rewards.packed(settings.rewards)}
    return code | rows.files(name) if word == "data" else code


def pinned(settings: config.TaskSettings) -> config.TaskSettings:
    """The settings with the revision of a Hub data set replaced by its current commit; unchanged when the Hub
    does not answer."""
    word, _, name = settings.name.partition(":")
    if word != "data" or Path(name).expanduser().exists():
        return settings
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    revision = str(settings.options.get("revision", "")) or None
    try:
        commit = HfApi().dataset_info(name, revision=revision, timeout=10.0).sha
    except (HfHubHTTPError, HFValidationError, OSError):
        # Reading the data reports its defects, or finds it in the cache.
        return settings
    return msgspec.structs.replace(settings, options={**settings.options, "revision": commit or ""})


def _pack_data(name: str, settings: config.TaskSettings, folder: Path) -> None:
    if not Path(name).expanduser().exists():
        return  # of the Hub, or missing: reading it says so
    options = check_options("data", settings.options, dataset.DEFAULTS)
    training, held = dataset.tables(name, options, None)
    _write(name, {dataset.DATA: training, dataset.HELD_OUT: held}, folder)


def _write(name: str, tables: Mapping[str, Any], folder: Path) -> None:
    """Write each table that is there to its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, table in tables.items():
        if table is None:
            continue
        table.to_parquet(str(folder / file))
        if (size := (folder / file).stat().st_size) > LARGEST:
            (folder / file).unlink()
            raise TaskError(
                f"data set {name} has {size >> 20} MiB as parquet, a run carries at most {LARGEST >> 20}: put"
                " it on the Hub and name it by its id, or leave columns out"
            )
