"""Bytes as blocks: one identity for the whole, one for every block, and sizes that are checked first."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from swarm.storage.blocks import (
    BLOCK,
    CARRIED,
    LARGEST,
    LEAF,
    LEAST,
    MOST,
    PIECES,
    Blocks,
    block_size,
    block_sizes,
    cut,
    digest_of,
    file_block,
    leaf_list,
    read_leaf_list,
)

DATA = random.Random(1).randbytes(2 * BLOCK + 3)


def test_the_root_is_the_digest_of_the_leaf_list_and_a_leaf_that_of_its_block() -> None:
    blocks = Blocks.of(DATA)
    assert blocks.leaves == tuple(digest_of(DATA[at : at + BLOCK]) for at in (0, BLOCK, 2 * BLOCK))
    assert blocks.root == blake3(b"".join(map(bytes.fromhex, blocks.leaves))).hexdigest()


def test_each_block_is_read_under_its_leaf() -> None:
    blocks = Blocks.of(DATA)
    assert tuple(map(digest_of, blocks)) == blocks.leaves
    assert b"".join(blocks) == DATA == blocks.whole and len(blocks) == 3


def test_a_changed_bit_changes_its_leaf_and_the_root_and_no_other_leaf() -> None:
    changed = bytearray(DATA)
    changed[BLOCK] ^= 1
    before, after = Blocks.of(DATA), Blocks.of(bytes(changed))
    assert [a == b for a, b in zip(before.leaves, after.leaves, strict=True)] == [True, False, True]
    assert before.root != after.root and before != after


@given(size=st.integers(1, LARGEST))
def test_sizes_of_blocks_add_up_and_fit_one_mail(size: int) -> None:
    sizes = block_sizes(min(size, 1 << 30))
    assert sum(sizes) == min(size, 1 << 30) and len(set(sizes[:-1])) <= 1


@given(size=st.integers(1, LARGEST))
def test_a_block_and_the_list_of_a_file_fit_one_mail_and_a_large_file_has_many(size: int) -> None:
    step = file_block(size)
    assert min(size, LEAST) <= step <= CARRIED and -(-size // step) <= MOST
    assert step in (LEAST, block_size(size)) or size // step >= PIECES


def test_a_file_is_cut_by_its_rule_and_keeps_its_size_of_blocks() -> None:
    blocks = Blocks.of(DATA, file_block)
    assert blocks.step == LEAST and len(blocks.leaves) == 33
    assert read_leaf_list(leaf_list(blocks.leaves), len(DATA), LEAST) == blocks.leaves


@pytest.mark.parametrize("data", [b"", bytes(LEAF), bytes(4 * LEAF), bytes(3 * LEAF + 1)])
def test_a_leaf_list_of_another_size_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="3 blocks"):
        read_leaf_list(data, len(DATA))
    assert read_leaf_list(leaf_list(Blocks.of(DATA).leaves), len(DATA)) == Blocks.of(DATA).leaves


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_nothing_has_fits_no_list_of_leaves(size: int) -> None:
    with pytest.raises(ValueError):
        read_leaf_list(bytes(LEAF), size)


def test_nothing_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="cannot be cut"):
        Blocks.of(b"")


def test_blocks_are_views_of_the_whole() -> None:
    assert all(view.obj is DATA for view in cut(DATA))


def test_the_root_of_a_single_block_is_its_leaf_and_needs_no_list() -> None:
    blocks = Blocks.of(b"one block")
    assert blocks.root == digest_of(b"one block") and blocks.leaves == (blocks.root,)
