"""Frames of a simulation: read once for all peers, and still checked."""

from __future__ import annotations

import pytest

from peers.commands.sim import FRAMES, RUN, ReadOnce
from swarm.frames.wire import WireError
from swarm.limits import BEAT_LIMIT
from swarm.net.memory.network import MemoryKeyring
from swarm.types import PeerId


def frames(peer: str) -> ReadOnce:
    return ReadOnce(RUN, MemoryKeyring(PeerId(peer)), None, None)


def test_all_peers_of_a_simulation_have_one_frame_and_what_is_in_it() -> None:
    sealed = frames("learner-0").seal({"a": 1}, BEAT_LIMIT)
    readers = map(frames, ("sampler-0", "sampler-1"))
    first, second = (reader.read(bytes(sealed), BEAT_LIMIT, dict) for reader in readers)
    assert first is second and first[0].sender == "learner-0" and first[1] == {"a": 1}


def test_a_frame_that_was_changed_is_refused_every_time() -> None:
    sealed = frames("learner-0").seal({"a": 2}, BEAT_LIMIT)
    frames("sampler-0").read(sealed, BEAT_LIMIT, dict)
    broken = sealed[:-3] + bytes([sealed[-3] ^ 1]) + sealed[-2:]
    for peer in ("sampler-0", "sampler-1"):
        with pytest.raises(WireError):
            frames(peer).read(broken, BEAT_LIMIT, dict)


def test_frames_that_were_read_take_no_more_than_their_room() -> None:
    for number in range(FRAMES + 10):
        frames("sampler-0").read(frames("learner-0").seal({"b": number}, BEAT_LIMIT), BEAT_LIMIT, dict)
    assert len(ReadOnce._found) == FRAMES
