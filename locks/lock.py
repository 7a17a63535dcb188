"""The locks but torch-cpu.lock, from pyproject.toml and constraints.txt: `make lock`.

What comes in: the newest versions that fit those two files, as the registry has them now; uv resolves them
for all Pythons at once. What goes out: for every package its version and the sha256 of each archive of it
that fits Linux x86-64 and a Python of PYTHONS, as pip's requirements. What always holds: no address is in
them, a package has its source archive only where no wheel of it fits, and build.lock, what builds source
archives and this project here, is a part of ci.lock. torch is apart: of all archives whose sha256 may be, pip
takes one that it knows before it has fetched it, so that a CPU build on the disk would lose against the
registry's. Not handled here: other machines, and what the CUDA build of torch asks for.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "locks"
EXTRAS = ("peer", "dev", "quant")
PYTHONS = ("3.11", "3.12")

MACHINE = re.compile(r"any|(many)?linux(_\d+_\d+|\d+)?_x86_64")
"""Platform tags of the wheels that Linux x86-64 with glibc installs."""

LINUX = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
}
"""What markers of requirements see there."""

BUILDERS = ("editables", "hatchling", "setuptools")
"""hatchling and editables make this project's editable installation; setuptools builds the lock's source
archives."""

CUDA = ("cuda-", "nvidia-", "triton")
"""How the packages begin that only torch's CUDA build asks for, at versions that torch names: 3 GB, of which
its CPU build needs nothing."""

HEAD = """\
# {what}, on Linux x86-64 with Python 3.11 or 3.12: `make lock` writes it.
# tests/unit/house/test_lock.py tells when it lacks something that pyproject.toml or constraints.txt asks for.
"""


@dataclass(frozen=True)
class Locked:
    """A package at a version: the Pythons that get this version, and the sha256 of its archives."""

    name: str
    version: str
    pythons: tuple[str, ...]
    hashes: tuple[str, ...]

    def requirement(self) -> str:
        """The package as a requirement of pip, without its hashes."""
        only = "" if self.pythons == PYTHONS else f' ; python_version == "{self.pythons[0]}"'
        return f"{self.name}=={self.version}{only}"

    def lines(self) -> str:
        """The package as pip reads it."""
        hashes = [f"    --hash=sha256:{each}" for each in self.hashes]
        return " \\\n".join([self.requirement(), *hashes]) + "\n"


UV = ("uv", "pip", "compile", "--quiet", "--universal", "--no-python-downloads", "--format", "pylock.toml")


def resolve(words: Iterable[str], names: str = "") -> list[dict[str, Any]]:
    """The packages, in pylock.toml's format, that uv finds for these words of its command and, where `-` is
    one of them, these names, one a line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pylock.toml"
        command = [*UV, "--python-version", PYTHONS[0], "--output-file", str(out), *words]
        said = subprocess.run(
            command, input=names, cwd=ROOT, text=True, stdout=subprocess.DEVNULL, check=False
        )
        if said.returncode:
            raise SystemExit("No versions fit pyproject.toml and constraints.txt: what uv said stands above")
        packages: list[dict[str, Any]] = tomllib.loads(out.read_text(encoding="utf-8"))["packages"]
    return packages


def asked_for(package: dict[str, Any], python: str) -> bool:
    """Whether this Python gets this package, at this version, on Linux x86-64."""
    here = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "implementation_version": f"{python}.1",
    }
    return "marker" not in package or Marker(package["marker"]).evaluate({**LINUX, **here})


def fits(file: str, python: str) -> bool:
    """Whether this Python on Linux x86-64, with glibc, installs this wheel."""
    version = tuple(map(int, python.split(".")))
    anywhere = (*cpython_tags(version, platforms=["any"]), *compatible_tags(version, platforms=["any"]))
    usable = {(tag.interpreter, tag.abi) for tag in anywhere}
    tags = parse_wheel_filename(file)[3]
    return any((tag.interpreter, tag.abi) in usable and MACHINE.fullmatch(tag.platform) for tag in tags)


def hashes(package: dict[str, Any], pythons: Iterable[str]) -> set[str]:
    """The sha256 of all archives that pip may choose for these Pythons."""
    found: set[str] = set()
    for python in pythons:
        wheels = [
            each
            for each in package.get("wheels", ())
            if fits(each.get("name") or each["url"].rpartition("/")[2], python)
        ]
        found |= {each["hashes"]["sha256"] for each in wheels or [package["sdist"]]}
    return found


def locked(packages: Iterable[dict[str, Any]]) -> list[Locked]:
    """What of these packages Linux x86-64 gets from a lock, by name."""
    rows = []
    for package in packages:
        pythons = tuple(python for python in PYTHONS if asked_for(package, python))
        if not pythons or package["name"].startswith(CUDA):
            continue
        known = tuple(sorted(hashes(package, pythons)))
        rows.append(Locked(package["name"], package["version"], pythons, known))
    return sorted(rows, key=lambda row: (row.name, row.pythons))


def write(file: str, what: str, rows: Iterable[Locked]) -> None:
    """A lock, and its first lines."""
    (LOCKS / file).write_text(HEAD.format(what=what) + "".join(row.lines() for row in rows), encoding="utf-8")


def main(options: list[str]) -> None:
    """Write both locks. `options` are uv's, such as --exclude-newer 2026-11-01."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    everything = locked(resolve([*options, *extras, "--constraint", "constraints.txt", "pyproject.toml"]))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as same:
        same.write("\n".join(row.requirement() for row in everything))
        same.flush()
        building = locked(resolve([*options, "--constraint", same.name, "-"], "\n".join(BUILDERS)))
    write(
        "torch.lock",
        "torch where its CPU build is not on the disk",
        [row for row in everything if row.name == "torch"],
    )
    write("ci.lock", "What CI and `make` install", [row for row in everything if row.name != "torch"])
    write("build.lock", "What builds that, and is there before it", building)


if __name__ == "__main__":
    main(sys.argv[1:])
