"""A way to a run on which only small packets pass is named as such."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peers.build.joining import spec_transfer
from peers.build.joining.connect_retry import ConnectRetry
from peers.commands.doctor import run_checks
from peers.errors import NoPeerAnswers
from swarm.frames import wire
from swarm.membership import invite
from swarm.net.ports import NOTHING_CAME, Refused, Silent
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.types import Digest, PeerId

RUN = Digest("0" * 64)
SEED = PeerId("12D3KooWSmGyvUY4BRQK8E9BgUKp3pS4PLfxCSbvAJK5p7mDFuUX")


class NarrowNode:
    """One connection to a seed, of which a large answer is lost: nothing that follows it comes."""

    def __init__(self, small: Exception | None) -> None:
        """`small`: what comes of a question with a small answer; None is the answer."""
        self.run, self.me, self.mail = RUN, PeerId("me"), self
        self._small, self._is_stuck = small, False

    def guard(self, _: object) -> None: ...

    def peers(self) -> frozenset[PeerId]:
        return frozenset({SEED, PeerId("other")})

    async def hang_up_on(self, peer: PeerId) -> None:
        assert peer == SEED, "nobody else was silent"
        self._is_stuck = False

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        ask = wire.decode(data, spec_transfer.FileRequest)
        self._is_stuck |= ask.offset < spec_transfer.LARGEST_SPEC
        if self._is_stuck:
            raise Silent(f"{to} {NOTHING_CAME} {idle:g} s")
        if self._small is not None:
            raise self._small
        return b""


ENDS = pytest.mark.parametrize(
    ("small", "is_told"),
    [(None, True), (Refused("members alone are answered"), True), (Silent("no answer"), False)],
)


@ENDS
def test_a_joiner_that_gets_small_answers_alone_is_told_so(
    tmp_path: Path, small: Exception | None, is_told: bool
) -> None:
    node: Any = NarrowNode(small)
    retrying = ConnectRetry(tmp_path, once=True, has_run=False)
    retrying.node = node
    fetch = partial(spec_transfer.fetch_spec, node, [SEED], RUN, tmp_path)
    with pytest.raises(NoPeerAnswers, match="sent nothing for 30 s") as failed:
        asyncio.run(retrying.until_had(fetch))
    assert ("drops large packets" in str(failed.value)) is is_told


@ENDS
def test_the_doctor_says_what_to_do_where_small_answers_alone_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Exception | None, is_told: bool
) -> None:
    async def reached(*_: object) -> list[PeerId]:
        return [SEED]

    async def nothing(*_: object) -> None: ...

    said = invite.make(RUN, [f"/ip4/127.0.0.1/tcp/1/p2p/{SEED}"], Role.LEARNER)
    one = run_checks._Examination(invite.read(said, 0.0), Config(), tmp_path)
    monkeypatch.setattr(one, "_addresses", reached)
    monkeypatch.setattr(one, "_clock", nothing)
    monkeypatch.setattr(one, "_shown", lambda node: node)
    node: Any = NarrowNode(small)
    assert asyncio.run(one._asked(node)) == NoPeerAnswers.code
    (found,) = one._found
    assert (found.check, found.level, bool(found.todo)) == ("run", "fail", is_told)
