"""The invite word: it survives what people do to words, and nothing else."""

import base64
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import PROTOCOL
from swarm.core.membership import Trust, delegation_bytes
from swarm.membership import identity, invite
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
    assert caught.value.kind is invite.InviteProblem.DAMAGED


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
        assert caught.value.kind is invite.InviteProblem.DAMAGED


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
    assert caught.value.kind is invite.InviteProblem.EXPIRED


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
    assert caught.value.kind is invite.InviteProblem.PROTOCOL


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/1.2.3.4/tcp/1",
        "/ip4/1.2.3.4/tcp/1/p2p/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKPcdG",
        "/ip4/1.2.3.4/udp/1/p2p/" + PEER,
        "/ip4/1.2.3/tcp/1/p2p/" + PEER,
        "/ip4/2001:db8::1/tcp/1/p2p/" + PEER,
        "/ip6/1.2.3.4/tcp/1/p2p/" + PEER,
        "/dns/a/tcp/70000/p2p/" + PEER,
    ],
)
def test_an_address_that_nobody_could_dial_is_not_written(address: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        invite.make(RUN, (address,))


def test_an_invite_is_short_enough_for_a_chat_line() -> None:
    assert len(word()) < 400


KEPT = {
    (
        "swarm1aeaaoavlvov2xk5lvov2xk5lvov2xk5lvov2xk5lvov2xk5lvov2xk5lvnvutuqaama4aaaca55geo3ke66m5nvefvrkhk"
        "gqfjxq243fgikxohpciotdvqciugfvtwrjamewcltfpbqw24dmmua3wo3ke66m5nvefvrkhkgqfjxq243fgikxohpciotdvqciug"
        "fvtwrjaqeweltfpbqw24dmmua3wo3ke66m5nvefvrkhkgqfjxq243fgikxohpciotdvqciugfvtwrjc7fz3hiatnrge"
    ): (
        Role.SAMPLER,
        NOW,
        (
            f"/ip4/192.0.2.7/tcp/31330/p2p/{PEER}",
            f"/dns4/a.example/tcp/443/p2p/{PEER}",
            f"/dns6/b.example/tcp/443/p2p/{PEER}",
        ),
    ),
    (
        "swarm1aeaaoaflvov2xk5lvov2xk5lvov2xk5lvov2xk5lvov2xk5lvov2xk5lvmaaaaaaaibcaainxaaaaaaaaaaaaaaaaaaaca"
        "abhnvcppgow2sc2yvdvdicu3ynonsteflxdxrehjr2ybekdc2z3iuqkcldfzsxqylnobwgkan3hnvcppgow2sc2yvdvdicu3ynon"
        "steflxdxrehjr2ybekdc2z3iuq2c75mi4ib43v"
    ): (
        None,
        invite.FOREVER,
        (f"/ip6/2001:db8::1/tcp/1/p2p/{PEER}", f"/dns/c.example/tcp/443/p2p/{PEER}"),
    ),
}
"""Words as somebody may have them in a mail -> what they say."""


@pytest.mark.parametrize("kept", KEPT)
def test_a_word_that_was_made_once_is_written_and_read_in_the_same_way(kept: str) -> None:
    role, expires, where = KEPT[kept]
    assert invite.make(RUN, where, role, expires) == kept
    assert invite.read(kept, NOW) == invite.Invite(run=RUN, addresses=where, role=role, expires=expires)


def forged(change: Callable[[bytearray], None]) -> str:
    """A word without a delegation whose body was changed before its checksum was made."""
    letters = word(delegated=False).removeprefix("swarm1").upper()
    body = bytearray(base64.b32decode(letters + "=" * (-len(letters) % 8))[: -invite.CHECKSUM])
    change(body)
    whole = bytes(body) + invite._checksum(bytes(body))
    return "swarm1" + base64.b32encode(whole).decode().rstrip("=").lower()


@pytest.mark.parametrize("number", [len(Role) + 1, 0x3F])
def test_a_word_with_a_role_that_does_not_exist_is_damaged(number: int) -> None:
    with pytest.raises(invite.InviteError, match="names a role that does not exist") as caught:
        invite.read(forged(lambda body: body.__setitem__(3, number)), NOW)
    assert caught.value.kind is invite.InviteProblem.DAMAGED


def test_a_word_with_bytes_that_nobody_reads_is_damaged() -> None:
    assert invite.read(forged(lambda body: None), NOW) == invite.read(word(delegated=False), NOW)
    with pytest.raises(invite.InviteError, match="2 bytes too many"):
        invite.read(forged(lambda body: body.extend(b"xx")), NOW)


COUNT = 1 + 2 + 1 + 32 + 4
"""Where in a word's bytes the number of its addresses stands; the first one's kind follows."""


def four(body: bytearray) -> None:
    addresses = body[COUNT + 1 :]
    body[COUNT] = 4
    body.extend(addresses)


def strange(body: bytearray) -> None:
    body[COUNT + 1] = 9


def no_text(body: bytearray) -> None:
    body[body.index(b"swarm.example")] = 0xFF


def delegated_to_nobody(body: bytearray) -> None:
    body[3] = 0x80
    body.extend(bytes(32 + 64))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (bytearray.clear, "it may be cut off"),
        (four, "bytes too many"),
        (strange, "an address of an unknown kind"),
        (no_text, "a host that is no text"),
        (delegated_to_nobody, "96 bytes too many"),
    ],
)
def test_a_word_that_says_what_no_word_may_say_is_damaged(
    change: Callable[[bytearray], None], says: str
) -> None:
    with pytest.raises(invite.InviteError, match=says) as caught:
        invite.read(forged(change), NOW)
    assert caught.value.kind is invite.InviteProblem.DAMAGED


