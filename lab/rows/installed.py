"""Row `installed`: the packages and bytes of an installation that reads runs, of one that watches them, and
of one that takes part.

    requirements of pyproject.toml --closure--> distributions of this environment --> files, and their bytes

Counted as they lie here, compiled modules included. Not handled here: the program's own packages (2 MB),
additions of a GPU's torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lab.figures.table import Figure, Say, Unmeasured
from swarm import extras

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def measure(say: Say) -> list[Figure]:
    alone = closure(PROJECT["dependencies"])
    watching = alone | {"hivemind": _installed("hivemind")}
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
    """Name -> distribution of all that these requirements ask for, as installed here. One package may be
    asked for under several spellings, with different extras. Raises Unmeasured: one is not installed."""
    found: dict[str, Distribution] = {}
    followed: dict[str, set[str]] = {}
    asked = [each for each in map(Requirement, requirements) if _applies(each, {""})]
    while asked:
        wanted = asked.pop()
        name = canonicalize_name(wanted.name)
        if not (new := {"", *wanted.extras} - followed.setdefault(name, set())):
            continue
        followed[name] |= new
        found[name] = found.get(name) or _installed(name)
        asked += [each for each in map(Requirement, found[name].requires or ()) if _applies(each, new)]
    return found


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise Unmeasured(f"{name} is not installed: pip install {name}") from None


def size(packages: Mapping[str, Distribution]) -> int:
    """Bytes of all files of these distributions."""
    files = (Path(str(file.locate())) for one in packages.values() for file in one.files or ())
    return sum(path.stat().st_size for path in files if path.is_file())


def _applies(wanted: Requirement, extras: Iterable[str]) -> bool:
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras)
