"""Packages whose code makes a run's tasks: a run fixes their versions.

    settings --installed--> package -> version here          the run's, settings --check--> NotInstalled

Another version of reasoning-gym may make other exercises of the same seed, and score answers otherwise: its
groups would be refused one by one, for no visible reason. Not handled here: packages of reward functions and
objectives, data sets (a commit pins them), and a package whose code changes while its version stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version

from swarm.settings import config
from swarm.tasks import evaluation_sets
from swarm.tasks.base import NotInstalled, TaskError
from swarm.tasks.workers.verifier import PYTHON

GYM = "reasoning-gym"

ASK = """
import importlib.metadata as metadata, json, sys

names, found = ["verifiers", sys.argv[1]], {}
for name in names:
    try:
        found[metadata.distribution(name).name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        module = name.replace("-", "_").partition(".")[0]
        names += [it for it in metadata.packages_distributions().get(module, ()) if it not in names]
print(json.dumps(found))
"""
"""Run by the interpreter that has verifiers, with the name of an environment: its package is called so, or
has a module of that name."""

SECONDS = 60.0
"""For that: it reads some files."""


def installed(settings: config.TaskSettings) -> dict[str, str]:
    """Name -> version of what this source needs, as far as it is installed here: none of a built-in source or
    a data set. Raises TaskError."""
    word, colon, name = settings.name.partition(":")
    if colon and word == "verifiers":
        return _beside_verifiers(name)
    if colon and word == "gym":
        return _here(GYM)
    points = entry_points(group="swarm.tasks", name=settings.name)
    return {point.dist.name: point.dist.version for point in points if point.dist is not None}


def of_run(run: config.Run) -> dict[str, str]:
    """The same of a run that begins here: for `run.task` by the names of packages, for an evaluation set by
    `SET/PACKAGE`."""
    named = evaluation_sets.settings(run).items()
    return installed(run.task) | {
        f"{name}/{package}": number for name, one in named for package, number in installed(one).items()
    }


def of_set(packages: Mapping[str, str], name: str = "") -> dict[str, str]:
    """Package -> version for an evaluation set, else for `run.task`, of all that a run began with."""
    split = [(*key.rpartition("/"), number) for key, number in packages.items()]
    return {package: number for of, _, package, number in split if of == name}


def check(settings: config.TaskSettings, wanted: Mapping[str, str]) -> None:
    """Raise NotInstalled where the versions that a run began with are not those that are installed here, and
    TaskError."""
    have = installed(settings) if wanted else {}
    others = [name for name, number in wanted.items() if have.get(name) != number]
    if not others:
        return
    pip = f"{os.environ[PYTHON]} -m pip" if PYTHON in os.environ and "verifiers" in wanted else "pip"
    needs = " and ".join(f"{name} {wanted[name]}" for name in others)
    has = " and ".join(have.get(name, "none") for name in others)
    todo = " ".join(f"'{name}=={wanted[name]}'" for name in others)
    raise NotInstalled(
        f"the tasks of this run are those of {needs}, and here is {has}, which may make others: {pip} install"
        f" {todo}"
    )


def _here(name: str) -> dict[str, str]:
    try:
        return {name: version(name)}
    except PackageNotFoundError:
        return {}


def _beside_verifiers(name: str) -> dict[str, str]:
    """Of verifiers and of the environment's package, where verifiers is."""
    python = os.environ.get(PYTHON) or sys.executable
    try:
        asked = subprocess.run(
            [python, "-c", ASK, name], capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return dict(json.loads(asked.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise TaskError(f"{python} does not say which version of verifiers it has: {error}") from error
