"""Bytes of a release in pieces: the same bytes as safetensors writes, tensors as they were, and only what
changed is read."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from swarm.learn.files import release_file, weights
from swarm.learn.files.release_file import ReleaseFile
from swarm.net.blobs.shelves import Held, Shelf
from swarm.storage import patch_files
from swarm.storage.blocks import BLOCK, Blocks, Damaged
from swarm.storage.image import Draft, Image, in_memory, only_leaves

FULL = [(), (1,), (7, 3), (5, 2, 2)]
SHAPES = [(0,), *FULL]


def big(seed: int) -> dict[str, torch.Tensor]:
    """A tensor of three blocks and small ones before and after it."""
    random = torch.Generator().manual_seed(seed)
    shapes = {"a": (5,), "b": (3 * BLOCK // 256, 128), "c": (300, 2)}
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


@settings(max_examples=50, deadline=None)
@given(shapes=st.dictionaries(st.text(min_size=1, max_size=6), st.sampled_from(FULL), max_size=5))
def test_the_bytes_are_those_that_safetensors_writes(shapes: dict[str, tuple[int, ...]]) -> None:
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    theirs = save({name: tensor.bfloat16() for name, tensor in tensors.items()}, {"format": "pt"})
    assert weights.to_bytes(tensors) == theirs


def test_a_draft_has_the_same_bytes_and_leaves_in_memory_in_a_file_and_nowhere(tmp_path: Path) -> None:
    state = big(1)
    whole = Blocks.of(weights.to_bytes(state))
    drafts = (in_memory, lambda size: Draft(Image(size, tmp_path / "draft")), only_leaves)
    made = [weights.write(state, draft).done() for draft in drafts]
    assert made == [whole] * 3
    assert made[0].whole == made[1].whole == whole.whole == (tmp_path / "draft").read_bytes()
    with pytest.raises(Damaged):
        assert made[2].whole


def test_tensors_are_read_in_pieces_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_file, "PIECE", 4)
    tensors = {f"t{k}": torch.randn(shape) for k, shape in enumerate(SHAPES)}
    release = ReleaseFile(Blocks.of(weights.to_bytes(tensors)))
    assert release.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        assert torch.equal(release.tensor(name), tensor.bfloat16())


def test_only_tensors_whose_blocks_changed_are_copied() -> None:
    state, module = big(1), torch.nn.ParameterDict(big(2))
    load = weights.Loader()
    load(module, Blocks.of(weights.to_bytes(state)))
    assert all(torch.equal(module[name].bfloat16(), state[name].bfloat16()) for name in state)
    with torch.no_grad():
        module["a"].zero_(), module["c"].zero_()
    state["c"] = state["c"] + 1
    load(module, Blocks.of(weights.to_bytes(state)))
    assert torch.equal(module["c"].bfloat16(), state["c"].bfloat16())
    assert not module["a"].any(), "its block did not change"


def test_after_a_release_of_another_model_all_that_changed_since_the_one_before_is_copied() -> None:
    state, module, load = big(1), torch.nn.ParameterDict(big(2)), weights.Loader()
    load(module, Blocks.of(weights.to_bytes(state)))
    with pytest.raises(ValueError, match="another model"):
        load(module, Blocks.of(weights.to_bytes({"a": torch.ones(5)})))
    newer = big(3)
    load(module, Blocks.of(weights.to_bytes(newer)))
    assert all(torch.equal(module[name].bfloat16(), newer[name].bfloat16()) for name in newer)


@pytest.mark.parametrize("damage", ["changed", "cut"])
def test_a_file_that_somebody_changed_is_found_out_before_anything_is_copied(
    tmp_path: Path, damage: str
) -> None:
    released = weights.write(big(1), lambda size: Draft(Image(size, tmp_path / "draft"))).done()
    content = (tmp_path / "draft").read_bytes()
    if damage == "changed":
        (tmp_path / "draft").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        (tmp_path / "draft").write_bytes(content[:-1])
    module = torch.nn.ParameterDict(big(2))
    with pytest.raises(Damaged, match="draft is damaged"):
        weights.load_into(module, released)
    assert all(torch.equal(module[name], tensor) for name, tensor in big(2).items())


def entry(shape: object = (2,), places: object = (0, 4), dtype: str = "BF16") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": places}


HEADERS = {
    "an overlap": {"a": entry(), "b": entry(places=(2, 6))},
    "a gap": {"a": entry(), "b": entry(places=(6, 10))},
    "a place beyond the end": {"a": entry(places=(4, 8))},
    "a size that is not the shape's": {"a": entry(shape=[3])},
    "a negative shape": {"a": entry(shape=[-2])},
    "negative twice": {"a": entry(shape=[-1, -2])},
    "an absurd shape": {"a": entry(shape=[1 << 62, 1 << 62])},
    "a fraction": {"a": entry(shape=[2.5])},
    "no list": {"a": 7},
    "a number for a name": {"a": entry(dtype="F64")},
    "bytes after the last": {"a": entry(shape=[1], places=(0, 2))},
    "nothing": [],
}


@pytest.mark.parametrize("said", HEADERS.values(), ids=HEADERS)
def test_a_header_that_lies_is_refused(said: object) -> None:
    text = json.dumps(said).encode()
    text += b" " * (-len(text) % 8)
    with pytest.raises(ValueError, match="cannot be read"):
        ReleaseFile(Blocks.of(struct.pack("<Q", len(text)) + text + bytes(4)))


def test_a_header_of_many_brackets_is_refused() -> None:
    text = b'{"a":' + b"[" * 200_000 + b" "
    with pytest.raises(ValueError, match="cannot be read"):
        ReleaseFile(Blocks.of(struct.pack("<Q", len(text)) + text))


def test_who_loads_while_newer_versions_are_made_gets_one_version_whole(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, print)
    state = big(1)
    first = weights.write(state, shelf.draft).done()
    shelf.put(Held.of(0, first), first, False)
    newest, seen, stop = [first.root], set[str](), Event()

    def load() -> None:
        module, loader = torch.nn.ParameterDict(big(2)), weights.Loader()
        while not stop.is_set():
            if (blocks := shelf.blocks(newest[0])) is not None:
                loader(module, blocks)
                assert weights.write(weights.state(module), only_leaves).done().root == blocks.root
                seen.add(blocks.root)

    with ThreadPoolExecutor(1) as engine:
        loading = engine.submit(load)
        while len(seen) < 5 and not loading.done():
            state = {name: tensor + 0.01 for name, tensor in state.items()}
            old, new = shelf.blocks(newest[0]), weights.write(state, in_memory).done()
            assert old is not None
            file = Blocks.of(patch_files.make(old, new))
            made = patch_files.apply(old, [(file, new.root)], shelf.draft(new.size))
            shelf.put(Held.of(len(seen), made), made, False)
            before, newest[0] = newest[0], made.root
            shelf.drop([before])
        stop.set()
        loading.result()