def test_a_word_names_one_to_three_addresses() -> None:
    address = f"/ip4/192.0.2.7/tcp/1/p2p/{PEER}"
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"1 to 3 addresses, not {count}"):
            invite.make(RUN, [address] * count)


def test_a_word_names_a_whole_digest() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        invite.make(Digest("ab" * 31), [f"/ip4/192.0.2.7/tcp/1/p2p/{PEER}"])


@pytest.mark.parametrize(("role", "expires"), [(Role.SEED, NOW + 60), (Role.LEARNER, NOW + 61)])
def test_a_word_says_of_its_delegation_what_the_owner_signed(role: Role, expires: int) -> None:
    delegate = invite.delegate(OWNER, "lab", Role.LEARNER, NOW + 60)
    with pytest.raises(ValueError, match="the role and the expiry of its delegation"):
        invite.make(RUN, [f"/ip4/192.0.2.7/tcp/1/p2p/{PEER}"], role, expires, delegate)


def test_nobody_becomes_a_member_for_ever() -> None:
    with pytest.raises(ValueError, match="must expire"):
        invite.delegate(OWNER, "lab", Role.LEARNER, invite.FOREVER)


def test_a_word_without_an_end_is_good_at_any_time_and_another_to_its_last_second() -> None:
    assert invite.read(word(delegated=False), 1e12).expires == invite.FOREVER
    assert invite.read(word(), NOW + 60).role is Role.LEARNER


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "an invite begins with swarm1"),
        ("swarm1aeaa8", "it has a '8', which no invite has"),
        ("swarm1", "it may be cut off"),
    ],
)
def test_what_is_no_word_is_told_by_what_is_wrong_with_it(text: str, says: str) -> None:
    with pytest.raises(invite.InviteError, match=says):
        invite.read(text, NOW)


def test_a_word_of_a_later_layout_asks_for_an_upgrade() -> None:
    with pytest.raises(invite.InviteError, match="of kind 2, this program reads 1: upgrade") as caught:
        invite.read(forged(lambda body: body.__setitem__(0, 2)), NOW)
    assert caught.value.kind is invite.InviteProblem.PROTOCOL


@pytest.mark.parametrize(
    ("seconds", "ago"),
    [
        (0.5, "a moment"),
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "1 minute"),
        (3599, "59 minutes"),
        (3600, "1 hour"),
        (2 * 86400 - 1, "1 day"),
        (2 * 86400, "2 days"),
    ],
)
def test_an_expiry_is_told_in_the_largest_whole_unit(seconds: float, ago: str) -> None:
    with pytest.raises(invite.InviteError, match=f"expired {ago} ago"):
        invite.read(word(), NOW + 60 + seconds)


def test_a_word_that_ends_within_an_address_is_damaged() -> None:
    with pytest.raises(invite.InviteError, match="it ends too early"):
        invite.read(forged(lambda body: body.__delitem__(-1)), NOW)


def test_every_port_that_there_is_can_be_written_and_no_other() -> None:
    where = (f"/dns/a/tcp/65535/p2p/{PEER}",)
    assert invite.read(invite.make(RUN, where), NOW).addresses == where
    with pytest.raises(ValueError, match="65536"):
        invite.make(RUN, (f"/dns/a/tcp/65536/p2p/{PEER}",))
