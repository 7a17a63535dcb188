"""The invite word: it survives what people do to words, and nothing else."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import PROTOCOL, identity, invite
from swarm.core.membership import Trust, delegation_bytes
from swarm.protocol import Role
from swarm.types import Digest

NOW = 1_800_000_000
OWNER = invite.keyring(bytes(range(32)))
PEER = invite.keyring(bytes(32)).me
RUN = Digest("ab" * 32)

peers = st.binary(min_size=32, max_size=32).map(identity.peer_id)
hosts = st.one_of(
    st.ip_addresses(v=4).map(lambda host: f"/ip4/{host}"),
    st.ip_addresses(v=6).map(lambda host: f"/ip6/{host}"),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}\.example", fullmatch=True).map(lambda host: f"/dns/{host}"),
)
addresses = st.builds(
    lambda host, port, peer: f"{host}/tcp/{port}/p2p/{peer}", hosts, st.integers(1, 65535), peers
)


def word(delegated: bool = True) -> str:
    address = (f"/ip4/192.0.2.7/tcp/31330/p2p/{PEER}", f"/dns/swarm.example/tcp/443/p2p/{PEER}")
    if not delegated:
        return invite.make(RUN, address)
    delegate = invite.delegate(OWNER, "lab", Role.LEARNER, NOW + 60)
    return invite.make(RUN, address, Role.LEARNER, NOW + 60, delegate)


@given(
    st.binary(min_size=32, max_size=32),
    st.lists(addresses, min_size=1, max_size=3),
    st.sampled_from([None, *Role]),
    st.integers(NOW, 2**32 - 1),
)
def test_what_is_made_can_be_read(run: bytes, where: list[str], role: Role | None, expires: int) -> None:
    got = invite.read(invite.make(Digest(run.hex()), where, role, expires), NOW)
    assert got == invite.Invite(run=Digest(run.hex()), addresses=tuple(where), role=role, expires=expires)


def test_a_delegation_travels_with_its_seed() -> None:
    got = invite.read(word(), NOW)
    assert got.delegate is not None
    delegation = got.delegate.delegation
    assert identity.verify(
        OWNER.public, delegation_bytes("lab", Role.LEARNER, NOW + 60, delegation.key), delegation.signature
    )


def test_that_memberships_end_with_their_word_travels_and_is_signed() -> None:
    delegate = invite.delegate(OWNER, "lab", Role.LEARNER, NOW + 60, final=True)
    got = invite.read(
        invite.make(RUN, [f"/ip4/192.0.2.7/tcp/1/p2p/{PEER}"], Role.LEARNER, NOW + 60, delegate), NOW
    )
    assert got.delegate == delegate and delegate.delegation.final
    trust = Trust("lab", OWNER.public, private=True, verify=identity.verify)
    assert trust.objection(PEER, Role.LEARNER, got.admit(PEER), NOW) is None


def test_whoever_holds_an_invite_becomes_a_member() -> None:
    membership = invite.read(word(), NOW).admit(PEER)
    trust = Trust("lab", OWNER.public, private=True, verify=identity.verify)
    assert membership is not None
    assert trust.objection(PEER, Role.LEARNER, membership, NOW) is None
    assert trust.objection(OWNER.me, Role.LEARNER, membership, NOW) is not None
    assert trust.objection(PEER, Role.SEED, membership, NOW) is not None
    assert trust.objection(PEER, Role.LEARNER, membership, NOW + 61) is not None
    assert Trust("other", OWNER.public, private=True, verify=identity.verify).objection(
        PEER, Role.LEARNER, membership, NOW
    )


@settings(max_examples=300)
@given(st.data())
def test_a_wrong_letter_is_detected(data: st.DataObject) -> None:
    right = word(delegated=False)
    at = data.draw(st.integers(0, len(right) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
    wrong = right[:at] + letter + right[at + 1 :]
    if wrong == right:
        return
    with pytest.raises(invite.InviteError) as caught:
        invite.read(wrong, NOW)
    assert caught.value.kind is invite.Trouble.DAMAGED


def test_every_flipped_bit_is_detected() -> None:
    letters = word().removeprefix("swarm1")
    body = base64.b32decode(letters.upper() + "=" * (-len(letters) % 8))
    for bit in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(invite.InviteError, match="damaged"):
            invite.read("swarm1" + base64.b32encode(flipped).decode().rstrip("=").lower(), NOW)


def test_every_truncation_is_detected() -> None:
    right = word()
    for length in range(len(right)):
        with pytest.raises(invite.InviteError) as caught:
            invite.read(right[:length], NOW)
        assert caught.value.kind is invite.Trouble.DAMAGED


@given(st.text(max_size=300))
def test_any_other_text_is_refused_as_damaged(text: str) -> None:
    for candidate in (text, "swarm1" + text):
        with pytest.raises(invite.InviteError):
            invite.read(candidate, NOW)


def test_what_pasting_does_to_a_word_does_not_matter() -> None:
    right = word()
    folded = "\n  ".join(right[at : at + 60] for at in range(0, len(right), 60))
    for pasted in (
        right.upper(),
        f"  $ swarm join {right}\n",
        f"`{right}`",
        folded,
        f"swarm join {right} --as learner",
    ):
        assert invite.read(pasted, NOW) == invite.read(right, NOW)


def test_an_expired_invite_says_when_and_whom_to_ask() -> None:
    with pytest.raises(invite.InviteError, match="expired 2 hours ago: ask the swarm's owner") as caught:
        invite.read(word(), NOW + 60 + 2 * 3600)
    assert caught.value.kind is invite.Trouble.EXPIRED


@pytest.mark.parametrize(
    ("theirs", "todo"), [(PROTOCOL + 1, "upgrade this program"), (PROTOCOL - 1, "older version")]
)
def test_another_protocol_says_who_has_to_upgrade(
    monkeypatch: pytest.MonkeyPatch, theirs: int, todo: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(invite, "PROTOCOL", theirs)
        foreign = word()
    with pytest.raises(invite.InviteError, match=todo) as caught:
        invite.read(foreign, NOW)
    assert caught.value.kind is invite.Trouble.PROTOCOL


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/1.2.3.4/tcp/1",
        "/ip4/1.2.3.4/udp/1/p2p/" + PEER,
        "/ip4/1.2.3/tcp/1/p2p/" + PEER,
        "/dns/a/tcp/70000/p2p/" + PEER,
    ],
)
def test_an_address_that_nobody_could_dial_is_not_written(address: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        invite.make(RUN, (address,))


def test_an_invite_is_short_enough_for_a_chat_line() -> None:
    assert len(word()) < 400
