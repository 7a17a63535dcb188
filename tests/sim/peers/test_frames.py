"""A private run's frames are read by the invited alone, and its mail answers members alone."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from still_host import still_host

from peers.runtime.frames import OVERHEAD, Frames, MemberMail, UnknownKey
from peers.runtime.membership.run_keys import RunKeys, digest_of
from swarm.core.membership import UNSHOWN, Trust
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.limits import MAIL_LIMIT, REQUEST, Limit
from swarm.membership import invite
from swarm.membership.identity import Keyring, verify
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Refused
from swarm.protocol import Role, Service
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

RUN = Digest("ab" * 32)


def keyring() -> Keyring:
    return Keyring(Ed25519PrivateKey.generate())


KEYS = RunKeys(bytes(32))


@pytest.mark.parametrize("private", [False, True])
def test_a_frame_comes_back_as_it_was_sealed(private: bool) -> None:
    me = keyring()
    frames = Frames(RUN, me, None, KEYS if private else None)
    opened, told = frames.read(frames.seal(b"hello" * 500), MAIL_LIMIT, bytes)
    assert opened.sender == me.me
    assert told == b"hello" * 500


def test_a_private_frame_shows_nothing_and_cannot_be_changed_or_opened_with_another_runs_key() -> None:
    frames = Frames(RUN, keyring(), None, KEYS)
    sealed = frames.seal(b"the secret reward")
    assert b"secret" not in sealed
    assert RUN.encode() not in sealed
    for at in range(0, len(sealed), 7):
        with pytest.raises(wire.WireError):
            frames.read(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], MAIL_LIMIT, bytes)
    with pytest.raises(wire.WireError, match="this run's key"):
        Frames(RUN, keyring(), None, RunKeys(bytes([1]) * 32)).read(sealed, MAIL_LIMIT, bytes)


def test_a_private_frame_keeps_to_its_limit_with_its_encryption() -> None:
    frames = Frames(RUN, keyring(), None, KEYS)
    size = len(frames.seal(b"x"))
    assert len(frames.seal(b"x", Limit(size, size))) == size
    with pytest.raises(wire.WireError, match="does not fit"):
        frames.seal(b"x", Limit(size // 2, size))
    for most in range(size // 2, size):  # a frame that is too long is compressed first
        with suppress(wire.WireError):
            assert len(frames.seal(b"x", Limit(most, size))) <= most
    assert size == len(Frames(RUN, keyring(), None, None).seal(b"x")) + OVERHEAD


def member(owner: Keyring, peer: PeerId, expires: int = 1 << 40) -> Membership:
    return invite.admit(invite.delegate(owner, "demo", Role.SAMPLER, expires), peer)


def test_frames_of_earlier_keys_are_read_and_those_of_later_ones_name_theirs() -> None:
    old, new = RunKeys(bytes(32)), RunKeys(bytes(32))
    assert new.take(bytes(32) + bytes([7]) * 32, digest_of(bytes(32) + bytes([7]) * 32)) and new.epoch == 1
    before, after = (Frames(RUN, keyring(), None, keys) for keys in (old, new))
    assert after.read(before.seal(b"early"), MAIL_LIMIT, bytes)[1] == b"early"
    with pytest.raises(UnknownKey) as caught:
        before.read(after.seal(b"late"), MAIL_LIMIT, bytes)
    assert caught.value.epoch == 1
    with pytest.raises(UnknownKey):
        Frames(RUN, keyring(), None, RunKeys()).seal(b"too early")


def test_keys_are_taken_by_their_digest_alone_and_none_is_forgotten() -> None:
    keys, more = RunKeys(bytes(32)), bytes(32) + bytes([7]) * 32
    assert not keys.take(more, digest_of(bytes(64))) and not keys.take(more[:-1], digest_of(more[:-1]))
    assert keys.take(more, digest_of(more)) and not keys.take(bytes(32), digest_of(bytes(32)))
    assert keys.of(0) == bytes(32) and keys.of(1) == bytes([7]) * 32
    assert keys.of(2) is None and keys.of(-1) is None and keys.of(2**31) is None


class Scene:
    """A server of a private run, and a peer whose membership is `good`, `none`, `stolen`, `expired` or
    `forged`."""

    def __init__(self, membership_of: str) -> None:
        self.owner, self.client = keyring(), keyring()
        self.membership = {
            "good": member(self.owner, self.client.me),
            "none": None,
            "stolen": member(self.owner, keyring().me),
            "expired": member(self.owner, self.client.me, expires=1),
            "forged": member(keyring(), self.client.me),
        }[membership_of]
        self.read: list[bytes] = []

    async def answer(self, sender: PeerId, message: bytes) -> bytes:
        self.read.append(message)
        return b"answer to " + message

    async def ask(self, *messages: bytes) -> list[bytes | str]:
        """Answers, and why there is none."""
        said: list[bytes | str] = []
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            trust = Trust("demo", self.owner.public, True, verify)
            server = still_host(network, "server", Role.SEED, private=True, trust=trust)
            await server.revocations.serve()
            await server.ports.mail.serve("newest", self.answer)
            mail = MemberMail(network.ports(self.client.me, lambda _: 0.0).mail, lambda: self.membership)
            for message in messages:
                try:
                    said.append(await mail.send(PeerId("server"), "newest", message))
                except Refused as error:
                    said.append(str(error))
        return said


def test_a_member_is_answered_once_it_has_shown_that_it_is_one() -> None:
    scene = Scene("good")
    large = bytes(10_000)
    assert run(scene.ask(b"question", large, b"more")) == [
        b"answer to question",
        b"answer to " + large,
        b"answer to more",
    ]
    assert run(Scene("good").ask(large)) == [b"answer to " + large], "a large one comes after it"


class Refusing:
    """A mail whose every service but that of memberships refuses, and what it was sent."""

    guard = None

    def __init__(self, why: str) -> None:
        self.why, self.sent = why, list[str]()

    async def send(self, to: PeerId, service: str, *_: object) -> bytes:
        self.sent.append(service)
        if service != Service.ENTER:
            raise Refused(self.why)
        return b""

    async def sends(self, mine: Membership | None, *messages: bytes) -> list[str]:
        """What is sent for these messages to one peer."""
        mail: Any = self
        for message in messages:
            with pytest.raises(Refused, match=self.why):
                await MemberMail(mail, lambda: mine).send(PeerId("server"), Service.NEWEST, message)
        return self.sent


def test_what_is_refused_for_another_reason_is_sent_once() -> None:
    mine = member(keyring(), keyring().me)
    assert run(Refusing("too many").sends(mine, b"question")) == [Service.NEWEST]
    assert run(Refusing(UNSHOWN).sends(None, b"question")) == [Service.NEWEST], "there is nothing to show"
    shown_once = [Service.NEWEST, Service.ENTER, Service.NEWEST]
    assert run(Refusing(UNSHOWN).sends(mine, b"question")) == shown_once


def test_a_large_message_comes_after_the_membership_once_for_each_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("peers.runtime.frames.SHOWN", 2)
    inner: Any = Refusing("busy")
    mail = MemberMail(inner, lambda: member(keyring(), keyring().me))

    async def sends(*peers: str) -> list[str]:
        inner.sent.clear()
        for peer in peers:
            with pytest.raises(Refused):
                await mail.send(PeerId(peer), Service.NEWEST, bytes(REQUEST + 1))
        return list(inner.sent)

    assert run(sends("one", "one")) == [Service.ENTER, Service.NEWEST, Service.NEWEST]
    assert run(sends("two", "three", "four", "five")) == [Service.ENTER, Service.NEWEST] * 4
    assert len(mail._shown) <= 2


@pytest.mark.parametrize("whose", ["none", "stolen", "expired", "forged"])
def test_whoever_is_not_a_member_is_refused_with_a_reason_and_nothing_of_it_is_read(whose: str) -> None:
    scene = Scene(whose)
    (said,) = run(scene.ask(b"question"))
    assert isinstance(said, str) and said.startswith("this run is private") and not scene.read
