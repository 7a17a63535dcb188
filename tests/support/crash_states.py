"""What a disk holds after its machine failed at any step of what a program wrote.

    with recorded(folder) as disk:      every open, write, truncate, fsync, rename, unlink and mkdir is a step
        write_durably(...)
    for state in disk.states(tmp_path): a folder as a restart finds it, for each step and kind of failure

Kinds: `killed`: the process alone ended, and the disk has all that it wrote. `power`: what had no fsync is
gone, a name until its folder had one. `names`: names are there and content that had no fsync is not, empty or
zeros: file systems may write in that order. Not modelled: a part of one file's writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

STEPS = ("open", "write", "pwrite", "ftruncate", "fsync", "rename", "unlink", "mkdir")

Tree = dict[str, tuple[int, bytes | None]]
"""Path in the folder -> mode and content; None for a folder."""


@dataclass
class Disk:
    root: Path
    trees: dict[str, Tree] = field(default_factory=dict)
    """Kind of failure and step -> what a restart finds."""
    _content: dict[int, bytes] = field(default_factory=dict)
    _names: dict[int, dict[str, int]] = field(default_factory=dict)
    """What had an fsync, by inode."""
    _pins: dict[int, int] = field(default_factory=dict)
    """Inode -> a descriptor: it is not given to another file while something refers to it."""

    def states(self, into: Path) -> Iterator[tuple[str, Path]]:
        """Each of them once, named after the last step that leaves it, under a new folder each: what was
        there before that step has to be there."""
        trees = [*self.trees.items()]
        for number, (what, tree) in enumerate(trees, 1):
            if all(tree != later for _, later in trees[number:]):
                yield what, _made(into / f"state-{number}", tree)

    # --- recording ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """All that is there now had its fsync."""
        for folder, _, files in os.walk(self.root):
            self._sync(Path(folder))
            for name in files:
                self._sync(Path(folder) / name)
        self.note("before")

    def end(self) -> None:
        for descriptor in self._pins.values():
            os.close(descriptor)

    def note(self, step: str) -> None:
        step = f"{len(self.trees)} {step}"
        self.trees[f"killed after {step}"] = self._tree(self.root, self._read)
        for what, lost in (("empty", lambda size: b""), ("zeros", bytes)):
            read = lambda path, lost=lost: self._content.get(  # noqa: E731 (a value, not a name)
                self._inode(path), lost(path.stat().st_size)
            )
            self.trees[f"names, {what}, after {step}"] = self._tree(self.root, read)
        self.trees[f"power after {step}"] = self._durable(self._inode(self.root), "")

    def synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_relative_to(self.root):
            self._sync(path)

    def _sync(self, path: Path) -> None:
        if path.is_dir():
            self._names[self._inode(path)] = {one.name: self._inode(one) for one in path.iterdir()}
        else:
            self._content[self._inode(path)] = path.read_bytes()

    def _inode(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self._pins:
            self._pins[inode] = os.open(path, os.O_RDONLY)
        return inode

    def _read(self, path: Path) -> bytes:
        return path.read_bytes()

    def _tree(self, root: Path, read: Callable[[Path], bytes]) -> Tree:
        return {
            str(path.relative_to(root)): (path.stat().st_mode, None if path.is_dir() else read(path))
            for path in sorted(root.rglob("*"))
        }

    def _durable(self, inode: int, prefix: str) -> Tree:
        tree: Tree = {}
        for name, child in self._names.get(inode, {}).items():
            mode = os.fstat(self._pins[child]).st_mode
            folder = os.path.isdir(f"/proc/self/fd/{self._pins[child]}")
            tree[prefix + name] = (mode, None if folder else self._content.get(child, b""))
            if folder:
                tree |= self._durable(child, f"{prefix}{name}/")
        return tree


@contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """A disk that notes the states below `root` while the body runs."""
    root.mkdir(parents=True, exist_ok=True)
    disk, inside, mine = Disk(root.resolve()), [False], os.getpid()

    def step(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def act(*args: Any, **rest: Any) -> Any:
            if inside[0] or os.getpid() != mine:  # a fork writes nothing of it
                return real(*args, **rest)
            done = real(*args, **rest)
            inside[0] = True  # what the disk itself does is no step
            try:
                if name == "fsync":
                    disk.synced(args[0])
                disk.note(name)
            finally:
                inside[0] = False
            return done

        return act

    disk.begin()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in STEPS:
                patch.setattr(os, name, step(name))
            yield disk
    finally:
        disk.end()


def _made(folder: Path, tree: Tree) -> Path:
    folder.mkdir(parents=True)
    for name, (mode, content) in tree.items():
        if content is None:
            (folder / name).mkdir(mode & 0o777)
        else:
            (folder / name).write_bytes(content)
            (folder / name).chmod(mode & 0o777)
    return folder
