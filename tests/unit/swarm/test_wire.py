"""Frames: what was sealed comes out, and nothing else does."""

from __future__ import annotations

import tracemalloc
from array import array

import msgspec
import pytest
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from nouns import beat

from swarm import types
from swarm.frames import run_types, site_types, wire
from swarm.frames.run_types import (
    Delegation,
    Entry,
    Membership,
    Pardon,
    Revocation,
    RevocationList,
    SignedRevocations,
    Spec,
)
from swarm.frames.wire import Envelope, WireError, check_array, decode, encode, seal, unseal
from swarm.limits import BEAT_LIMIT, EVENT_LIMIT, FRAME_LIMIT, MAIL_LIMIT, Limit
from swarm.membership.identity import Keyring
from swarm.protocol import SCHEMA, Role
from swarm.types import (
    Array,
    Beat,
    Digest,
    Group,
    Lag,
    Link,
    PeerId,
    Receipt,
    Release,
    ReleaseQuery,
    Struct,
    Times,
    TrainedQuery,
    TrainedStep,
    TrainedSteps,
    Verdict,
    Way,
    WayQuery,
)

ME, OTHER = (Keyring(Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32)) for k in (1, 2))
RUN = "5" * 64
DELEGATION = Delegation(role=Role.LEARNER, expires=2_000_000_000, key=bytes(32), signature=bytes(64))
MEMBERSHIP = Membership(peer=ME.me, delegation=DELEGATION, signature=bytes(64))
GROUP = Group(
    id="0" * 32,
    sampler=ME.me,
    task=7,
    version=3,
    weights=Digest("a" * 64),
    draw=0,
    seed=9,
    lengths=(2, 1),
    tokens=Array(dtype="int32", shape=(3,), data=array("i", (1, 2, 3)).tobytes()),
    logprobs=Array(dtype="float32", shape=(3,), data=array("f", (-1, -2, -3)).tobytes()),
    rewards=(1.0, 0.0),
    times=Times(released=1.0, fetched=2.0, used=3.0, finished=4.0, sent=5.0),
)
BEAT = beat(rate=0.5, lag=Lag(upload=1.5), addresses=("/ip4/1.2.3.4/tcp/5",), hardware="2 cores", at=1.0)
RELEASE = Release(
    version=1,
    weights=Digest("a" * 64),
    size=1,
    parent=Digest("c" * 64),
    publisher=ME.me,
    learners=1,
    groups=1,
    released=1.0,
)
CLOSED = types.BatchRewards(
    live=4,
    completions=types.Moments(count=8, mean=0.5, square=2.0),
    groups=types.Moments(count=2, mean=0.5, square=0.125),
)
CONTRIBUTION = site_types.Contribution(
    version=1,
    weights=Digest("a" * 64),
    learner=ME.me,
    root=Digest("b" * 64),
    size=1,
    groups=1,
    weight=1.0,
)
MESSAGE = types.Message(role="user", content="1")
NOUNS = [
    GROUP,
    BEAT,
    RELEASE,
    MEMBERSHIP,
    DELEGATION,
    GROUP.tokens,
    types.Heads(tokens=bytes(8), logprobs=bytes(4)),
    GROUP.times,
    BEAT.lag,
    types.Fetching(version=1, held=2, size=3),
    types.StageProgress(stage="batch", done=1, total=8, left=2.5, reward=0.5),
    Link(received={"weights": 7}, rtt=0.25, relayed=True),
    types.Estimate(value=0.5, low=0.4, high=0.6),
    Receipt(verdict=Verdict.STALE, detail="old", version=1, credit=0),
    types.Patch(base=Digest("a" * 64), root=Digest("b" * 64), size=1),
    types.Vote(version=2, parent=Digest("a" * 64), choice=ME.me, yields=True, signature=ME.sign(b"vote")),
    types.Ballot(voter=ME.me, yields=False, signature=ME.sign(b"vote")),
    CONTRIBUTION,
    site_types.Contributed(groups=bytes(8), values=b"values"),
    site_types.ContributionList(
        version=1, weights=Digest("a" * 64), leader=ME.me, root=Digest("b" * 64), size=1
    ),
    site_types.ListEntry(learner=ME.me, root=Digest("b" * 64), size=1, groups=1, weight=1.0, share=1.0),
    ReleaseQuery(version=1, weights=Digest("a" * 64), released=1.0),
    WayQuery(to=Digest("a" * 64), held=(Digest("b" * 64),)),
    Way(releases=(b"sealed",)),
    STEP := TrainedStep(version=3, parent=Digest("c" * 64), members=(PeerId("learner-0"),), groups=bytes(16)),
    TrainedQuery(since=1),
    TrainedSteps(steps=(STEP,)),
    Spec(
        protocol=1,
        run={"name": "demo", "seed": 1},
        owner="00",
        files={"a": Digest("c" * 64)},
        genesis=Digest("d" * 64),
        release_size=1,
        packages={"reasoning-gym": "0.1.25"},
    ),
    OUT := Revocation(at=1, peer=ME.me, invite=bytes(32), kept=(ME.me,)),
    PARDON := Pardon(at=2, peer=ME.me),
    RevocationList(number=1, entries=(OUT,), keys=Digest("e" * 64), pardons=(PARDON,)),
    SignedRevocations(content=b"list", signature=bytes(64)),
    Entry(revoked=b"list", keys=bytes(32)),
    types.Task(environment="toy", index=1, prompt="1", answer="a", messages=(MESSAGE,)),
    MESSAGE,
    CLOSED,
    CLOSED.groups,
]


