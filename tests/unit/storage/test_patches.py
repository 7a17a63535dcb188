"""Patches: the new block comes out bit for bit, is small where training moved little, and nothing that a
stranger calls a patch does more than be refused or give other bytes."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import zstandard
from forged_patches import BOMB, HEAD, LENGTHS, SIZE, frame, raw, sparse, undeclared
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.storage.patches import PLANES, RAW, SPARSE, PatchError, apply, compose, encode

BLOCK = 1 << 20
"""Bytes of the blocks that a release is cut into."""

ODD = BLOCK // 2 + 1


def weights(size: int = BLOCK, seed: int = 0) -> bytes:
    """bfloat16 weights whose rows differ in scale, as in a language model."""
    rng = np.random.default_rng(seed)
    rows = rng.lognormal(0, 0.5, -(-size // 512))[:, None] * rng.normal(0, 0.025, (-(-size // 512), 256))
    return (rows.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()[:size]


def moved(block: bytes, share: float, far: int = 1, seed: int = 1) -> bytes:
    """`share` of the values up or down by 1 to `far` units of the last place."""
    rng = np.random.default_rng(seed)
    values = np.frombuffer(block + bytes(len(block) % 2), "<u2").copy()
    steps = rng.integers(1, far + 1, len(values)) * rng.choice([-1, 1], len(values))
    values += np.where(rng.random(len(values)) < share, steps, 0).astype("<u2")
    return values.tobytes()[: len(block)]


def noise(size: int = BLOCK, seed: int = 2) -> bytes:
    return np.random.default_rng(seed).bytes(size)


# --- what went in comes out ---------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> list[bytes]:
    """Up to five blocks of one length, each the one before with a few values changed, or bytes of its own."""
    size = draw(st.integers(0, 200))
    chain = [draw(st.binary(min_size=size, max_size=size))]
    place = st.tuples(st.integers(0, max(0, size - 1)), st.integers(0, 255))
    for _ in range(draw(st.integers(1, 4))):
        block = bytearray(chain[-1])
        if draw(st.booleans()):
            block[:] = draw(st.binary(min_size=size, max_size=size))
        for at, byte in draw(st.lists(place, max_size=6 if size else 0)):
            block[at] = byte
        chain.append(bytes(block))
    return chain


@given(chains())
def test_a_patch_makes_the_new_block_of_the_old_one_whatever_their_bytes_are(chain: list[bytes]) -> None:
    for old, new in pairwise(chain):
        patch = encode(old, new)
        assert apply(old, patch) == new
        assert (patch == b"") == (old == new)


@given(chains())
def test_a_composed_patch_does_what_its_parts_do_in_turn(chain: list[bytes]) -> None:
    parts = [encode(old, new) for old, new in pairwise(chain)]
    assert apply(chain[0], compose(parts, len(chain[0]))) == chain[-1]


@given(
    st.integers(0, 4096),
    st.floats(0, 1),
    st.sampled_from([1, 3, 600, 1 << 15]),
    st.integers(0, 1 << 16),
)
@example(BLOCK, 0.001, 1, 1)
@example(BLOCK, 0.4, 600, 1)
@example(ODD, 0.01, 3, 1)
@example(ODD, 1.0, 1 << 15, 1)
@example(2, 1.0, 1 << 15, 1)
@example(1, 1.0, 600, 1)
@example(0, 1.0, 1, 1)
def test_blocks_of_every_length_density_and_distance_come_out(
    size: int, share: float, far: int, seed: int
) -> None:
    old = weights(size)
    new = moved(old, share, far, seed)
    patch = encode(old, new)
    assert apply(old, patch) == new
    assert len(patch) <= size + 64


def spread(block: bytes) -> bytes:
    """Each value among fifteen that stay."""
    wide = np.zeros((len(block) // 2, 16), "<u2")
    wide[:, 0] = np.frombuffer(block, "<u2")
    return wide.tobytes()


def test_every_value_changes_to_every_pattern_of_bits() -> None:
    every = np.arange(1 << 16, dtype="<u2")
    special = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x0001, 0x3F80], "<u2")
    for base in special:
        old, new = np.full(1 << 16, base, "<u2").tobytes(), every.tobytes()
        assert apply(old, encode(old, new)) == new
        assert apply(new, encode(new, old)) == old
        sparse_old, sparse_new = (spread(block) for block in (old, new))
        patch = encode(sparse_old, sparse_new)
        assert apply(sparse_old, patch) == sparse_new and patch[0] == SPARSE


def test_a_block_is_read_where_it_lies_and_left_as_it_is() -> None:
    """As in a mapped file: in the middle, at an odd address."""
    old, new = weights(4098)[1:4097], moved(weights(4098), 0.1)[1:4097]
    file = bytearray(b"\0" + old + b"\0")
    view = memoryview(file)[1:-1]
    patch = encode(view, memoryview(new))
    assert apply(view, memoryview(patch)) == new
    assert file == b"\0" + old + b"\0"


def test_blocks_that_differ_in_length_have_no_patch() -> None:
    with pytest.raises(ValueError, match="4 bytes, then 5"):
        encode(bytes(4), bytes(5))


# --- which codec, and how small -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "codec"),
    [
        (weights(), moved(weights(), 0.01), SPARSE),
        (weights(), moved(weights(), 1.0, 3), PLANES),
        (noise(), bytes(BLOCK), RAW),
        (bytes(BLOCK), weights(), PLANES),
    ],
    ids=["few values moved", "all values moved", "cleared", "nothing known before"],
)
def test_the_smallest_codec_wins(old: bytes, new: bytes, codec: int) -> None:
    patch = encode(old, new)
    assert patch[0] == codec
    assert apply(old, patch) == new


def bare(old: bytes, new: bytes) -> int:
    """Bytes of what others send: XOR and zstd."""
    xor = np.frombuffer(old, np.uint8) ^ np.frombuffer(new, np.uint8)
    return len(zstandard.ZstdCompressor(1).compress(xor))


@pytest.mark.parametrize(("share", "most"), [(0.001, 0.7), (0.01, 0.6), (0.06, 0.6), (0.5, 0.7)])
def test_a_patch_of_values_that_moved_by_one_is_much_smaller_than_their_xor(
    share: float, most: float
) -> None:
    old = weights()
    new = moved(old, share)
    assert len(encode(old, new)) < most * bare(old, new)


def test_a_patch_over_eight_versions_is_smaller_than_the_eight() -> None:
    chain = [weights()]
    for seed in range(8):
        chain.append(moved(chain[-1], 0.007, seed=seed))
    parts = [encode(old, new) for old, new in pairwise(chain)]
    whole = compose(parts, BLOCK)
    assert whole == encode(chain[0], chain[-1])
    assert len(whole) < 0.8 * sum(map(len, parts))


def test_a_change_that_is_taken_back_composes_to_nothing() -> None:
    there, back = weights(), moved(weights(), 0.01)
    assert compose([encode(there, back), encode(back, there)], BLOCK) == b""
    assert compose([], BLOCK) == b""


def test_a_block_that_was_replaced_stays_replaced_in_a_composed_patch() -> None:
    chain = [weights(ODD), noise(ODD), bytes(ODD), moved(bytes(ODD), 0.01)]
    parts = [encode(old, new) for old, new in pairwise(chain)]
    assert parts[1][0] == RAW
    whole = compose(parts, ODD)
    assert whole[0] == RAW
    assert apply(noise(ODD, 9), whole) == chain[-1], "from any block"


STORED = "28b52ffd 20 "
"""The beginning of a zstd frame that declares its size in one byte. Its one block is stored as it is, so that
the frame is the same for every version of zstd."""


@pytest.mark.parametrize(
    ("patch", "new"),
    [
        ("", "0000 0000"),
        (f"01 04000000 {STORED} 04 210000 deadbeef", "dead beef"),
        (f"02 04000000 01000000 0a000000 0a000000 {STORED} 01 090000 01 {STORED} 01 090000 01", "0000 ffff"),
        (
            f"02 04000000 01000000 0a000000 0a000000 {STORED} 01 090000 00 {STORED} 01 090000 02"
            f" {STORED} 01 090000 03",
            "0500 0000",
        ),
        (
            f"02 04000000 01000000 0a000000 0a000000 {STORED} 01 090000 00 {STORED} 01 090000 03"
            f" {STORED} 03 190000 ff fe7f",
            "0080 0000",
        ),
        (f"03 04000000 0b000000 {STORED} 02 110000 0201 {STORED} 02 110000 0000", "0100 ffff"),
    ],
    ids=["nothing", "raw", "down by 1", "up by 5", "down by 32768", "planes"],
)
def test_a_patch_is_read_as_the_module_describes_it(patch: str, new: str) -> None:
    assert apply(bytes(4), bytes.fromhex(patch)) == bytes.fromhex(new)


# --- forgeries ----------------------------------------------------------------------------------------------

OLD = weights(SIZE)


def planes(low: bytes, high: bytes, first: int | None = None) -> bytes:
    return HEAD.pack(PLANES, SIZE) + struct.pack("<I", len(low) if first is None else first) + low + high


def understated(data: bytes) -> bytes:
    """A frame that says that a block is in it, and has more."""
    whole = bytearray(frame(data))
    at = whole.index(struct.pack("<I", len(data)))
    whole[at : at + 4] = struct.pack("<I", SIZE)
    return bytes(whole)


NOTHING = bytes.fromhex("28b52ffd 2000 010000")
"""A zstd frame that declares and holds nothing."""

WINDOW = bytes.fromhex("28b52ffd 80 80") + struct.pack("<I", SIZE) + bytes.fromhex("018000") + OLD
"""A sound one of a block that may look back over 64 MiB, which a decoder allocates."""

SKIPPED = struct.pack("<II", 0x184D2A50, SIZE) + bytes(SIZE)
"""A frame to be skipped."""


FORGERIES = {
    "codec that nobody knows": b"\x7f" + encode(OLD, moved(OLD, 0.1))[1:],
    "codec 0": b"\0" + encode(OLD, moved(OLD, 0.1))[1:],
    "head that is cut": HEAD.pack(SPARSE, SIZE)[:4],
    "lengths that are cut": HEAD.pack(SPARSE, SIZE) + bytes(11),
    "block of another length": encode(OLD[:-2], moved(OLD[:-2], 0.1)),
    "block of an absurd length": sparse(b"\0", size=0xFFFFFFFF),
    "position beyond the block": sparse(b"\xff" * 8 + b"\x08", count=1),
    "positions that add up beyond the block": sparse(b"\xfe" * 12, bytes(3)),
    "gap that does not end": sparse(b"\0\xff", count=1),
    "gap that goes on for ever": sparse(b"\xff" * 9 + b"\0", count=1),
    "more values than gaps": sparse(b"\0\0", count=3),
    "more gaps than values": sparse(b"\0\0\0", count=2),
    "no value at all": sparse(b"", b""),
    "absurd count": sparse(b"\0", count=0xFFFFFFFF),
    "more values than the block has": sparse(bytes(SIZE // 2 + 1), bytes(SIZE // 8 + 1)),
    "streams beyond the patch": HEAD.pack(SPARSE, SIZE) + LENGTHS.pack(1, 0xFFFFFFFF, 0xFFFFFFFF),
    "too few codes": sparse(bytes(5), b"\0"),
    "too many codes": sparse(b"\0", b"\0\0"),
    "large change without a size": sparse(b"\0", b"\x02"),
    "size of a value that changed by little": sparse(b"\0", b"\0", b"\0"),
    "huge change without its number": sparse(b"\0", b"\x02", b"\xff"),
    "half a number": sparse(b"\0", b"\x02", b"\xff\0"),
    "number of no huge change": sparse(b"\0", b"\x02", b"\0\0\1"),
    "bytes behind the last stream": sparse(b"\0") + b"\0",
    "frame behind a frame": raw(frame(OLD) + frame(OLD)),
    "bytes behind a frame": raw(frame(OLD) + b"\0"),
    "bytes behind a frame of nothing": sparse(b"\0", c=NOTHING + b"junk"),
    "bytes behind all planes": planes(frame(bytes(SIZE // 2)), frame(bytes(SIZE // 2)) + b"\0"),
    "plane that is missing": planes(frame(bytes(SIZE // 2)), b""),
    "plane beyond the patch": planes(frame(bytes(SIZE // 2)), b"", 1 << 30),
    "plane that is too short": planes(frame(bytes(SIZE // 2)), frame(bytes(SIZE // 2 - 1))),
    "block that is too short": raw(frame(OLD[:-1])),
    "block that is too long": raw(frame(OLD + b"\0")),
    "raw block of nothing": raw(b""),
    "no compression": raw(OLD),
    "frame that is skipped": raw(SKIPPED),
    "frame that looks back too far": raw(WINDOW),
    "bomb": raw(BOMB),
    "bomb that does not say so": raw(undeclared(bytes(1 << 26))),
    "bomb that says that it is none": raw(understated(bytes(1 << 26))),
    "bomb of gaps": sparse(b"", count=1, a=BOMB),
    "bomb of codes": sparse(b"\0", b=BOMB),
    "bomb of sizes": sparse(b"\0", c=BOMB),
    "bomb of planes": planes(BOMB, BOMB),
}
"""All of them are caught by their structure."""


def taken(forged: bytes) -> list[str]:
    """Which functions take it for a patch."""
    found = []
    with suppress(PatchError):
        apply(OLD, forged)
        found.append("apply")
    with suppress(PatchError):
        compose([forged], SIZE)
        found.append("compose")
    return found


def test_a_forgery_is_refused_and_costs_next_to_nothing() -> None:
    tracemalloc.start()
    try:
        for name, forged in FORGERIES.items():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert taken(forged) == [], name
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 16 * SIZE + 50_000, f"{name}: a few blocks, and what an exception takes"
    finally:
        tracemalloc.stop()


GENUINE = {
    "raw": encode(noise(64), bytes(64)),
    "sparse": encode(OLD[:64], moved(OLD[:64], 0.2, 600)),
    "planes": planes(frame(bytes(SIZE // 2)), frame(bytes(SIZE // 2))),
}


@pytest.mark.parametrize("codec", GENUINE)
def test_a_patch_that_ends_early_is_refused_wherever_it_ends(codec: str) -> None:
    patch = GENUINE[codec]
    old = bytes(SIZE if codec == "planes" else 64)
    assert len(apply(old, patch)) == len(old)
    for end in range(1, len(patch)):
        with pytest.raises(PatchError):
            apply(old, patch[:end])


@pytest.mark.parametrize("codec", GENUINE)
def test_a_patch_with_a_flipped_bit_is_refused_or_gives_a_block_of_the_same_length(codec: str) -> None:
    """In codec, length, counts and lengths it is caught here; in a stream's content it may give other bytes,
    which the digest of the block tells."""
    patch = GENUINE[codec]
    old = bytes(SIZE if codec == "planes" else 64)
    structure = {"raw": 5, "sparse": 5 + 12, "planes": 5 + 4}[codec]
    for bit in range(8 * len(patch)):
        forged = bytearray(patch)
        forged[bit // 8] ^= 1 << bit % 8
        try:
            assert len(apply(old, bytes(forged))) == len(old)
        except PatchError:
            continue
        assert bit // 8 >= structure


@given(st.binary(max_size=64), st.sampled_from([RAW, SPARSE, PLANES]), st.integers(0, 40))
def test_bytes_that_are_no_patch_are_refused_and_nothing_else_happens(
    junk: bytes, codec: int, size: int
) -> None:
    for patch in (junk, HEAD.pack(codec, size) + junk):
        try:
            assert len(apply(bytes(size), patch)) == size
        except PatchError as error:
            assert str(error)


DENSEST = sparse(bytes(BLOCK // 2), b"\xaa" * (BLOCK // 8), b"\xff" * (BLOCK // 2) + bytes(BLOCK), size=BLOCK)
"""140 bytes that change every value of a block by much."""


@pytest.mark.parametrize("share", [None, 0.01, 0.5, 1.0], ids=["densest", "1 %", "half", "all"])
def test_applying_a_patch_takes_the_memory_of_sixteen_blocks_at_most(share: float | None) -> None:
    old = weights()
    patch = DENSEST if share is None else encode(old, moved(old, share, 600))
    tracemalloc.start()
    try:
        apply(old, patch)
        assert tracemalloc.get_traced_memory()[1] < 16 * BLOCK
    finally:
        tracemalloc.stop()
