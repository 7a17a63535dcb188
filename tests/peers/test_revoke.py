"""`swarm revoke`: whom it finds, what it writes, what this folder makes of it."""

from __future__ import annotations

import json
import time

import pytest
from test_membership_renewal import lab

from peers import cli
from peers.build import invitations, made_words
from peers.build.run_folder import RunFolder
from peers.errors import Refusal
from peers.runtime import members, run_keys
from peers.runtime.contacts import CONTACTS, Contact
from peers.runtime.members import Met
from swarm import invite, wire
from swarm.durable import write_durably
from swarm.identity import Keyring, human_name
from swarm.protocol import Role
from swarm.types import PeerId

ADA, BOB, EVE = (Keyring.new() for _ in range(3))
__all__ = ["lab"]


def revoke(lab: RunFolder, who: str) -> int:
    return cli.main(["revoke", who, "--folder", str(lab.path)])


def word_of(lab: RunFolder, role: Role = Role.LEARNER) -> invite.Invite:
    return invite.read(lab.invite_path(role).read_text(), time.time())


def objection(lab: RunFolder, who: Keyring, word: invite.Invite) -> str | None:
    return lab.trust.objection(who.me, Role.LEARNER, word.admit(who.me), time.time())


def meet(lab: RunFolder, *met: tuple[PeerId, invite.Invite]) -> None:
    """As the seed of the folder writes down whom it hears."""
    found = []
    for peer, word in met:
        assert word.delegate is not None
        key = word.delegate.delegation.key
        found.append(Met(peer=peer, role=Role.LEARNER, heard=time.time(), invite=key))
    folder = lab.path / "peers" / "seed"
    folder.mkdir(parents=True)
    write_durably(folder / members.MEMBERS, wire.encode(tuple(found)))


def test_a_peer_is_out_by_its_name_and_its_word_makes_no_members_but_others_by_it_stay(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    word = word_of(lab)
    meet(lab, (ADA.me, word), (BOB.me, word))
    assert revoke(lab, human_name(ADA.me)) == 0
    said = capsys.readouterr()
    assert (
        f"{human_name(ADA.me)} ({ADA.me}) is revoked" in said.out
        and "1 others that came by it stay" in said.out
    )
    assert "no peer runs in" in said.err
    assert "revoked" in (objection(lab, ADA, word) or "") and objection(lab, BOB, word) is None
    assert "invite" in (objection(lab, EVE, word) or ""), "the revoked peer under another key"
    fresh = word_of(lab)
    assert fresh != word and objection(lab, EVE, fresh) is None, (
        "this folder's own peers come in by a new word"
    )
    assert revoke(lab, ADA.me) == 0 and lab.revocations.number == 1, "it is revoked already"
    keys, file = lab.keys(), lab.path / run_keys.KEYS
    assert keys is not None and keys.epoch == 1 and keys.of(0) == bytes(32) != keys.of(1)
    assert run_keys.digest_of(keys.all) == lab.revocations.list.keys and file.stat().st_mode & 0o777 == 0o600


def test_an_invite_is_out_by_the_end_of_its_word_and_the_list_of_words_says_so(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["invite", "--role", "learner", "--note", "Eve", "--folder", str(lab.path)]) == 0
    text = capsys.readouterr().out.strip()
    word = invite.read(text, time.time())
    assert objection(lab, EVE, word) is None
    assert revoke(lab, f"…{text[-8:]}") == 0
    assert "invite" in (objection(lab, EVE, word) or "") and objection(lab, ADA, word_of(lab)) is None
    capsys.readouterr()
    assert cli.main(["invite", "--list", "--json", "--folder", str(lab.path)]) == 0
    assert {one["note"]: one["revoked"] for one in json.loads(capsys.readouterr().out)}["Eve"] is True
    assert cli.main(["invite", "--list", "--folder", str(lab.path)]) == 0
    assert "revoked" in capsys.readouterr().out
    with pytest.raises(Refusal, match="revoked by the run's owner"):
        invitations.renew(lab.path, text)


def test_a_folder_that_keeps_a_revoked_word_makes_no_words_of_it(lab: RunFolder) -> None:
    text = lab.invite_path(Role.LEARNER).read_text()
    assert lab.given(Role.LEARNER) is not None
    revoke(lab, text)
    write_durably(lab.invite_path(Role.LEARNER), text.encode())  # as another machine has it
    assert lab.given(Role.LEARNER) is None
    assert [one.note for one in made_words.words(lab)] == ["printed by `swarm start`"]


def test_words_name_no_revoked_peer(lab: RunFolder) -> None:
    folder = lab.path / "peers" / "seed"
    folder.mkdir(parents=True)
    met = [
        Contact(
            peer=one.me, role=Role.SEED, addresses=(f"/ip4/192.0.2.9/tcp/9/p2p/{one.me}",), heard=time.time()
        )
        for one in (ADA, BOB)
    ]
    write_durably(folder / CONTACTS, wire.encode(tuple(met)))
    revoke(lab, ADA.me)
    named = str(invite.read(invitations.invite(lab.path, Role.LEARNER), time.time()).addresses)
    assert BOB.me in named and ADA.me not in named


def test_without_all_keys_of_a_private_run_nothing_is_revoked(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.path / run_keys.KEYS).write_bytes(b"torn")
    assert revoke(lab, ADA.me) == 3 and "start a peer here" in capsys.readouterr().err
    assert lab.revocations.number == 0


def test_who_is_nobody_and_who_may_not_are_told_so(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert revoke(lab, "brisk-umber-otter") == 2
    assert (
        "no peer of this run that was heard here has this name: 'brisk-umber-otter'"
        in capsys.readouterr().err
    )
    stranger = invite.make(lab.digest, [f"/ip4/192.0.2.7/tcp/1/p2p/{ADA.me}"])
    assert revoke(lab, stranger) == 2
    (lab.path / "owner.key").unlink()
    assert revoke(lab, ADA.me) == 5
    said = capsys.readouterr().err
    assert "no owner.key" in said and "can invite" not in said and lab.revocations.number == 0
