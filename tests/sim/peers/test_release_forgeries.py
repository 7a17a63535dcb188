"""Forged releases and patches: none is accepted, none costs more memory than an honest release, and whoever
signed one is named.

All go through what a peer does with an announcement that it hears: frames, candidates, the ladder, blobs.
"""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from forged_patches import BOMB, raw, sparse, undeclared
from lying_publishers import Liar, steps, told_with
from patch_swarms import BYTES, SIZE, Swarm, among
from safetensors.torch import load, save
from still_host import membership, still_host

from peers.runtime.host import Host
from swarm.events import Adopted, Noted
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT
from swarm.net.blobs.shelves import Held
from swarm.protocol import Role
from swarm.storage import patch_files
from swarm.storage.blocks import BLOCK, Blocks, digest_of, leaf_list
from swarm.types import Digest, Patch, PeerId, Release

GENESIS, HONEST = Blocks.of(BYTES[0]), Blocks.of(BYTES[1])
GOOD = patch_files.make(GENESIS, HONEST)
GENESIS_BLOBS = {GENESIS.root, *GENESIS.leaves}
BLOCKS = len(GENESIS.leaves)
BUDGET = 4 * SIZE
"""Bytes: an honest release is at its sender, on the way, joined, and held."""


@dataclass
class Scene:
    """A member who forges, and a sampler that holds version 0."""

    swarm: Swarm
    forger: Host
    victim: Host
    frames: list[bytes] = field(default_factory=list)
    """What the victim hears, in order."""

    def release(self, version: int, blocks: Blocks, *patches: Patch, **changes: Any) -> Release:
        made = Release(
            version=version,
            weights=blocks.root,
            size=blocks.size,
            parent=GENESIS.root,
            publisher=self.forger.ports.me,
            learners=2,
            groups=1000,
            released=self.forger.now(),
            patches=patches,
        )
        return msgspec.structs.replace(made, **changes)

    def tell(self, release: Release) -> None:
        self.frames.append(self.forger.seal(release, RELEASE_LIMIT))

    def file(self, data: bytes, base: Digest = GENESIS.root, version: int = 1, **changes: Any) -> Patch:
        """A patch whose file the forger serves."""
        blocks = Blocks.of(data)
        self.forger.releases.patches.files.hold(version, blocks)
        return msgspec.structs.replace(Patch(base=base, root=blocks.root, size=blocks.size), **changes)

    def patched(self, data: bytes, **changes: Any) -> None:
        """The honest bytes of version 1, which can be had, and a forged patch to them."""
        self.forger.releases.blobs.hold(1, HONEST)
        self.tell(self.release(1, HONEST, self.file(data, **changes)))

    def listed(self, root: Digest, leaves: Sequence[Digest], block: bytes) -> None:
        """A leaf list of this block, which the forger serves."""
        shelf = self.forger.releases.blobs._shelf
        shelf.begin(Held(root, 1, len(leaves) * len(block), tuple(leaves)))
        shelf.add({digest_of(block): block})


def first_block(patch: bytes) -> bytes:
    """A file in which only the first block has a patch."""
    return struct.pack(f"<{BLOCKS}I", len(patch), *[0] * (BLOCKS - 1)) + patch


def lengths(file: bytes) -> tuple[int, ...]:
    return struct.unpack_from(f"<{BLOCKS}I", file)


def swapped() -> bytes:
    one, two, *rest = lengths(GOOD)
    head, body = 4 * BLOCKS, GOOD[4 * BLOCKS :]
    return (
        struct.pack(f"<{BLOCKS}I", two, one, *rest)
        + body[one : one + two]
        + body[:one]
        + GOOD[head + one + two :]
    )


Forge = Callable[[Scene], None]


def patch(data: bytes, **changes: Any) -> Forge:
    return lambda scene: scene.patched(data, **changes)


def announced(**changes: Any) -> Forge:
    """A release of version 1 whose bytes can be had, with these lies."""

    def forge(scene: Scene) -> None:
        scene.forger.releases.blobs.hold(1, HONEST)
        scene.tell(scene.release(1, HONEST, scene.file(GOOD), **changes))

    return forge


def leaves(count: int, size: int) -> Forge:
    """A leaf list of one leaf, again and again: a block of zeros."""

    def forge(scene: Scene) -> None:
        zeros = bytes(BLOCK)
        listed = [digest_of(zeros)] * count
        root = digest_of(leaf_list(listed))
        scene.listed(root, listed, zeros)
        scene.tell(scene.release(1, HONEST, weights=root, size=size))

    return forge


def older(scene: Scene) -> None:
    """Version 2, made by a patch that leads back to version 0."""
    two = Blocks.of(BYTES[2])
    back = patch_files.make(HONEST, GENESIS)
    scene.forger.releases.blobs.hold(1, HONEST)
    scene.tell(scene.release(1, HONEST, scene.file(GOOD)))
    scene.tell(scene.release(2, two, scene.file(back, base=HONEST.root, version=2)))


