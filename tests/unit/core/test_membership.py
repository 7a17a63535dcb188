"""owner -> delegation -> peer: the whole chain, and each part of it forged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarm.core.membership import UNSHOWN, Trust, delegation_bytes, membership_bytes, needs_membership
from swarm.core.revocation import sealed
from swarm.frames.run_types import Delegation, Membership, Revocation
from swarm.membership import invite
from swarm.membership.identity import Keyring, verify
from swarm.protocol import Role, Service
from swarm.types import PeerId

NOW = 1_750_000_000.0
OWNER, INVITE, OTHER, PEER, THIEF = (Keyring(Ed25519PrivateKey.generate()) for _ in range(5))


def chain(
    role: Role = Role.LEARNER, *, run: str = "demo", owner: Keyring = OWNER, by: Keyring = INVITE
) -> Membership:
    expires = int(NOW) + 100
    signature = owner.sign(delegation_bytes(run, role, expires, INVITE.public))
    delegation = Delegation(role=role, expires=expires, key=INVITE.public, signature=signature)
    return Membership(
        peer=PEER.me, delegation=delegation, signature=by.sign(membership_bytes(PEER.me, delegation))
    )


def objection(
    membership: Membership | None,
    peer: PeerId = PEER.me,
    role: Role = Role.LEARNER,
    private: bool = False,
    now: float = NOW,
) -> str | None:
    return Trust("demo", OWNER.public, private, verify).objection(peer, role, membership, now)


def spoiled(**delegation: Any) -> Membership:
    good = chain()
    return msgspec.structs.replace(good, delegation=msgspec.structs.replace(good.delegation, **delegation))


@pytest.mark.parametrize("role", list(Role))
def test_the_whole_chain_admits_to_its_role(role: Role) -> None:
    assert objection(chain(role), role=role, private=True) is None


@pytest.mark.parametrize(
    ("membership", "why"),
    [
        (None, "no membership"),
        (chain(Role.SAMPLER), "is for a sampler, not a learner"),
        (chain(Role.EVALUATOR), "is for an evaluator, not a learner"),
        (chain(owner=OTHER), "not signed by the run's owner"),
        (chain(run="another"), "not signed by the run's owner"),
        (chain(by=OTHER), "not signed by its delegation"),
        (spoiled(key=OTHER.public), "not signed by the run's owner"),
        (spoiled(expires=int(NOW) + 9999), "not signed by the run's owner"),
        (spoiled(final=True), "not signed by the run's owner"),
        (spoiled(signature=bytes(64)), "not signed by the run's owner"),
        (spoiled(key=b"short"), "not signed by the run's owner"),
        (msgspec.structs.replace(chain(), signature=bytes(64)), "not signed by its delegation"),
        (msgspec.structs.replace(chain(), signature=b""), "not signed by its delegation"),
    ],
)
def test_each_forged_part_is_refused_with_its_own_sentence(membership: Membership | None, why: str) -> None:
    assert why in (objection(membership) or "no objection")


def test_a_role_cannot_be_changed_without_the_owner() -> None:
    assert "owner" in (objection(spoiled(role=Role.SEED), role=Role.SEED) or "")


def test_a_stolen_membership_is_refused() -> None:
    assert "another peer" in (objection(chain(), peer=THIEF.me) or "")


def test_a_membership_ends_at_its_expiry() -> None:
    assert objection(chain(), now=NOW + 100) is None
    assert "expired" in (objection(chain(), now=NOW + 101) or "")


def test_a_good_membership_that_was_remembered_still_expires_and_still_names_its_role() -> None:
    trust = Trust("demo", OWNER.public, False, verify)
    assert trust.objection(PEER.me, Role.LEARNER, chain(), NOW) is None
    assert "expired" in (trust.objection(PEER.me, Role.LEARNER, chain(), NOW + 101) or "")
    assert "for a learner" in (trust.objection(PEER.me, Role.SEED, chain(), NOW) or "")
    assert "another peer" in (trust.objection(THIEF.me, Role.LEARNER, chain(), NOW) or "")


def test_a_good_membership_is_checked_once() -> None:
    checked: list[bytes] = []

    def counting(key: bytes, signed: bytes, signature: bytes) -> bool:
        checked.append(key)
        return verify(key, signed, signature)

    trust, membership = Trust("demo", OWNER.public, False, counting), chain()
    assert [trust.objection(PEER.me, Role.LEARNER, membership, NOW) for _ in range(3)] == [None] * 3
    assert len(checked) == 2


def test_strangers_sample_and_watch_in_public_runs_and_do_nothing_in_private_ones() -> None:
    free = {role for role in Role if not needs_membership(role, private=False)}
    assert free == {Role.SAMPLER, Role.OBSERVER}
    assert all(needs_membership(role, private=True) for role in Role)
    assert objection(None, role=Role.SAMPLER) is None
    assert "a sampler needs one" in (objection(None, role=Role.SAMPLER, private=True) or "")


def test_what_the_owner_signs_has_the_bytes_that_every_version_checks() -> None:
    assert delegation_bytes("lab", Role.SEED, 5, b"key") == b"swarm-delegation\0lab\0seed\x005\0key"
    assert (
        delegation_bytes("lab", Role.SEED, 5, b"key", True) == b"swarm-delegation-final\0lab\0seed\x005\0key"
    )


def test_the_invited_are_told_from_strangers_in_a_public_run() -> None:
    trust = Trust("demo", OWNER.public, False, verify)
    assert trust.invited(PEER.me, Role.SAMPLER, chain(Role.SAMPLER), NOW)
    assert not trust.invited(PEER.me, Role.SAMPLER, None, NOW)
    assert not trust.invited(PEER.me, Role.SAMPLER, chain(Role.SAMPLER, owner=OTHER), NOW)


def test_a_revoked_invite_does_not_touch_a_stranger_without_a_membership() -> None:
    owner, ada = Keyring.new(), Keyring.new()
    word = invite.delegate(owner, "lab", Role.SAMPLER, int(NOW) + 100)
    public = Trust("lab", owner.public, False, verify)
    public.revocations.take(
        sealed("lab", 1, [Revocation(at=int(NOW), invite=word.delegation.key)], owner.sign)
    )
    assert public.objection(ada.me, Role.SAMPLER, None, NOW) is None
    assert public.refusal(ada.me, Service.SPEC, NOW) is None


def test_a_member_of_a_private_run_is_answered_until_its_membership_ends_or_is_revoked() -> None:
    owner, ada, bob = Keyring.new(), Keyring.new(), Keyring.new()
    word = invite.delegate(owner, "lab", Role.SAMPLER, int(NOW) + 100)
    lab = Trust("lab", owner.public, True, verify)
    for who in (ada, bob):
        assert lab.objection(who.me, Role.SAMPLER, invite.admit(word, who.me), NOW) is None
    assert lab.refusal(ada.me, Service.SPEC, NOW + 100) is None and lab.members(NOW + 100) == [ada.me, bob.me]
    assert lab.refusal(ada.me, Service.SPEC, NOW + 101) == UNSHOWN and lab.members(NOW + 101) == []
    lab.revocations.take(sealed("lab", 1, [Revocation(at=int(NOW), peer=ada.me)], owner.sign))
    assert lab.refusal(ada.me, Service.SPEC, NOW) not in (None, UNSHOWN) and lab.members(NOW) == [bob.me]
    assert lab.refusal(ada.me, Service.ENTER, NOW) is None
