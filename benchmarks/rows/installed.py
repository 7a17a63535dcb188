"""Row `installed`: the packages and bytes of an installation that reads runs, of one that watches them, and
of one that takes part.

    requirements of pyproject.toml --closure--> distributions of this environment --> files, and their bytes

Counted as they lie here, compiled modules included. Not handled here: the program's own packages (2 MB), what
a GPU's torch adds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from benchmarks.table import Figure
from swarm import extras

if TYPE_CHECKING:
    from benchmarks import Say

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def measure(say: Say) -> list[Figure]:
    alone = closure(PROJECT["dependencies"])
    watching = alone | {"hivemind": distribution("hivemind")}
    peer = closure([*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extras.PEER]])
    figures = []
    for what, packages in (("reads runs", alone), ("watches runs", watching), ("takes part", peer)):
        megabytes = size(packages) / 1e6
        say(f"{what}: {len(packages)} packages, {megabytes:.0f} MB")
        figures.append(
            Figure(
                row="installed",
                what=f"installation that {what}",
                value=megabytes,
                unit="MB",
                note=f"{len(packages)} packages as installed here",
            )
        )
    return figures


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Name -> distribution of all that these requirements ask for, as installed here."""
    found: dict[str, Distribution] = {}
    asked = [Requirement(text) for text in requirements]
    while asked:
        wanted = asked.pop()
        if wanted.name in found or not _applies(wanted, {""}):
            continue
        found[wanted.name] = distribution(wanted.name)
        needed = (Requirement(text) for text in found[wanted.name].requires or ())
        asked += [each for each in needed if _applies(each, wanted.extras or {""})]
    return found


def size(packages: Mapping[str, Distribution]) -> int:
    """Bytes of all files of these distributions."""
    files = (Path(str(file.locate())) for one in packages.values() for file in one.files or ())
    return sum(path.stat().st_size for path in files if path.is_file())


def _applies(wanted: Requirement, extras: Iterable[str]) -> bool:
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras)