def replayed(scene: Scene) -> None:
    """Version 0's bytes, as version -1."""
    scene.forger.releases.blobs.hold(0, GENESIS)
    scene.tell(scene.release(-1, GENESIS))


def other_run(scene: Scene) -> None:
    forger, other = scene.forger, Digest("6" * 64)
    release = scene.release(1, HONEST, scene.file(GOOD))
    forger.releases.blobs.hold(1, HONEST)
    scene.frames.append(wire.seal(release, other, forger.ports.keyring, forger.who.membership, RELEASE_LIMIT))


def other_signer(scene: Scene) -> None:
    """In the learner's name."""
    scene.forger.releases.blobs.hold(1, HONEST)
    scene.tell(scene.release(1, HONEST, scene.file(GOOD), publisher=scene.swarm.learner.ports.me))


def no_signer(scene: Scene) -> None:
    """With the learner's name on the envelope too, which the forger cannot sign for."""
    scene.forger.releases.blobs.hold(1, HONEST)
    release = scene.release(1, HONEST, publisher=scene.swarm.learner.ports.me)
    sealed = bytearray(scene.swarm.learner.seal(release, RELEASE_LIMIT))
    sealed[-1] ^= 1
    scene.frames.append(bytes(sealed))


def circle(scene: Scene) -> None:
    """Versions that are each other's bases, and one that is its own."""
    two = Blocks.of(BYTES[2])
    scene.forger.releases.blobs.hold(1, HONEST)
    scene.tell(scene.release(1, HONEST, scene.file(GOOD, base=two.root), scene.file(GOOD, base=HONEST.root)))
    scene.tell(scene.release(2, two, scene.file(GOOD, base=HONEST.root, version=2)))


def flipped(bit: int) -> bytes:
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


HEAD = 4 * BLOCKS
"""Bytes of a file's lengths."""

