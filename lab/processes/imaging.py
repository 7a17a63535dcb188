"""What a version takes of a peer's memory and time, in a process of its own, for the row `image`.

    python -m lab.processes.imaging '{"model": FOLDER, "work": FOLDER, "share": 0.01}'
        -> {"who": its role, "bytes" of a release, "extra" bytes of memory, ...} for each

A learner packs its module into an image, holds it and makes the patch from the version before; a sampler
makes the version from the patch and loads it into an engine (hf). `extra` is the peak of resident memory
above what was resident before, when an older version had taken the same way: pages of files are the system's
and do not count. A step moves a share of all values to a neighbour.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lab.figures.resident import NOW, PEAK, resident
from lab.swarms.partner import Answer, opened, say
from swarm.net.blobs.shelves import Held, Shelf
from swarm.processes.allocation import give_back
from swarm.protocol import Role
from swarm.storage import patch_files
from swarm.storage.blocks import Blocks, block_size, file_block

T = TypeVar("T")

TURNS = 3
"""The middle one of so many times is told."""


def main() -> int:
    import torch

    from swarm.learn.models.model import load_policy

    setup = opened()
    torch.set_num_threads(1)
    work, module = Path(setup["work"]), load_policy(Path(setup["model"]))
    learner, files = _shelf(work / "packed"), _shelf(work / "patches")
    first, _ = _release(module, learner, files, None)
    _step(module, setup["share"])
    second, _ = _release(module, learner, files, first)
    _step(module, setup["share"])
    (third, file), extra, seconds = _measured(lambda: _release(module, learner, files, second))
    assert file is not None
    say(who=Role.LEARNER, bytes=third.size, patch=file.size, extra=extra, seconds=seconds)
    say(who=Role.SAMPLER, **_sampled(module, _shelf(work / "taken"), second, third, file))
    return 0


def _shelf(folder: Path) -> Shelf:
    return Shelf(folder, print, file_block if folder.name == "patches" else block_size)


def _release(module: Any, shelf: Shelf, files: Shelf, before: Blocks | None) -> tuple[Blocks, Blocks | None]:
    """A version as an image, and the patch from the one before."""
    from swarm.learn.files import weights

    blocks = _put(shelf, weights.write(weights.state(module), shelf.draft).done())
    if before is None:
        return blocks, None
    return blocks, _put(files, Blocks.of(patch_files.make(before, blocks), file_block))


def _put(shelf: Shelf, blocks: Blocks) -> Blocks:
    shelf.put(Held.of(0, blocks), blocks, False)
    held = shelf.blocks(blocks.root)
    assert held is not None
    return held


def _step(module: Any, share: float) -> None:
    """Move a share of the values by the difference of two bfloat16."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            for row in parameter.view(-1).split(1 << 20):
                row *= 1 + (torch.rand(len(row)) < share) / 128


def _sampled(module: Any, shelf: Shelf, old: Blocks, new: Blocks, file: Blocks) -> Answer:
    """A sampler at `old`, whose engine is `module`, takes the patch."""
    from swarm.learn.files import weights

    base, load = _put(shelf, Blocks.of(old.whole)), weights.Loader()
    load(module, base)

    def apply() -> Blocks:
        return patch_files.apply(base, [(file, new.root)], shelf.draft(base.size))

    def take() -> Blocks:
        made = _put(shelf, apply())
        load(module, made)
        return made

    made, extra, _ = _measured(take)
    applied = sorted(_measured(apply)[2] for _ in range(TURNS))
    whole = sorted(_measured(lambda: weights.Loader()(module, made))[2] for _ in range(TURNS))
    some = sorted(_some(module, shelf, load, made) for _ in range(TURNS))
    return {
        "bytes": base.size,
        "extra": extra,
        "applied": applied[TURNS // 2],
        "whole": whole[TURNS // 2],
        "some": some[TURNS // 2],
    }


def _some(module: Any, shelf: Shelf, load: Callable[[Any, Blocks], None], last: Blocks) -> float:
    """Seconds of a load of which the last tenth changed."""
    load(module, last)
    draft, tail = shelf.draft(last.size), len(last) * 9 // 10
    for number, leaf in enumerate(last.leaves):
        block = bytearray(last[number])
        if number >= tail:
            block[-2:] = b"\0\0"
        draft.add(bytes(block), leaf if number < tail else None)
    changed = draft.done()
    return _measured(lambda: load(module, changed))[2]


def _measured(use: Callable[[], T]) -> tuple[T, int, float]:
    """What it returns, peak of resident bytes above those before, CPU seconds."""
    give_back()  # what is free but not given back would hide a peak
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = resident(NOW), time.process_time()
    result = use()
    return result, resident(PEAK) - before, time.process_time() - began


if __name__ == "__main__":
    sys.exit(main())
