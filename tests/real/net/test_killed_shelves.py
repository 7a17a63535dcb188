"""A process that is killed at any step of what it writes: the next one has the old or the new version, or
fetches what is missing, and never has other bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from swarm.net.blobs.shelves import Held, Shelf
from swarm.storage import patch_files
from swarm.storage.blocks import BLOCK, Blocks, digest_of

SIZE = 3 * BLOCK + 6
KILLED = 9


def versions() -> list[Blocks]:
    first = np.frombuffer(random.Random(1).randbytes(SIZE), "<u2")
    second = first.copy()
    second[::1000] += 1
    second[2 * BLOCK // 2 : 3 * BLOCK // 2] = first[2 * BLOCK // 2 : 3 * BLOCK // 2]  # the third block stays
    return [Blocks.of(values.tobytes()) for values in (first, second)]


OLD, NEW = versions()
FILE = Blocks.of(patch_files.make(OLD, NEW))
WRITES = ("open", "ftruncate", "pwrite", "fsync", "rename", "unlink")


def opened(folder: Path, told: list[str] | None = None) -> Shelf:
    return Shelf(folder, (told if told is not None else []).append)


def patched(shelf: Shelf) -> None:
    base = shelf.blocks(OLD.root)
    assert base is not None
    made = patch_files.apply(base, [(FILE, NEW.root)], shelf.draft(SIZE))
    shelf.put(Held.of(2, made), made, True)
    shelf.drop([OLD.root])


def fetched(shelf: Shelf) -> None:
    held = Held.of(2, NEW)
    if not shelf.is_whole(NEW.root):
        shelf.begin(held)
        for block in NEW:
            shelf.add({digest_of(block): block})
        shelf.mark(held, True)
    shelf.drop([OLD.root])


def killed_at(step: int, use: Callable[[Shelf], None], shelf: Shelf) -> bool:
    """Do this in a fork of this process, which is killed at its `step`-th write. False when it ended
    before."""
    if (child := os.fork()) == 0:
        left = iter(range(step))

        def dying(name: str) -> Callable[..., Any]:
            real = getattr(os, name)

            def write(*args: Any, **rest: Any) -> Any:
                if next(left, None) is None:
                    if name == "pwrite":
                        real(args[0], args[1][: len(args[1]) // 2], args[2])
                    os._exit(KILLED)
                return real(*args, **rest)

            return write

        for name in WRITES:
            setattr(os, name, dying(name))
        _end(use, shelf)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def _end(use: Callable[[Shelf], None], shelf: Shelf) -> NoReturn:
    try:
        use(shelf)
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize("use", [patched, fetched])
def test_a_kill_at_any_write_leaves_a_whole_version_and_no_wrong_bytes(
    tmp_path: Path, use: Callable[[Shelf], None]
) -> None:
    step, seen = 0, set[tuple[int, ...]]()
    while True:
        folder = tmp_path / str(step)
        shelf = opened(folder)
        shelf.put(Held.of(1, OLD), OLD, True)
        killed = killed_at(step, use, shelf)
        del shelf
        told: list[str] = []
        after = opened(folder, told)
        whole = [held.version for held in after.whole()]
        seen.add(tuple(whole))
        assert whole in ([1], [1, 2], [2]) and not told
        for version in (OLD, NEW):
            for leaf in {version.root, *version.leaves}:
                if (data := after.get(leaf)) is not None:
                    assert digest_of(data) == leaf
        known = {held.root for held in (*after.whole(), *after.begun())}
        assert {path.name.split(".")[0] for path in folder.iterdir()} == known
        fetched(after)
        made = after.blocks(NEW.root)
        assert made is not None and made.whole == NEW.whole == (folder / NEW.root).read_bytes()
        if not killed:
            break
        step += 1
    assert step > 8 and {(1,), (2,)} <= seen


def test_blocks_that_were_written_before_a_kill_are_not_fetched_again(tmp_path: Path) -> None:
    shelf = opened(tmp_path)

    def three(shelf: Shelf) -> None:
        shelf.begin(Held.of(2, NEW))
        for block in list(NEW)[:3]:
            shelf.add({digest_of(block): block})
        os._exit(KILLED)

    assert killed_at(10**6, three, shelf)
    del shelf
    (begun,) = (after := opened(tmp_path)).begun()
    assert [after.lacks(begun.root, leaf) for leaf in NEW.leaves] == [False, False, False, True]
