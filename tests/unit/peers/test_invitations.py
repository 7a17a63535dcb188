"""Words made in any peer's folder: who may, whom they name, how long they last."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from invited_peers import KEYS, address, joined, met, started

from peers import cli
from peers.build.joining import invitations
from peers.build.run_folder import RunFolder
from peers.errors import Refusal
from peers.runtime.membership.contacts import CONTACTS, Contact
from peers.runtime.membership.renewal import DAY, renewer
from swarm.core.membership import Trust
from swarm.frames import wire
from swarm.membership import identity, invite
from swarm.membership.identity import Keyring
from swarm.membership.invite import Invite, InviteError
from swarm.net.ports import Refused
from swarm.protocol import Role
from swarm.settings.config import Sampling
from swarm.storage.durable import write_durably


def made(run: RunFolder, role: Role, seconds: float | None = None) -> Invite:
    return invite.read(invitations.invite(run.path, role, seconds), time.time())


def trusted(run: RunFolder, peer: Keyring, said: Invite, day: float = 0.0) -> str | None:
    trust = Trust(run.name, bytes.fromhex(run.spec.owner), True, identity.verify)
    assert said.role is not None
    return trust.objection(peer.me, said.role, said.admit(peer.me), time.time() + day * DAY)


# --- who may ------------------------------------------------------------------------------------------------


def test_nobody_is_invited_as_an_auditor_where_no_group_is_replayed(tmp_path: Path) -> None:
    run = started(tmp_path, sampling=Sampling(quantized=True))
    met(run, {0: (Role.SEED, 0.0)})
    with pytest.raises(Refusal, match="an auditor has no work in this run"):
        invitations.invite(tmp_path, Role.AUDITOR)
    assert invite.read(invitations.invite(tmp_path, Role.LEARNER), time.time()).role is Role.LEARNER


def test_whoever_was_invited_as_a_learner_invites_learners_and_their_memberships_hold(tmp_path: Path) -> None:
    lab = started(tmp_path / "lab")
    guest = joined(tmp_path / "guest", lab, lab.invite(Role.LEARNER, [address(0)]))
    said = made(guest, Role.LEARNER)
    assert trusted(lab, KEYS[5], said) is None
    assert trusted(lab, KEYS[5], said, day=31) is not None, "it ends with the word that it came from"
    kept = guest.invite_path(Role.LEARNER)
    assert kept.stat().st_mode & 0o077 == 0, "the word is a secret"


@pytest.mark.parametrize("role", [Role.LEARNER, Role.EVALUATOR, Role.AUDITOR, Role.SEED])
def test_without_such_a_word_the_sentence_says_what_is_missing_and_how_to_get_it(
    tmp_path: Path, role: Role, capsys: pytest.CaptureFixture[str]
) -> None:
    guest = joined(tmp_path / "guest", started(tmp_path / "lab"))
    assert cli.main(["invite", "--role", role.value, "--folder", str(guest.path)]) == 5
    said = capsys.readouterr().err
    assert f"neither the run's owner.key nor an invite for {role.value}s" in said
    assert f"swarm invite --role {role.value}" in said and "--renew INVITE" in said


def test_any_peer_of_a_public_run_invites_samplers_and_observers(tmp_path: Path) -> None:
    guest = joined(tmp_path / "guest", started(tmp_path / "lab"))
    for role in (Role.SAMPLER, Role.OBSERVER):
        said = made(guest, role)
        assert (said.role, said.delegate, said.run) == (role, None, guest.digest)


def test_in_a_private_run_a_peer_invites_only_as_it_was_invited(tmp_path: Path) -> None:
    lab = started(tmp_path / "lab", private=True)
    guest = joined(tmp_path / "guest", lab, lab.invite(Role.SAMPLER, [address(0)]))
    assert trusted(lab, KEYS[5], made(guest, Role.SAMPLER)) is None
    with pytest.raises(Refusal, match="neither"):
        made(guest, Role.OBSERVER)


def test_an_end_of_its_own_takes_the_owners_key(tmp_path: Path) -> None:
    lab = started(tmp_path / "lab")
    guest = joined(tmp_path / "guest", lab, lab.invite(Role.LEARNER, [address(0)]))
    with pytest.raises(Refusal, match=r"no owner\.key"):
        made(guest, Role.LEARNER, 3600.0)
    assert made(guest, Role.SAMPLER, 3600.0).expires, "a word that makes no members may end any time"


# --- whom it names ------------------------------------------------------------------------------------------


def test_a_word_names_three_live_peers_seeds_first(tmp_path: Path) -> None:
    guest = joined(tmp_path / "guest", started(tmp_path / "lab"))
    met(
        guest,
        {
            1: (Role.SAMPLER, 1.0),
            2: (Role.LEARNER, 9.0),
            3: (Role.SEED, 7200.0),
            4: (Role.SEED, 8.0),
            5: (Role.LEARNER, 2.0),
        },
    )
    assert made(guest, Role.SAMPLER).addresses == (address(4), address(5), address(2))


@pytest.mark.parametrize(("private", "named"), [(False, [address(2)]), (True, [address(2), address(1)])])
def test_a_word_names_members_alone_which_all_peers_of_a_private_run_are(
    tmp_path: Path, private: bool, named: list[str]
) -> None:
    lab = started(tmp_path, private)
    met(lab, {1: (Role.SAMPLER, 1.0), 2: (Role.LEARNER, 7200.0 if not private else 1.0)})
    found = made(lab, Role.SAMPLER).addresses
    assert [one for one in found if "192.0.2.1" in one] == named


def test_strangers_are_named_where_nobody_else_is_known_and_ones_own_peers_are_none(tmp_path: Path) -> None:
    lab = started(tmp_path)
    met(lab, {1: (Role.SAMPLER, 1.0)})
    assert made(lab, Role.SAMPLER).addresses[0] == address(1)
    mine = Contact(
        peer=KEYS[2].me, role=Role.SAMPLER, addresses=(address(2),), heard=time.time() - 60.0, own=True
    )
    write_durably(lab.path / "peers" / "sampler-1" / CONTACTS, wire.encode((mine,)))
    met(lab, {1: (Role.SAMPLER, 1.0), 2: (Role.SAMPLER, 0.0)})
    assert {one.rpartition("/")[2] for one in made(lab, Role.SAMPLER).addresses} == {KEYS[2].me}


def test_a_lone_peer_is_named_by_all_its_addresses_before_one_that_is_gone(tmp_path: Path) -> None:
    guest = joined(tmp_path / "guest", started(tmp_path / "lab"))
    met(guest, {1: (Role.SEED, 7200.0), 2: (Role.LEARNER, 9.0)})
    assert made(guest, Role.SAMPLER).addresses == (address(2), address(2, "10.0.0.1"), address(1))


def test_a_folder_that_knows_nobody_says_so(tmp_path: Path) -> None:
    guest = joined(tmp_path / "guest", started(tmp_path / "lab"))
    met(guest, {})
    with pytest.raises(Refusal, match="start one here first"):
        made(guest, Role.SAMPLER)


# --- how long -----------------------------------------------------------------------------------------------


def test_the_owner_lengthens_a_word_and_a_peer_that_keeps_it_renews_others(tmp_path: Path) -> None:
    lab = started(tmp_path / "lab")
    met(lab, {0: (Role.SEED, 0.0)})
    now = time.time()
    short = invite.delegate(lab.owner(), lab.name, Role.LEARNER, int(now + 5 * DAY))
    word = invite.make(lab.digest, [address(0)], Role.LEARNER, short.delegation.expires, short)
    guest = joined(tmp_path / "guest", lab, word)
    longer = invitations.renew(lab.path, word, 60 * DAY)
    assert longer is not None
    said = invite.read(longer, now)
    assert said.delegate is not None and said.delegate.seed == short.seed, "the same permission"
    old = invite.admit(short, KEYS[6].me)
    renews = renewer(bytes.fromhex(guest.spec.owner), guest.name, guest.given)
    with pytest.raises(Refused, match="ends no later"):
        renews(KEYS[6].me, old, now)
    assert invitations.renew(guest.path, longer) is None
    renewed = renews(KEYS[6].me, old, now)
    trust = Trust(lab.name, bytes.fromhex(lab.spec.owner), False, identity.verify)
    assert trust.objection(KEYS[6].me, Role.LEARNER, renewed, now + 59 * DAY) is None
    with pytest.raises(Refusal, match="ask the run's owner for a longer one"):
        invitations.renew(guest.path, word)
    assert invitations.usable_invite(word, guest.path, now + 50 * DAY), "and comes back with its first word"


def test_a_word_that_the_owner_did_not_sign_or_of_another_run_is_not_kept(tmp_path: Path) -> None:
    lab, other = started(tmp_path / "lab"), started(tmp_path / "other", private=True)
    guest = joined(tmp_path / "guest", lab)
    forged = invite.delegate(KEYS[7], lab.name, Role.LEARNER, int(time.time() + DAY))
    for word in (
        invite.make(lab.digest, [address(0)], Role.LEARNER, forged.delegation.expires, forged),
        other.invite(Role.LEARNER, [address(0)]),
        guest.invite(Role.SAMPLER, [address(0)]),
    ):
        with pytest.raises(Refusal, match="makes no members of this run"):
            invitations.renew(guest.path, word)
    with pytest.raises(InviteError, match="damaged"):
        invitations.renew(guest.path, "swarm1nonsense")
    assert guest.given(Role.LEARNER) is None
