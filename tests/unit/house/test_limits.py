"""What a frame may cost whoever opens it: every kind has a limit after inflation, every text and collection
one of its own."""

from __future__ import annotations

import ast
import asyncio
import os
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect
from nouns import beat
from places import ROOT
from still_host import still_host

from peers.audits.accusations import Accusation
from peers.audits.evidence import Evidence
from peers.audits.shown_groups import AccusedQuery
from peers.audits.submitted_groups import Submitted, SubmittedQuery
from peers.build.joining.spec_transfer import FileRequest
from peers.build.run_sources import Sources
from peers.intake.tally import LAGS_PER_EVENT, SAMPLERS, Tally
from peers.learner.agreement.manifests import BatchManifest, StepManifest
from peers.learner.agreement.rechecks import BatchQuery
from peers.learner.agreement.state_transfer import Offer
from peers.learner.recorder import RecordedStep
from peers.observer import Past
from peers.runtime.frames import Frames
from peers.runtime.membership.contacts import Kept
from peers.runtime.membership.identity_check import BeatQuery
from peers.runtime.membership.members import KeptMembers
from peers.runtime.membership.run_keys import RunKeys
from swarm import events
from swarm.core.agreement.lineage import Line, PointQuery
from swarm.frames import wire
from swarm.frames.run_types import Delegation, Entry, Membership, RevocationList, SignedRevocations, Spec
from swarm.frames.site_types import Contributed, Contribution, ContributionList, ListEntries
from swarm.limits import BEAT_LIMIT, EVENT_LIMIT, RELEASE_LIMIT, TEXT_LIMIT, Limit, remember
from swarm.membership.identity import Keyring
from swarm.membership.sealed_identity import Identity
from swarm.net.averaging.announcing import Announcement
from swarm.net.blobs.sharing import BlockQuery, Holding
from swarm.net.blobs.shelves import Mark
from swarm.net.libp2p.reachability import DialAnswer, DialQuery, Reserved
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import SCHEMA, Phase, Role
from swarm.settings.config import DelayLaw, Sampling
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import (
    Array,
    Beat,
    Digest,
    Group,
    Heads,
    PeerId,
    Receipt,
    Release,
    ReleaseQuery,
    Times,
    TrainedQuery,
    TrainedSteps,
    Verdict,
    Way,
    WayQuery,
)

DECODED = {
    "Beat": Beat,
    "Release": Release,
    "events.Bundle": events.Bundle,
    "Group": Group,
    "Mark": Mark,
    "Membership": Membership,
    "Receipt": Receipt,
    "Spec": Spec,
    "FileRequest": FileRequest,
    "Offer": Offer,
    "Past": Past,
    "ReleaseQuery": ReleaseQuery,
    "BlockQuery": BlockQuery,
    "Holding": Holding,
    "TrainedQuery": TrainedQuery,
    "TrainedSteps": TrainedSteps,
    "BatchQuery": BatchQuery,
    "BatchManifest": BatchManifest,
    "StepManifest": StepManifest,
    "RecordedStep": RecordedStep,
    "Accusation": Accusation,
    "AccusedQuery": AccusedQuery,
    "SubmittedQuery": SubmittedQuery,
    "Submitted": Submitted,
    "Kept": Kept,
    "Way": Way,
    "WayQuery": WayQuery,
    "PointQuery": PointQuery,
    "Line": Line,
    "BeatQuery": BeatQuery,
    "Entry": Entry,
    "Evidence": Evidence,
    "SignedRevocations": SignedRevocations,
    "RevocationList": RevocationList,
    "KeptMembers": KeptMembers,
    "Sources": Sources,
    "Identity": Identity,
    "Announcement": Announcement,
    "Contribution": Contribution,
    "Contributed": Contributed,
    "ContributionList": ContributionList,
    "ListEntries": ListEntries,
    "DialQuery": DialQuery,
    "DialAnswer": DialAnswer,
    "Reserved": Reserved,
}
"""Every type into which something is decoded that a peer sent, or another machine."""

ANYTHING = {"Spec.run"}
"""Its values are anything: a Spec is read only when its digest is the one in the invite."""

