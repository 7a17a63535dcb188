"""A private run's frames are read by the invited alone, and its mail answers members alone."""

from __future__ import annotations

import asyncio

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.runtime.frames import OVERHEAD, Frames, MemberMail
from swarm import invite, wire
from swarm.core.membership import Trust
from swarm.identity import Keyring, verify
from swarm.limits import MAIL_LIMIT, Limit
from swarm.net.ports import Refused
from swarm.protocol import Role
from swarm.run_types import Membership
from swarm.types import Digest, PeerId

RUN, OTHER = Digest("ab" * 32), Digest("cd" * 32)


def keyring() -> Keyring:
    return Keyring(Ed25519PrivateKey.generate())


class WallClock:
    def now(self) -> float:
        return 1.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


class Wire:
    """A Mail that hands the message straight to the other side's handler, as `caller`."""

    def __init__(self) -> None:
        self.caller = PeerId("nobody")
        self.seen: list[bytes] = []

    async def serve(self, service: str, handler: object, turns: object = None) -> None:
        self.handler = handler

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        self.seen.append(data)
        return await self.handler(self.caller, data)  # type: ignore[operator]


@pytest.mark.parametrize("private", [False, True])
def test_a_frame_comes_back_as_it_was_sealed(private: bool) -> None:
    me = keyring()
    frames = Frames(RUN, me, None, private)
    opened, told = frames.read(frames.seal(b"hello" * 500), MAIL_LIMIT, bytes)
    assert opened.sender == me.me
    assert told == b"hello" * 500


def test_a_private_frame_shows_nothing_and_cannot_be_changed_or_opened_with_another_runs_key() -> None:
    frames = Frames(RUN, keyring(), None, True)
    sealed = frames.seal(b"the secret reward")
    assert b"secret" not in sealed
    assert RUN.encode() not in sealed
    for at in range(0, len(sealed), 7):
        with pytest.raises(wire.WireError):
            frames.read(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], MAIL_LIMIT, bytes)
    with pytest.raises(wire.WireError, match="this run's key"):
        Frames(OTHER, keyring(), None, True).read(sealed, MAIL_LIMIT, bytes)


def test_a_private_frame_keeps_to_its_limit_with_its_encryption() -> None:
    frames = Frames(RUN, keyring(), None, True)
    size = len(frames.seal(b"x"))
    assert len(frames.seal(b"x", Limit(size, size))) == size
    with pytest.raises(wire.WireError, match="does not fit"):
        frames.seal(b"x", Limit(size - 1, size))
    assert size == len(Frames(RUN, keyring(), None, False).seal(b"x")) + OVERHEAD


def member(owner: Keyring, peer: PeerId, expires: int = 1 << 40) -> Membership:
    return invite.admit(invite.delegate(owner, "demo", Role.SAMPLER, expires), peer)


def ask(membership_of: str) -> bytes:
    """A request of a peer whose membership is `good`, `none`, `stolen` or `expired`, to a server of a private
    run."""
    owner, server, client, other = keyring(), keyring(), keyring(), keyring()
    memberships = {
        "good": member(owner, client.me),
        "none": None,
        "stolen": member(owner, other.me),
        "expired": member(owner, client.me, expires=1),
        "forged": member(keyring(), client.me),
    }
    trust = Trust("demo", owner.public, True, verify)
    line = Wire()
    line.caller = client.me

    async def answer(sender: PeerId, message: bytes) -> bytes:
        return b"answer to " + message

    async def talk() -> bytes:
        clock = WallClock()
        clock.now = lambda: 2.0  # type: ignore[method-assign]
        await MemberMail(line, Frames(RUN, server, None, True), trust, clock).serve("newest", answer)
        mine = Frames(RUN, client, memberships[membership_of], True)
        return await MemberMail(line, mine, trust, clock).send(server.me, "newest", b"question")

    return asyncio.run(talk())


def test_a_member_is_answered() -> None:
    assert ask("good") == b"answer to question"


@pytest.mark.parametrize("whose", ["none", "stolen", "expired", "forged"])
def test_whoever_is_not_a_member_is_refused_with_a_reason(whose: str) -> None:
    with pytest.raises(Refused, match="this run is private"):
        ask(whose)
