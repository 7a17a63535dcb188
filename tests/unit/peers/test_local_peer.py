"""What a peer runs on: a node under supervision."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("hivemind", exc_type=ImportError)

from peers import errors
from peers.build.joining.connect_retry import ConnectRetry
from peers.build.local_peer import open_local_peer, open_node
from peers.runtime.peer_folder import PeerFolder
from swarm.net.libp2p.node import Node
from swarm.processes.event_loop import EventLoop
from swarm.settings.config import Limits, Listen
from swarm.types import Digest


async def opened(folder: Path, refusal: Exception | None = None) -> None:
    """A node, for as long as nothing ends its body or its body raises `refusal`."""
    line, retrying = (Listen(dial_only=True), Limits()), ConnectRetry(folder, once=True, has_run=True)
    with open_local_peer(PeerFolder(folder / "peer")) as local:
        async with open_node(local, Digest("0" * 64), *line, (), retrying):
            if refusal is not None:
                raise refusal
            await asyncio.Event().wait()


def test_a_supervision_that_fails_ends_the_peer_with_a_bugs_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(self: Node) -> None:
        raise LookupError("a bug of ours")

    monkeypatch.setattr(Node, "supervise", failing)
    with asyncio.Runner(loop_factory=EventLoop) as runner, pytest.raises(ExceptionGroup) as caught:
        runner.run(asyncio.wait_for(opened(tmp_path), 30))
    assert caught.group_contains(LookupError, match="a bug of ours")
    assert errors.explain(caught.value) is None


def test_what_ends_a_peer_under_supervision_is_told_as_it_is(tmp_path: Path) -> None:
    with (
        asyncio.Runner(loop_factory=EventLoop) as runner,
        pytest.raises((errors.Refusal, ExceptionGroup)) as caught,
    ):
        runner.run(opened(tmp_path, errors.Refusal("the word is of another run")))
    assert errors.explain(caught.value) == (errors.REFUSED, "the word is of another run")