ME, STRANGER = (Keyring(Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32)) for k in (1, 2))
RUN = Digest("5" * 64)
BUDGET = 4 << 20
HOUSE = ROOT

READERS = ("decode(", "read_question(", ".read(")


def decoded() -> Iterator[str]:
    """The kind of every `decode(bytes, kind)`, `read_question(bytes, kind)` and `read(frame, limit, kind)`
    in the programs."""
    for path in (path for room in ("swarm", "peers", "dashboard") for path in (HOUSE / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for call in ast.walk(ast.parse(text)) if any(word in text for word in READERS) else ():
            if not isinstance(call, ast.Call):
                continue
            name, many = ast.unparse(call.func), len(call.args)
            is_frame = name.endswith(".read") and many == 3
            if is_frame or (many == 2 and name in ("decode", "wire.decode", "read_question")):
                yield ast.unparse(call.args[-1])


def test_every_type_that_a_peer_fills_is_walked_here() -> None:
    found = set(decoded()) - {"kind"}  # in read_question and read themselves, whose calls are walked
    assert found | {"Announcement"} == set(DECODED)


def boundless(kind: inspect.Type, where: str, seen: set[type]) -> Iterator[str]:
    """Where in a type a text, bytes or a collection may have any length."""
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        for field in kind.fields:
            yield from boundless(field.type, f"{kind.cls.__name__}.{field.name}", seen)
        return
    if isinstance(kind, inspect.UnionType):
        parts: list[inspect.Type] = list(kind.types)
    elif isinstance(kind, inspect.DictType):
        parts = [kind.key_type, kind.value_type]
    elif isinstance(kind, inspect.TupleType):
        parts = list(kind.item_types)
    else:
        parts = [kind.item_type] if isinstance(kind, inspect.CollectionType) else []
    if getattr(kind, "max_length", 0) is None or (
        isinstance(kind, inspect.AnyType) and where not in ANYTHING
    ):
        yield where
    for part in parts:
        yield from boundless(part, where, seen)


@pytest.mark.parametrize("name", DECODED)
def test_every_text_and_collection_that_travels_has_its_limit(name: str) -> None:
    assert list(boundless(inspect.type_info(DECODED[name]), name, set())) == []


def test_a_collection_without_a_limit_is_found() -> None:
    inner = msgspec.defstruct("Inner", [("words", tuple[str, ...])])
    outer = msgspec.defstruct("Outer", [("inner", dict[PeerId, inner | None])])  # type: ignore[valid-type]
    assert list(boundless(inspect.type_info(outer), "", set())) == [
        "Outer.inner",
        "Inner.words",
        "Inner.words",
    ]


# --- what a stranger can send -------------------------------------------------------------------------------

TIMES = Times(released=1.0, fetched=2.0, used=3.0, finished=4.0, sent=5.0)
GROUP = Group(
    id="0" * 32,
    sampler=ME.me,
    task=7,
    version=3,
    weights=Digest("a" * 64),
    draw=0,
    seed=9,
    lengths=(1,),
    rewards=(1.0,),
    tokens=Array(dtype="int32", shape=(1,), data=bytes(4)),
    logprobs=Array(dtype="float32", shape=(1,), data=bytes(4)),
    times=TIMES,
)
BEAT = beat(
    name="x", role=Role.SAMPLER, state="sampling", phase=Phase.SAMPLING, credit=0, takers=0, rate=0.5, at=1.0
)
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
COUNTED = events.Counted(at=1.0, peer=ME.me, verdicts={}, versions={}, seconds={}, samplers={})
SIZES = Sampling(group_size=16, max_tokens=1024)
KINDS: dict[str, tuple[Limit, Any, Any]] = {
    "beat": (BEAT_LIMIT, Beat, BEAT),
    "release": (RELEASE_LIMIT, Release, RELEASE),
    "event": (EVENT_LIMIT, events.Bundle, [COUNTED]),
    "groups": (wire.group_limit(SIZES.group_size, SIZES.max_tokens), Group, GROUP),
}


def sealed(body: bytes, membership: bytes = b"") -> bytes:
    """Signed by a stranger, as small as zstd makes it."""
    signature = STRANGER.sign(wire._signed(RUN, membership, body))
    envelope = wire.Envelope(
        schema=SCHEMA, run=RUN, sender=STRANGER.me, body=body, membership=membership, signature=signature
    )
    return b"\1" + zstandard.ZstdCompressor(level=19).compress(wire.encode(envelope))


def cost(frame: bytes, kind: str) -> tuple[str, int]:
    """What becomes of a frame that arrives, and the most memory that it took."""
    limit, noun, _ = KINDS[kind]
    frames = Frames(RUN, ME, None, None)
    tracemalloc.start()
    try:
        frames.read(frame, limit, noun)
    except wire.WireError as error:
        return str(error), tracemalloc.get_traced_memory()[1]
    else:
        return "accepted", tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


EMPTY = wire.encode(events.Recovered(at=1, peer=PeerId(""), part="", seconds=0))
BOMBS = {
    "zeros": bytes,
    "numbers": lambda size: b"\xdd" + size.to_bytes(4, "big") + b"\x01" * size,
    "floats": lambda size: b"\xdd" + (size // 9).to_bytes(4, "big") + (b"\xcb" + bytes(8)) * (size // 9),
    "texts": lambda size: b"\xdd" + (size // 2).to_bytes(4, "big") + b"\xa1x" * (size // 2),
    "lists": lambda size: b"\xdd" + size.to_bytes(4, "big") + b"\x90" * size,
    "maps": lambda size: b"\xdd" + size.to_bytes(4, "big") + b"\x80" * size,
    "depth": lambda size: b"\x91" * size,
    "one map": lambda size: (
        b"\xdf"
        + (size // 7).to_bytes(4, "big")
        + b"".join(b"\xa5%05x\x01" % k for k in range(min(size // 7, 1 << 17)))
    ),
    "text": lambda size: b"\xdb" + size.to_bytes(4, "big") + b"x" * size,
    "bytes": lambda size: b"\xc6" + size.to_bytes(4, "big") + bytes(size),
    "events": lambda size: b"\xdd" + (size // len(EMPTY)).to_bytes(4, "big") + EMPTY * (size // len(EMPTY)),
}


def with_field(noun: Any, field: str, value: bytes) -> bytes:
    """A noun's msgpack, one field of it replaced."""
    whole = msgspec.msgpack.decode(wire.encode(noun[0] if isinstance(noun, list) else noun))
    body = wire.encode(whole | {field: msgspec.Raw(value)})
    return b"\x91" + body if isinstance(noun, list) else body


@st.composite
def crafted(draw: st.DrawFn) -> tuple[str, bytes]:
    """A kind and a body for it: one of its fields, one that it does not have, or all of it is a bomb."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    limit, _, noun = KINDS[kind]
    size = draw(st.sampled_from([limit.inflated // 2, limit.inflated - 1500, limit.inflated, 15_000_000]))
    bomb = BOMBS[draw(st.sampled_from(sorted(BOMBS)))](size)
    fields = (noun[0] if isinstance(noun, list) else noun).__struct_fields__
    field = draw(st.sampled_from(["", "unknown", *fields]))
    return kind, with_field(noun, field, bomb) if field else bomb


@settings(max_examples=60, deadline=None)
@given(crafted())
def test_no_frame_of_any_kind_costs_more_than_4_mib(made: tuple[str, bytes]) -> None:
    kind, body = made
    said, peak = cost(sealed(body), kind)
    assert peak < BUDGET, f"{kind}: {peak >> 20} MiB, {said}"


@pytest.mark.parametrize(
    ("kind", "field"),
    [("beat", "addresses"), ("groups", "rewards"), ("event", "samplers"), ("beat", "nobody")],
)
def test_a_small_frame_that_inflates_to_millions_of_numbers_is_refused_before_it_is_decoded(
    kind: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = sealed(with_field(KINDS[kind][2], field, BOMBS["numbers"](15_000_000)))
    monkeypatch.setattr(wire, "_open_envelope", lambda data: pytest.fail("decoded"))
    said, peak = cost(frame, kind)
    assert "bytes" in said and peak < 1 << 20, f"{len(frame)} bytes: {said}, {peak >> 10} KiB"


@pytest.mark.parametrize("kind", KINDS)
def test_a_proof_of_membership_costs_no_more_than_one(kind: str) -> None:
    noun = KINDS[kind][2]
    said, peak = cost(sealed(wire.encode(noun), membership=BOMBS["depth"](2000)), kind)
    assert said != "accepted" and peak < BUDGET


# --- what honest peers send ---------------------------------------------------------------------------------

MEMBERSHIP = Membership(
    peer=ME.me,
    delegation=Delegation(
        role=Role.SAMPLER, expires=2_000_000_000, key=os.urandom(32), signature=os.urandom(64)
    ),
    signature=os.urandom(64),
)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("completions", "tokens", "heads"),
    [(2, 1, 0), (8, 6, 0), (8, 6, 4), (16, 1024, 8), (64, 512, 0), (4096, 8, 0)],
)
def test_the_largest_group_of_a_run_fits_its_limit(
    completions: int, tokens: int, heads: int, private: bool
) -> None:
    total = completions * tokens
    group = msgspec.structs.replace(
        GROUP,
        task=2**60,
        version=2**31,
        seed=2**63 - 1,
        lengths=(tokens,) * completions,
        rewards=(0.1,) * completions,
        tokens=Array(dtype="int32", shape=(total,), data=os.urandom(4 * total)),
        logprobs=Array(dtype="float32", shape=(total,), data=os.urandom(4 * total)),
        heads=Heads(tokens=os.urandom(4 * total * heads), logprobs=os.urandom(2 * total * heads)),
    )
    frames = Frames(RUN, ME, MEMBERSHIP, RunKeys(bytes(32)) if private else None)
    limit = wire.group_limit(completions, tokens, heads)
    assert frames.read(frames.seal(group, limit), limit, Group)[1] == group


def test_a_count_of_many_lags_is_told_in_parts_and_none_is_lost() -> None:
    tally = Tally()
    for lag in range(3 * LAGS_PER_EVENT + 1):
        tally.trained(GROUP, lag, 1.0)
    told = []
    while tally.versions:
        told.append(tally.drain()["versions"])
        assert len(told[-1]) <= LAGS_PER_EVENT
    assert sorted(int(lag) for part in told for lag in part) == list(range(3 * LAGS_PER_EVENT + 1))


def test_a_crowd_of_strangers_delays_no_count_of_who_delivers() -> None:
    tally = Tally()
    for stranger in range(3 * SAMPLERS):
        tally.judged(PeerId(f"stranger-{stranger}"), Verdict.UNTRUSTED)
    tally.judged(PeerId("sampler-0"), Verdict.ADMIT)
    assert len(tally.samplers) <= SAMPLERS + 2
    assert sum(by[Verdict.UNTRUSTED] for by in tally.samplers.values()) == 3 * SAMPLERS
    assert tally.drain_samplers()["sampler-0"] == {"admit": 1}


def test_a_fault_with_a_long_story_is_cut_and_reaches_the_others() -> None:
    heard: list[events.Event] = []

    async def main() -> None:
        async with MemoryNetwork(
            Random(1), SimLinks(DelayLaw(law="constant", seconds=0.05), 1e6, Random(2))
        ) as network:
            hosts = [
                still_host(network, "a", Role.LEARNER),
                still_host(network, "b", Role.OBSERVER, observes=True),
            ]
            hosts[1].bus.add(heard.append)
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(host.run(host.stop.wait)) for host in hosts]
                await asyncio.sleep(1.0)
                hosts[0].emit(events.Faulted, part="disk", detail=os.urandom(50_000).hex())
                await asyncio.sleep(2.0)
                for host in hosts:
                    host.leave()
                await asyncio.gather(*running)

    run(main())
    assert [len(event.detail) for event in heard if isinstance(event, events.Faulted)] == [TEXT_LIMIT]


def test_the_newest_are_remembered_and_what_is_said_again_is_new() -> None:
    known = OrderedDict[str, int]()
    for number, key in enumerate("abca"):
        remember(known, key, number, most=3)
    assert [*known.items()] == [("b", 1), ("c", 2), ("a", 3)]
    remember(known, "d", 4, most=3)
    assert [*known] == ["c", "a", "d"]
