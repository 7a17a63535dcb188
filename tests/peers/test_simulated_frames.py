"""Frames of a simulation: opened once for all peers, and still checked."""

from __future__ import annotations

import pytest

from peers.commands.sim import FRAMES, RUN, OpenedOnce
from swarm.limits import BEAT_LIMIT
from swarm.net.in_memory import MemoryKeyring
from swarm.types import PeerId
from swarm.wire import WireError


def frames(peer: str) -> OpenedOnce:
    return OpenedOnce(RUN, MemoryKeyring(PeerId(peer)), None, False)


def test_all_peers_of_a_simulation_have_one_opened_frame() -> None:
    sealed = frames("learner-0").seal({"a": 1}, BEAT_LIMIT)
    first, second = (frames(peer).open(bytes(sealed), BEAT_LIMIT) for peer in ("sampler-0", "sampler-1"))
    assert first is second and first.sender == "learner-0"


def test_a_frame_that_was_changed_is_refused_every_time() -> None:
    sealed = frames("learner-0").seal({"a": 2}, BEAT_LIMIT)
    frames("sampler-0").open(sealed, BEAT_LIMIT)
    broken = sealed[:-3] + bytes([sealed[-3] ^ 1]) + sealed[-2:]
    for peer in ("sampler-0", "sampler-1"):
        with pytest.raises(WireError):
            frames(peer).open(broken, BEAT_LIMIT)


def test_opened_frames_take_no_more_than_their_room() -> None:
    for number in range(FRAMES + 10):
        frames("sampler-0").open(frames("learner-0").seal({"b": number}, BEAT_LIMIT), BEAT_LIMIT)
    assert len(OpenedOnce._opened) == FRAMES
