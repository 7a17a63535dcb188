"""An environment that has only what a distribution's requirements name: their packages, linked from the
environment of the tests. The program's packages are the checkout's."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple

from places import ROOT

from lab.rows.installed import PROJECT, closure


def tops(one: Distribution) -> Iterator[Path]:
    """What it has beside other packages: folders and modules."""
    names = {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}
    return (Path(str(one.locate_file(name))) for name in names)


FORKS = """
import json, os, sys, tempfile
from peers import cli

commands, said = json.load(sys.stdin), {}
sys.stdin = open(os.devnull)
os.dup2(sys.stdin.fileno(), 0)
for name, words in commands.items():
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if (pid := os.fork()) == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.exit(cli.main(words))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        said[name] = code, out.read().decode(), err.read().decode()
print(json.dumps(said))
"""


class Said(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class LightEnvironment:
    """`gepo-swarm` with these extras alone; `add` installs a distribution without what it asks for."""

    def __init__(self, folder: Path, *extras: str) -> None:
        venv.EnvBuilder(symlinks=True).create(folder)
        self.folder = folder
        (self.packages,) = folder.glob("lib/python*/site-packages")
        asked = [each for extra in extras for each in PROJECT["optional-dependencies"][extra]]
        for one in closure([*PROJECT["dependencies"], *asked]).values():
            self._link(one)

    def add(self, name: str) -> None:
        self._link(distribution(name))

    def _link(self, one: Distribution) -> None:
        for path in tops(one):
            if not (link := self.packages / path.name).exists():
                link.symlink_to(path)

    def command(self, *words: str) -> list[str]:
        return [str(self.folder / "bin" / "python"), "-m", "peers.cli", *words]

    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        return kept | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.folder / "state")}

    def run_all(self, commands: Mapping[str, Sequence[str]]) -> dict[str, Said]:
        """What each of these says, in a process of its own: forks of one that has only begun."""
        answer = subprocess.run(
            [str(self.folder / "bin" / "python"), "-c", FORKS],
            env=self.environ(),
            cwd=self.folder,
            input=json.dumps(dict(commands)),
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        )
        return {name: Said(*said) for name, said in json.loads(answer.stdout).items()}

    def run(self, *words: str, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.environ(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
