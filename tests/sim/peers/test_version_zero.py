"""A patch from version 0, for whoever can make that version of a model on its disk."""

from __future__ import annotations

import pytest
from patch_swarms import BYTES, GENESIS, SIZE, Swarm, among

from peers.runtime.host import Host
from peers.runtime.releases.version_zero import Write
from swarm import events
from swarm.core.agreement.patch_path import KEPT
from swarm.storage.blocks import Blocks
from swarm.storage.image import MakeDraft
from swarm.types import Digest


def writes(data: bytes) -> Write:
    """What a model's files make."""

    def write(draft: MakeDraft) -> Blocks:
        out = draft(len(data))
        out.write(data)
        return out.done()

    return write


def fails(draft: MakeDraft) -> Blocks:
    raise OSError("model-00002-of-00007.safetensors is not here")


def has_model(host: Host, write: Write | None = None) -> Host:
    host.releases.patches.version_zero.write = write or writes(BYTES[0])
    return host


async def far_beyond(swarm: Swarm) -> None:
    """Release versions 0, KEPT - 1 and KEPT; no steps lead from the first to the second."""
    await swarm.release(BYTES[0])
    await swarm.release_as(KEPT - 1, BYTES[1], parent=Digest("f" * 64))
    await swarm.release_as(KEPT, BYTES[2])


def test_who_has_the_model_fetches_a_patch_from_version_0_and_the_steps_since() -> None:
    async def promise(swarm: Swarm) -> None:
        has_model(swarm.learner)
        joiner, later = (has_model(swarm.host(name)) for name in ("joiner", "later"))
        await far_beyond(swarm)
        last = swarm.released[-1]
        assert [patch.base for patch in last.patches] == [swarm.released[-2].weights, GENESIS]
        assert await swarm.fetch(joiner, last) < SIZE / 50
        await swarm.release_as(KEPT + 1, BYTES[3])
        assert await swarm.fetch(later, swarm.released[-1]) < SIZE / 30, "it asked a holder for the way"
        assert not swarm.blamed

    among(promise)


def test_version_0_itself_does_not_travel_to_who_has_the_model() -> None:
    async def promise(swarm: Swarm) -> None:
        joiner = has_model(swarm.host("joiner"))
        await swarm.release(BYTES[0], BYTES[1])
        assert await swarm.fetch(joiner, swarm.released[0]) == 0
        assert await swarm.fetch(joiner, swarm.released[1]) < SIZE / 100
        assert joiner.releases.has(GENESIS), "it is held for others like any other"

    among(promise)


@pytest.mark.parametrize("write", [writes(BYTES[5]), fails], ids=["of another model", "that is not whole"])
def test_who_has_a_model_that_makes_other_bytes_fetches_the_whole_and_says_why_once(write: Write) -> None:
    async def promise(swarm: Swarm) -> None:
        has_model(swarm.learner)
        joiner = has_model(swarm.host("joiner"), write)
        await far_beyond(swarm)
        assert await swarm.fetch(joiner, swarm.released[-1]) > SIZE
        assert joiner.releases.patches.version_zero.made_here() is None
        await swarm.release_as(KEPT + 1, BYTES[3])
        assert await swarm.fetch(joiner, swarm.released[-1]) < SIZE / 100
        noted = [event.text for event in swarm.seen if isinstance(event, events.Noted)]
        assert len(noted) == 1 and "version 0 is not made of the model on this disk" in noted[0]
        assert not swarm.blamed

    among(promise)


def test_a_publisher_without_the_model_makes_no_patch_from_it() -> None:
    async def promise(swarm: Swarm) -> None:
        joiner = has_model(swarm.host("joiner"))
        await far_beyond(swarm)
        assert len(swarm.released[-1].patches) == 1
        assert await swarm.fetch(joiner, swarm.released[-1]) > SIZE

    among(promise)