BITS = (0, 31, 8 * HEAD, 8 * HEAD + 300, 8 * len(GOOD) - 9)
ENDS = (1, HEAD, len(GOOD) // 2, len(GOOD) - 1)
FAR = sparse(b"\xff" * 2056 + b"\xff\x08", size=BLOCK, count=1)
SIZES = (-1, -(1 << 62), 0, 1, SIZE - 1, SIZE + 1, 1 << 40, 1 << 62)
PATCH_SIZES = (-1, 0, 1, len(GOOD) + 1, SIZE - 1, 1 << 62)
CASES: dict[str, dict[str, Forge]] = {
    "bit flip": {
        f"bit {bit}": patch(flipped(bit))
        for bit in (0, 31, 8 * 4 * BLOCKS, 8 * 4 * BLOCKS + 300, 8 * len(GOOD) - 9)
    },
    "truncation": {
        f"{end} bytes": patch(GOOD[:end]) for end in (1, 4 * BLOCKS, len(GOOD) // 2, len(GOOD) - 1)
    },
    "swapped blocks": {"the first two": patch(swapped())},
    "older version": {"a patch back": older, "a negative version": replayed},
    "other run": {"sealed for it": other_run},
    "wrong signer": {"of a member": other_signer, "of nobody": no_signer},
    "absurd sizes": {
        **{f"release of {size} bytes": announced(size=size) for size in SIZES},
        **{
            f"patch of {size} bytes": patch(GOOD, size=size)
            for size in (-1, 0, 1, len(GOOD) + 1, SIZE - 1, 1 << 62)
        },
        "lengths that overlap": patch(struct.pack(f"<{BLOCKS}I", *[len(GOOD)] * BLOCKS) + GOOD),
        "lengths that wrap": patch(struct.pack(f"<{BLOCKS}I", 0xFFFFFFFF, len(GOOD) - 1, 0, 0) + GOOD),
        "the same block 512 times": leaves(512, 512 * BLOCK),
        "a leaf too many": leaves(BLOCKS + 1, SIZE),
        "a leaf too few": leaves(BLOCKS - 1, SIZE),
    },
    "zstd bomb": {
        "that says so": patch(first_block(raw(BOMB, BLOCK))),
        "that does not": patch(first_block(raw(undeclared(bytes(1 << 26)), BLOCK))),
        "of gaps": patch(first_block(sparse(b"", count=1, size=BLOCK, a=BOMB))),
    },
    "positions out of range": {"beyond the block": patch(first_block(FAR))},
    "difference count off": {
        "more": patch(first_block(sparse(b"\0", count=2, size=BLOCK))),
        "fewer": patch(first_block(sparse(b"\0\0", count=1, size=BLOCK))),
        "absurd": patch(first_block(sparse(b"\0", count=0xFFFFFFFF, size=BLOCK))),
    },
    "wrong base": {
        "made for another": patch(patch_files.make(Blocks.of(BYTES[2]), HONEST)),
        "each other's": circle,
    },
}


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """-> the most bytes that were allocated since."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def scene_of(swarm: Swarm, shelf: Path | None = None, size: int | None = SIZE) -> Scene:
    forger = swarm.host("forger", Role.LEARNER)
    victim = still_host(
        swarm.network,
        "victim",
        Role.SEED,
        shelf=shelf,
        genesis=GENESIS.root,
        release_size=size,
        membership=membership("victim", Role.SEED),
    )
    victim.bus.add(swarm.seen.append)
    victim.releases.blobs.hold(0, GENESIS)
    return Scene(swarm, forger, victim)


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(forge, id=f"{name}: {how}")
        for name, cases in CASES.items()
        for how, forge in cases.items()
    ],
)
def test_a_forgery_is_not_accepted_and_costs_no_more_memory_than_a_release(forge: Forge) -> None:
    async def promise(swarm: Swarm) -> None:
        scene = scene_of(swarm)
        await scene.forger.releases.serve()
        forge(scene)
        with memory() as peak:
            for sealed in scene.frames:
                scene.victim.releases.remember(sealed)
            for _ in range(3):
                found = await scene.victim.releases.obtain((0,))
                assert found is None or (found[1].data == BYTES[1] and found[0].size == SIZE)
                await asyncio.sleep(1.0)
            assert peak() < BUDGET
        held = scene.victim.releases.held
        assert held is None or (held.version, held.weights, held.size) == (1, HONEST.root, SIZE)
        assert {who for who, _ in swarm.blamed} <= {"forger", "victim"}

    among(promise)


NAMES = {
    "a path": "../" * 3 + "here",
    "zeros": "\0" * 64,
    "slashes": "/" * 64,
    "nothing": "",
    "capitals": "A" * 64,
    "short": "a" * 63,
    "a dot": ".",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_that_is_no_digest_is_not_a_file_of_the_seed(name: str, tmp_path: Path) -> None:
    shelf = tmp_path / "one" / "two" / "three" / "blobs"

    def files() -> list[Path]:
        return [path for path in tmp_path.rglob("*") if path.is_file() and path.stem not in GENESIS_BLOBS]

    async def promise(swarm: Swarm) -> None:
        scene = scene_of(swarm, shelf, None)
        scene.victim.releases.blobs._disk = None  # virtual time knows no threads
        scene.victim.releases.patches.files._disk = None
        scene.tell(scene.release(1, Blocks.of(b"small"), weights=Digest(name)))
        scene.tell(scene.release(1, HONEST, Patch(base=GENESIS.root, root=Digest(name), size=9)))
        for sealed in scene.frames:
            scene.victim.releases.remember(sealed)
            assert await scene.victim.releases.obtain((0,)) is None
        assert len(swarm.blamed) == 2

    among(promise)
    assert not files()


def forms(data: bytes) -> dict[str, bytes]:
    """Weights that are not those of the run's Spec: name -> bytes."""
    honest = load(data)
    named = dict(honest)
    (name, table), *_ = honest.items()
    nan = table.clone()
    nan.view(-1)[0] = float("nan")
    return {
        "float16": save({**named, name: table.half()}),
        "float32": save({**named, name: table.float()}),
        "bits as int16": save({**named, name: table.view(torch.int16)}),
        "another shape": save({**named, name: table.reshape(-1)}),
        "another number of values": save({**named, name: table[:-1].clone()}),
        "a tensor too many": save({**named, "more": table.clone()}),
        "another name": save({"other": table}),
        "no finite values": save({**named, name: nan}),
        "cut off": data[:-1],
        "a header of 2 EiB": struct.pack("<Q", 1 << 61) + data[8:],
    }


def test_releases_of_another_type_or_shape_are_left_aside_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each outranks the run's own releases, has the root that its publisher signed, and can be had."""
    told_forms: list[str] = []

    async def lies(liar: Liar) -> None:
        for k, (name, data) in enumerate(forms(liar.learner.weights().data).items()):
            told_forms.append(name)
            await liar.tell(20.0 + 3 * k, partial(liar.release, 1000 + k, data))

    told = told_with(monkeypatch, lies)
    assert len(told_forms) == 10
    refused = [event for event in told.of(Noted, "sampler-0") if "cannot be sampled from" in event.text]
    assert len(refused) == len(told_forms)
    assert max(event.version for event in told.of(Adopted)) < 1000
    assert len(steps(told, since=55.0)) > 5 and max(event.version for event in steps(told, since=0.0)) < 1000


@pytest.mark.nightly
def test_a_ladder_of_twenty_thousand_releases_is_remembered_within_a_bound() -> None:
    async def promise(swarm: Swarm) -> None:
        scene = scene_of(swarm)
        candidates = scene.victim.releases.candidates
        chain = [Digest(f"{version:064x}") for version in range(20_000)]
        for version, (base, weights) in enumerate(pairwise(chain), 1):
            step = Patch(base=base, root=weights, size=1)
            changes = {"weights": weights, "publisher": PeerId(f"member-{version % 1000}")}
            candidates.receive(scene.release(version, GENESIS, step, **changes))
        known = candidates.by_weights()
        assert (
            len(known) < 300
            and sum(candidates.named(made.version, key) is not None for key, (made, *_) in known.items())
            < 300
        )
        assert await scene.victim.releases.obtain((0,)) is None

    among(promise)