SMALL = Limit(1024, 4 << 10)


def open_(frame: bytes, limit: Limit = MAIL_LIMIT) -> wire.Opened:
    return unseal(frame, RUN, OTHER, limit)


def test_every_noun_is_tried_here() -> None:
    nouns = {
        kind
        for kind in [*vars(types).values(), *vars(run_types).values(), *vars(site_types).values()]
        if isinstance(kind, type) and issubclass(kind, Struct) and kind is not Struct
    }
    assert nouns == {type(noun) for noun in NOUNS}


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: type(noun).__name__)
def test_every_noun_comes_out_as_it_went_in(noun: Struct) -> None:
    opened = open_(seal(noun, RUN, ME, MEMBERSHIP))
    assert decode(opened.body, type(noun)) == noun
    assert (opened.sender, opened.membership) == (ME.me, MEMBERSHIP)


TAGGED = [noun for noun in NOUNS if type(noun).__struct_config__.tag]


@pytest.mark.parametrize("noun", TAGGED, ids=lambda noun: type(noun).__name__)
def test_a_noun_is_never_taken_for_another(noun: Struct) -> None:
    for other in TAGGED:
        if type(other) is not type(noun):
            with pytest.raises(WireError):
                decode(encode(noun), type(other))


FRAMES = {
    "plain": seal(RELEASE, RUN, ME, MEMBERSHIP),
    "compressed": seal(msgspec.structs.replace(GROUP, rewards=(1.0,) * 500), RUN, ME),
}


