"""Files of patches: a version made from another, and nothing else out of a file that somebody made up."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pytest

from swarm.storage import patch_files
from swarm.storage.blocks import BLOCK, Blocks
from swarm.storage.image import Draft, Image
from swarm.storage.patch_files import UselessFile
from swarm.storage.patches import PatchError

SIZE = 2 * BLOCK + 7


def stepped(data: bytes, seed: int, share: float = 0.01) -> bytes:
    """`data` with a share of its bf16 values moved to a neighbour, all in the first two blocks."""
    values = np.frombuffer(data, "<u2", BLOCK).copy()
    rng = np.random.default_rng(seed)
    places = rng.choice(len(values), int(share * len(values)), replace=False)
    values[places] += rng.choice(np.array([1, 0xFFFF], "<u2"), len(places))
    return values.tobytes() + data[values.nbytes :]


VERSIONS = [random.Random(1).randbytes(SIZE)]
for seed in range(3):
    VERSIONS.append(stepped(VERSIONS[-1], seed))
OLD, NEW = Blocks.of(VERSIONS[0]), Blocks.of(VERSIONS[1])
FILE = patch_files.make(OLD, NEW)


def made(file: bytes, old: Blocks = OLD, new: Blocks = NEW) -> bytes:
    blocks = patch_files.apply(old, [(Blocks.of(file), new.root)], Draft(Image(old.size)))
    assert blocks == new == Blocks.of(blocks.whole)
    return blocks.whole


def test_a_version_is_made_from_the_one_before() -> None:
    assert made(FILE) == NEW.whole


def test_a_hundredth_of_the_values_costs_less_than_a_hundredth_of_the_bytes() -> None:
    assert len(FILE) < SIZE / 100


def test_a_block_that_did_not_change_is_taken_as_it_is() -> None:
    lengths = struct.unpack_from("<3I", FILE)
    assert lengths[2] == 0 and all(lengths[:2])
    blocks = patch_files.apply(OLD, [(Blocks.of(FILE), NEW.root)], Draft(Image(SIZE)))
    assert np.shares_memory(np.frombuffer(blocks[2], np.uint8), np.frombuffer(OLD.whole, np.uint8))


def test_steps_compose_to_what_they_do_in_turn() -> None:
    whole = list(map(Blocks.of, VERSIONS))
    steps = [patch_files.make(a, b) for a, b in pairwise(whole)]
    file = patch_files.compose(list(map(Blocks.of, steps)), SIZE)
    assert made(file, whole[0], whole[-1]) == whole[-1].whole
    assert len(file) < sum(map(len, steps))


def test_blocks_of_other_sizes_have_no_patches() -> None:
    with pytest.raises(ValueError):
        patch_files.make(Blocks.of(OLD.whole[:-1]), NEW)


def test_a_chain_names_its_first_file_that_makes_something_else() -> None:
    whole = list(map(Blocks.of, VERSIONS))
    right = [(Blocks.of(patch_files.make(a, b)), b.root) for a, b in pairwise(whole)]
    assert patch_files.apply(OLD, right, Draft(Image(SIZE))).whole == VERSIONS[-1]
    for step, (file, why) in enumerate([(right[2][0], "the patches make"), (Blocks.of(b"??"), "2 bytes")]):
        chain = [*right[:step], (file, right[step][1]), *right[step + 1 :]]
        with pytest.raises(UselessFile, match=why) as told:
            patch_files.apply(OLD, chain, Draft(Image(SIZE)))
        assert told.value.step == step


def swapped() -> bytes:
    """The patches of the first two blocks in each other's place."""
    one, two, _ = struct.unpack_from("<3I", FILE)
    return struct.pack("<3I", two, one, 0) + FILE[12 + one :] + FILE[12 : 12 + one]


FORGERIES = {
    "next to nothing": b"\0",
    "cut off": FILE[:-1],
    "cut off in the lengths": FILE[:11],
    "one byte more": FILE + b"\0",
    "a bit flipped": FILE[:100] + bytes([FILE[100] ^ 1]) + FILE[101:],
    "a length too large": struct.pack("<I", 1 << 31) + FILE[4:],
    "lengths that wrap": struct.pack("<3I", 0xFFFFFFFF, len(FILE) - 11, 0) + FILE[12:],
    "blocks swapped": swapped(),
    "of nothing that changed": bytes(12),
    "of another version": patch_files.make(NEW, Blocks.of(VERSIONS[2])),
    "of more blocks": bytes(4) + FILE,
    "of fewer blocks": FILE[4:],
}


@pytest.mark.parametrize("file", FORGERIES.values(), ids=FORGERIES)
def test_a_forgery_makes_nothing(file: bytes) -> None:
    with pytest.raises(PatchError):
        made(file)


def test_the_right_patch_on_another_base_makes_nothing() -> None:
    with pytest.raises(PatchError, match=r"make .* and not"):
        made(FILE, old=Blocks.of(VERSIONS[2]))
