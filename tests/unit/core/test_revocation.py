"""The owner's list of revocations: whom it puts out, which list counts, and what it does not touch."""

from __future__ import annotations

import msgspec
import pytest

from swarm.core import revocation
from swarm.core.membership import Trust
from swarm.frames import wire
from swarm.frames.run_types import REVOKED, Membership, Pardon, Revocation
from swarm.membership import invite
from swarm.membership.identity import Keyring, verify
from swarm.protocol import Role
from swarm.types import PeerId

NOW = 1_750_000_000
OWNER, OTHER, ADA, BOB = (Keyring.new() for _ in range(4))
WORD = invite.delegate(OWNER, "lab", Role.SAMPLER, NOW + 100)
ADAS, BOBS = invite.admit(WORD, ADA.me), invite.admit(WORD, BOB.me)


def sealed(number: int, *entries: Revocation, owner: Keyring = OWNER, run: str = "lab") -> bytes:
    return revocation.sealed(run, number, entries, owner.sign)


def trust(*lists: bytes, private: bool = True) -> Trust:
    made = Trust("lab", OWNER.public, private, verify)
    for one in lists:
        made.revocations.take(one)
    return made


def objection(one: Trust, who: Keyring, membership: Membership | None, said: float | None = None) -> str:
    return one.objection(who.me, Role.SAMPLER, membership, NOW, said) or ""


OUT = Revocation(at=NOW, peer=ADA.me)


def test_who_is_revoked_may_not_act_and_others_may() -> None:
    lab = trust(sealed(1, OUT))
    assert "revoked" in objection(lab, ADA, ADAS) and not objection(lab, BOB, BOBS)
    assert not lab.invited(ADA.me, Role.SAMPLER, ADAS, NOW) and lab.invited(BOB.me, Role.SAMPLER, BOBS, NOW)
    assert lab.revoked(ADA.me) and not lab.revoked(BOB.me)


def test_a_pardon_is_the_owner_s_and_in_the_newest_list_alone() -> None:
    pardon = Pardon(at=NOW, peer=ADA.me)
    lab = trust(revocation.sealed("lab", 1, (), OWNER.sign, pardons=(pardon,)))
    assert lab.revocations.pardoned(ADA.me) == NOW and lab.revocations.pardoned(BOB.me) == 0
    lab.revocations.take(sealed(2))
    assert lab.revocations.pardoned(ADA.me) == 0
    with pytest.raises(revocation.FullList):
        revocation.sealed("lab", 1, (), OWNER.sign, pardons=(pardon,) * (REVOKED + 1))


def test_a_stranger_of_a_public_run_can_be_put_out_too() -> None:
    lab = trust(sealed(1, OUT), private=False)
    assert "revoked" in objection(lab, ADA, None) and not objection(lab, BOB, None)


def test_a_revoked_invite_reaches_all_who_came_by_it_but_for_those_who_stay() -> None:
    word = Revocation(at=NOW, invite=WORD.delegation.key)
    assert "invite" in objection(trust(sealed(1, word)), ADA, ADAS)
    kept = trust(sealed(1, msgspec.structs.replace(word, kept=(BOB.me,))))
    assert "invite" in objection(kept, ADA, ADAS) and not objection(kept, BOB, BOBS)
    both = trust(sealed(1, msgspec.structs.replace(word, kept=(BOB.me,)), word))
    assert "invite" in objection(both, BOB, BOBS), "who stays by one entry alone is out"
    twice = trust(sealed(1, msgspec.structs.replace(word, at=NOW - 10), word))
    assert "invite" in objection(twice, ADA, ADAS, said=NOW - 5), "the earlier time counts"


def test_a_renewed_membership_ends_with_the_invite_by_which_its_peer_came() -> None:
    other = invite.delegate(OWNER, "lab", Role.SAMPLER, NOW + 200)
    renewed = invite.admit(other, ADA.me, WORD.delegation.key)
    lab = trust()
    assert not objection(lab, ADA, renewed)
    forged = msgspec.structs.replace(renewed, origin=b"")
    assert "not signed by its delegation" in objection(trust(), ADA, forged)
    lab.revocations.take(sealed(1, Revocation(at=NOW, invite=WORD.delegation.key)))
    assert "invite" in objection(lab, ADA, renewed)
    assert lab.revoked(ADA.me), "also where it shows nothing, as in a mail"


def test_what_was_said_before_the_revocation_stays_said() -> None:
    lab = trust(sealed(1, OUT))
    assert not objection(lab, ADA, ADAS, said=NOW - 1) and objection(lab, ADA, ADAS, said=NOW)


def test_only_a_list_with_a_higher_number_by_the_owner_takes_the_place() -> None:
    lab = trust(sealed(2, OUT))
    assert not lab.revocations.take(sealed(1, Revocation(at=NOW, peer=BOB.me)))
    assert not lab.revocations.take(sealed(2))
    for forged in (sealed(3, owner=OTHER), sealed(3, run="another")):
        with pytest.raises(wire.WireError, match="not signed by the run's owner"):
            lab.revocations.take(forged)
    assert lab.revocations.peers == (ADA.me,) and not lab.revocations.take(b"")
    assert lab.revocations.take(sealed(3)) and lab.revocations.number == 3 and not lab.revoked(ADA.me)


def test_a_list_is_bounded() -> None:
    entries = [Revocation(at=NOW, peer=PeerId(f"peer-{n}")) for n in range(REVOKED + 1)]
    assert trust(sealed(1, *entries[:REVOKED])).revocations.number == 1
    with pytest.raises(revocation.FullList, match=str(REVOKED)):
        sealed(1, *entries)


def test_no_more_memberships_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.core.membership.REMEMBERED", 1)
    lab = trust()
    assert not objection(lab, ADA, ADAS) and not objection(lab, BOB, BOBS)
    assert lab.shown(BOB.me) == BOBS and lab.shown(ADA.me) is None
    assert not objection(lab, ADA, ADAS)