def test_small_frames_are_plain_and_large_ones_compressed() -> None:
    assert FRAMES["plain"][0] == 0 and FRAMES["compressed"][0] == 1


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_a_flipped_byte_never_changes_what_is_believed(which: str, data: st.DataObject) -> None:
    frame = bytearray(FRAMES[which])
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    # Some bits of a zstd header say nothing about the content; the signature covers the content, all of it.
    try:
        assert open_(bytes(frame)) == open_(FRAMES[which])
    except WireError:
        return
    assert which == "compressed"


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_a_frame_that_was_cut_short_is_refused(which: str, data: st.DataObject) -> None:
    frame = FRAMES[which]
    with pytest.raises(WireError):
        open_(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(st.binary(max_size=200), st.sampled_from([b"", b"\0", b"\1", b"\2"]))
def test_noise_is_refused(noise: bytes, flag: bytes) -> None:
    with pytest.raises(WireError):
        open_(flag + noise)
    for kind in (Group, Beat, Release, Spec):
        with pytest.raises(WireError):
            decode(noise, kind)


def test_a_frame_deeper_than_any_stack_is_refused() -> None:
    with pytest.raises(WireError):
        decode(b"\x91" * 200_000, list)


def test_what_it_is_not_is_told_with_the_right_article() -> None:
    with pytest.raises(WireError, match=r"^not an Envelope: "):
        decode(b"\x00", Envelope)
    with pytest.raises(WireError, match=r"^not a Beat: "):
        decode(b"\x00", Beat)


def test_a_frame_above_its_limit_is_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_open_envelope", lambda data: pytest.fail("decoded"))
    monkeypatch.setattr(wire, "_inflate", lambda data: pytest.fail("inflated"))
    for limit in (BEAT_LIMIT, EVENT_LIMIT, MAIL_LIMIT):
        with pytest.raises(WireError, match=f"limit {limit.sealed}"):
            open_(b"\1" + bytes(limit.sealed), limit)


def test_what_does_not_fit_is_not_sealed() -> None:
    with pytest.raises(WireError, match="does not fit into 1024"):
        incompressible = "".join(ME.sign(bytes([k])).hex() for k in range(20))
        seal(msgspec.structs.replace(BEAT, hardware=incompressible), RUN, ME, limit=SMALL)


@pytest.mark.parametrize("limit", [SMALL, SMALL._replace(sealed=SMALL.sealed - 32)])
def test_what_fits_when_it_is_compressed_is_sealed_at_any_length(limit: Limit) -> None:
    """Of a private run a frame has 32 bytes less."""
    base = SMALL.sealed - 40 - len(seal(msgspec.structs.replace(BEAT, hardware=""), RUN, ME))
    for more in range(base, base + 60):
        beat = msgspec.structs.replace(BEAT, hardware="c" * more)
        assert decode(open_(seal(beat, RUN, ME, limit=limit), limit).body, Beat) == beat


def bomb(declared: bool) -> bytes:
    """A small frame that inflates to 64 MiB."""
    block = bytes(1 << 20)
    compressor = (
        zstandard.ZstdCompressor().compressobj(size=64 << 20)
        if declared
        else zstandard.ZstdCompressor().compressobj()
    )
    return b"\1" + b"".join(compressor.compress(block) for _ in range(64)) + compressor.flush()


@pytest.mark.parametrize("declared", [True, False])
def test_a_bomb_stops_at_the_budget(declared: bool) -> None:
    frame = bomb(declared)
    assert len(frame) < 64 << 10
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="a frame declares"):
            open_(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAIL_LIMIT.inflated, f"{peak >> 20} MiB"


def test_a_small_frame_costs_little_memory() -> None:
    frame = FRAMES["compressed"]
    open_(frame)
    tracemalloc.start()
    try:
        open_(frame)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_unknown_fields_are_ignored_and_missing_ones_refused() -> None:
    fields = msgspec.msgpack.decode(encode(RELEASE))
    assert decode(msgspec.msgpack.encode(fields | {"colour": "green"}), Release) == RELEASE
    # without patches the whole is fetched, and votes for it are in heartbeats, too
    for name in fields.keys() - {"type", "patches", "ballots"}:
        with pytest.raises(WireError, match=name):
            decode(
                msgspec.msgpack.encode({key: value for key, value in fields.items() if key != name}), Release
            )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_refused_by_its_field(number: float) -> None:
    with pytest.raises(WireError, match="rate"):
        decode(encode(msgspec.structs.replace(BEAT, rate=number)), Beat)
    with pytest.raises(WireError, match="rewards"):
        decode(encode(msgspec.structs.replace(GROUP, rewards=(0.0, number))), Group)


def test_a_group_of_a_run_without_heads_has_no_bytes_for_them() -> None:
    assert b"heads" not in encode(GROUP) and decode(encode(GROUP), Group) == GROUP


def spoiled(**changes: object) -> bytes:
    envelope = msgspec.msgpack.decode(FRAMES["plain"][1:], type=Envelope)
    return b"\0" + encode(msgspec.structs.replace(envelope, **changes))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (seal(RELEASE, "6" * 64, ME), "another run"),
        (spoiled(schema=SCHEMA + 1), "schema"),
        (spoiled(sender=OTHER.me), "signature"),
        (spoiled(sender=PeerId("nobody")), "signature"),
        (spoiled(body=encode(BEAT)), "signature"),
        (spoiled(membership=b""), "signature"),
        (spoiled(membership=encode(msgspec.structs.replace(MEMBERSHIP, peer=OTHER.me))), "signature"),
        (spoiled(signature=b""), "signature"),
        (b"\2" + FRAMES["plain"][1:], "flag"),
        (b"", "0 bytes"),
    ],
)
def test_a_frame_that_must_not_be_believed_says_why(frame: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        open_(frame)


@pytest.mark.parametrize(
    "proof", [b"\x81\xa4peer\xa4\xff\xff\xff\xff", b"\x81\xa1x" + b"\x91" * 100_000, b"no proof"]
)
def test_a_signed_frame_with_a_proof_that_is_none_is_refused(proof: bytes) -> None:
    body = encode(RELEASE)
    signature = ME.sign(wire._signed(RUN, proof, body))
    with pytest.raises(WireError, match=r"(?i)membership"):
        open_(spoiled(body=body, membership=proof, sender=ME.me, signature=signature))


def test_a_frame_names_its_run_in_its_signature() -> None:
    envelope = msgspec.msgpack.decode(seal(RELEASE, "6" * 64, ME)[1:], type=Envelope)
    with pytest.raises(WireError, match="signature"):
        open_(b"\0" + encode(msgspec.structs.replace(envelope, run=RUN)))


@pytest.mark.parametrize(
    "array",
    [
        Array(dtype="float32", shape=(2,), data=bytes(8)),
        Array(dtype="int32", shape=(2, 1), data=bytes(8)),
        Array(dtype="int32", shape=(2,), data=bytes(7)),
        Array(dtype="int32", shape=(1 << 40,), data=bytes(8)),
        Array(dtype="int32", shape=(-2, -1), data=bytes(8)),
    ],
)
def test_an_array_of_another_type_shape_or_size_is_refused(array: Array) -> None:
    with pytest.raises(WireError, match="array"):
        check_array(array, "int32", (2,))


def test_an_array_that_fits_passes() -> None:
    check_array(Array(dtype="float32", shape=(2, 3), data=bytes(24)), "float32", (2, 3))
    check_array(Array(dtype="int32", shape=(0,), data=b""), "int32", (0,))


def test_an_array_of_another_number_of_bytes_is_told_what_it_needs() -> None:
    for size in (23, 25):
        with pytest.raises(WireError, match=rf"float32\[2, 3\] has {size} bytes, needs 24"):
            check_array(Array(dtype="float32", shape=(2, 3), data=bytes(size)), "float32", (2, 3))


def test_a_frame_that_fits_to_the_last_byte_is_sealed_and_opened_and_no_larger_one() -> None:
    whole = len(FRAMES["plain"])
    assert FRAMES["plain"][0] == 0, "what follows the flag is what is inflated"
    exact = Limit(whole, whole - 1)
    assert open_(seal(RELEASE, RUN, ME, MEMBERSHIP, exact), exact) == open_(FRAMES["plain"])
    for sealed, inflated in ((whole // 3, whole - 1), (whole, whole - 2)):
        with pytest.raises(WireError, match="does not fit into"):
            seal(RELEASE, RUN, ME, MEMBERSHIP, Limit(sealed, inflated))
    with pytest.raises(WireError, match=f"frame of {whole} bytes, limit {whole - 1}"):
        open_(FRAMES["plain"], Limit(whole - 1, whole))


def test_a_frame_is_compressed_from_a_kilobyte_on() -> None:
    def sealed(letters: int) -> bytes:
        return seal(msgspec.structs.replace(BEAT, hardware="x" * letters), RUN, ME)

    spare = wire.COMPRESS_FROM - (len(sealed(300)) - 1)
    assert len(sealed(299 + spare)) == wire.COMPRESS_FROM and sealed(299 + spare)[0] == 0
    assert sealed(300 + spare)[0] == 1 and len(sealed(300 + spare)) < wire.COMPRESS_FROM


def test_the_limit_of_a_group_grows_with_its_completions_and_tokens_up_to_that_of_mail() -> None:
    none, some = wire.group_limit(1, 0), wire.group_limit(2, 10)
    assert some.inflated - none.inflated == 16 + 2 * 8 * 10
    assert some.sealed == some.inflated
    assert wire.group_limit(10**6, 10**6) == Limit(FRAME_LIMIT, MAIL_LIMIT.inflated)
