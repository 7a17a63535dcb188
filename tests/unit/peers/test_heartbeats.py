"""A heartbeat always fits where it is sent, whatever its peer says and however long its membership is."""

from __future__ import annotations

import os
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from peers.runtime.frames import Frames
from peers.runtime.heartbeats import Heartbeats
from peers.runtime.membership.run_keys import SIZE, RunKeys
from swarm.core.revocation import LINK, LINKS
from swarm.limits import BEAT_LIMIT, RECORD_LIMIT
from swarm.membership import invite
from swarm.membership.identity import Keyring, human_name
from swarm.protocol import PHASES, Phase, Role
from swarm.types import BatchRewards, Beat, Digest, Fetching, Lag, Moments, StageProgress, Vote

OWNER, ME = Keyring.new(), Keyring.new()
RUN = Digest(os.urandom(32).hex())
HARDWARE = (
    "NVIDIA GeForce RTX 4090 Laptop GPU, 16 GiB; limited: 50% of its cores, nice 19, 8 GB RAM, 22-7, on mains"
)


def frames(role: Role, renewed: bool = True) -> Frames:
    """Of a member of a private run; a membership whose way has LINKS invites is the longest."""
    origin = os.urandom(LINK * LINKS)
    given = invite.delegate(OWNER, "private-lab", role, 1_795_000_001)
    membership = invite.admit(given, ME.me, origin if renewed else b"")
    return Frames(RUN, ME, membership, RunKeys(os.urandom(SIZE)))


def vote() -> Vote:
    """For weights: an id is shorter."""
    parent, choice = (Digest(os.urandom(32).hex()) for _ in range(2))
    return Vote(version=123_457, parent=parent, choice=choice, yields=False, signature=os.urandom(64))


def fullest(role: Role) -> Beat:
    """With all that a peer of this role may say, as numbers that compress as little as real ones."""
    of = Random(7).random
    address = f"/ip4/203.0.113.123/tcp/12345/p2p/{ME.me}"
    said: dict[str, Any] = {
        "name": human_name(ME.me),
        "role": role,
        "incarnation": 1_795_000_000_123,
        "seq": 1_234_567,
        "version": 123_456,
        "weights": Digest(os.urandom(32).hex()),
        "state": max(PHASES.values(), key=len),
        "phase": max(PHASES, key=len),
        "credit": 1234,
        "takers": 1234,
        "inbox": 1234,
        "done": 1_234_567,
        "refused": 123_456,
        "rate": of(),
        "tokens": of(),
        "busy": of(),
        "lag": Lag(),
        "addresses": (address, f"/dns4/swarm.laboratory.example{address.removeprefix('/ip4/203.0.113.123')}"),
        "hardware": HARDWARE,
        "at": 1_795_000_000.123456,
        "mirror": 123_456,
        "upload": 123.45,
        "download": 123.45,
        "fetching": Fetching(version=123_456, held=123_456_789, size=1_234_567_890),
        "revoked": 12,
        "slower": of(),
        "progress": StageProgress(stage="evaluation", done=123_456, total=1_234_567, left=of(), reward=of()),
    }
    match role:
        case Role.LEARNER:
            moments = Moments(1234, *(of() for _ in Moments.__struct_fields__[1:]))
            said |= {"closed": BatchRewards(live=1234, completions=moments, groups=moments), "speed": of()}
            said |= {"early": True, "vote": vote()}
        case Role.SAMPLER:
            causes = ("doomed", "over-quota", "undelivered", "unscored")
            said |= {
                "lag": Lag(*(of() for _ in Lag.__struct_fields__)),
                "wasted": dict.fromkeys(causes, 10**9),
            }
        case Role.EVALUATOR:
            said |= {"accuracy": of(), "accuracy_before": of()}
    return Beat(**said)


def beats(of: Frames, told: Beat) -> Heartbeats:
    nothing: Any = SimpleNamespace()
    made = Heartbeats(SimpleNamespace(seal=of.seal), nothing, nothing, lambda *_: None)  # type: ignore[arg-type]
    made._beat = lambda: told  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("role", [Role.LEARNER, Role.SAMPLER, Role.EVALUATOR, Role.SEED])
def test_gossip_carries_all_that_a_member_of_a_private_run_says(role: Role) -> None:
    its, told = frames(role), fullest(role)
    sealed = beats(its, told)._seal(told, BEAT_LIMIT)
    assert len(sealed) <= BEAT_LIMIT.sealed
    assert its.read(sealed, BEAT_LIMIT, Beat)[1] == told


@pytest.mark.parametrize("role", [Role.LEARNER, Role.SAMPLER, Role.EVALUATOR, Role.SEED])
def test_a_record_of_the_board_has_what_fits_and_first_of_all_where_the_peer_stands(role: Role) -> None:
    its, told = frames(role), fullest(role)
    sealed = beats(its, told).sealed()
    assert len(sealed) <= RECORD_LIMIT
    read = its.read(sealed, BEAT_LIMIT, Beat)[1]
    assert (read.role, read.version, read.weights, read.at) == (role, 123_456, told.weights, told.at)
    assert not read.hardware


def test_a_record_keeps_what_it_has_room_for() -> None:
    its, told = (
        frames(Role.SEED, renewed=False),
        msgspec.structs.replace(fullest(Role.SEED), hardware="2 cores"),
    )
    short = msgspec.structs.replace(told, addresses=told.addresses[:1], fetching=None, phase=Phase.SERVING)
    assert its.read(beats(its, short).sealed(), BEAT_LIMIT, Beat)[1].addresses == short.addresses
