"""`swarm revoke`: whom it finds, what it writes, what this folder makes of it."""

from __future__ import annotations

import asyncio
import json
import time
from random import Random
from threading import Thread
from typing import Any

import pytest
from nouns import beat
from private_labs import lab
from revoking import key_of, meet, revoke, word_of
from still_host import still_host

from peers import cli
from peers.build.joining import invitations, issued_invites
from peers.build.run_folder import RunFolder
from peers.commands.invites import revoke as module
from peers.commands.invites.pardon import pardon
from peers.errors import Refusal
from peers.runtime.membership import revocations, run_keys
from peers.runtime.membership.contacts import CONTACTS, Contact
from peers.runtime.membership.members import keep_forever
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.membership import invite
from swarm.membership.identity import Keyring, human_name
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.durable import write_durably

ADA, BOB, EVE = (Keyring.new() for _ in range(3))
__all__ = ["lab"]


def objection(lab: RunFolder, who: Keyring, word: invite.Invite) -> str | None:
    return lab.trust.objection(who.me, Role.LEARNER, word.admit(who.me), time.time())


def test_a_peer_is_out_by_its_name_and_its_word_makes_no_members_but_others_by_it_stay(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    word = word_of(lab)
    meet(lab, (ADA.me, word), (BOB.me, word))
    assert revoke(lab, human_name(ADA.me)) == 0
    said = capsys.readouterr()
    assert (
        f"{human_name(ADA.me)} ({ADA.me}) is revoked" in said.out
        and "1 other that came by it stays" in said.out
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


def test_who_is_revoked_again_is_said_to_have_been_and_the_word_is_not_printed(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    word, text = word_of(lab), lab.invite_path(Role.LEARNER).read_text()
    meet(lab, (ADA.me, word), (BOB.me, word))
    assert revoke(lab, ADA.me) == 0
    capsys.readouterr()

    def says(who: str, number: int) -> str:
        assert revoke(lab, who) == 0 and lab.revocations.number == number
        said = capsys.readouterr()
        assert text not in said.out + said.err and ("list" in said.err) is (number > at[0])
        at[0] = number
        return said.out.strip()

    at, invite_ = [1], f"the invite with the key {key_of(word).hex()[:16]} was revoked before"
    assert says(ADA.me, 1) == f"{human_name(ADA.me)} ({ADA.me}) was revoked before: nothing changes"
    assert says(text, 2) == f"{invite_}; those who came by it and had stayed are out now, too"
    assert says(text, 2) == f"{invite_}: nothing changes"
    assert says(BOB.me, 3) == f"{human_name(BOB.me)} ({BOB.me}) is revoked"
    assert len(lab.revocations.list.entries) == 4


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
    assert [one.note for one in issued_invites.issued_invites(lab)] == ["printed by `swarm start`"]


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


@pytest.mark.parametrize("torn", [b"", b"torn"])
def test_over_a_list_that_cannot_be_read_nobody_is_revoked_or_pardoned(
    lab: RunFolder, torn: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert revoke(lab, ADA.me) == 0
    (lab.path / revocations.REVOKED).write_bytes(torn)
    for command in ("revoke", "pardon"):
        assert cli.main([command, BOB.me, "--folder", str(lab.path)]) == 3
        said = capsys.readouterr().err
        assert "revoked is damaged" in said and "takes the list of others" in said
        assert (lab.path / revocations.REVOKED).read_bytes() == torn


def test_of_revocations_and_pardons_at_one_time_none_is_lost(
    lab: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = module.sealed

    def slow(*args: Any, **more: Any) -> bytes:
        made = sign(*args, **more)
        time.sleep(0.2)
        return made

    monkeypatch.setattr(module, "sealed", slow)
    out = [Keyring.new().me for _ in range(3)]
    calls = [Thread(target=module.main, args=(lab.path, peer)) for peer in out]
    calls.append(Thread(target=pardon, args=(lab.path, ADA.me)))
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    keys = lab.keys()
    assert {*lab.revocations.peers} == {*out} and lab.revocations.pardoned(ADA.me)
    assert keys is not None and keys.epoch == lab.revocations.number == 4
    assert run_keys.digest_of(keys.all) == lab.revocations.list.keys


def heard(lab: RunFolder, *members: Membership) -> None:
    """As the seed of the folder hears them, and writes them down."""

    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            seed = still_host(network, "seed", Role.SEED, private=True, trust=lab.trust)
            for one in members:
                assert seed.trust.objection(one.peer, Role.LEARNER, one, time.time()) is None
                told = beat(name=one.peer, role=Role.LEARNER, at=seed.now())
                seed.roster.receive(one.peer, told, seed.now())
            writing = asyncio.create_task(keep_forever(seed, seed.disk, lab.path / "peers" / "seed"))
            await seed.ports.clock.sleep(1)
            writing.cancel()

    run(scene())


def test_who_says_to_have_come_by_another_one_s_word_ends_its_own(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    word = word_of(lab)
    assert cli.main(["invite", "--role", "learner", "--note", "Bob", "--folder", str(lab.path)]) == 0
    text = capsys.readouterr().out.strip()
    bobs = invite.read(text, time.time())
    assert word.delegate is not None
    heard(lab, invite.admit(word.delegate, EVE.me, key_of(bobs)))
    assert revoke(lab, human_name(EVE.me)) == 0
    assert objection(lab, BOB, bobs) is None, "who has not come yet"
    assert "invite" in (objection(lab, ADA, word) or ""), "Eve under another key"
    assert f"joined first with the invite …{text[-8:]} (Bob): revoke that" in (capsys.readouterr().err)


def test_who_stays_is_who_came_by_the_word_before_a_member_renewed_it(lab: RunFolder) -> None:
    word, longer = word_of(lab), word_of_another_end(lab)
    assert word.delegate is not None
    ada = invite.admit(longer, ADA.me, key_of(word))
    heard(lab, ada, invite.admit(word.delegate, EVE.me))
    assert revoke(lab, EVE.me) == 0
    assert lab.trust.objection(ADA.me, Role.LEARNER, ada, time.time()) is None


def word_of_another_end(lab: RunFolder) -> invite.Delegate:
    return invite.delegate(lab.owner(), lab.name, Role.LEARNER, int(time.time()) + 90 * 86400)


def test_of_a_peer_whom_nobody_here_heard_the_word_is_said_to_be_open(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert revoke(lab, ADA.me) == 0
        said = capsys.readouterr().err
        assert f"{human_name(ADA.me)}'s invite is not known here" in said and "revoke the invite too" in said
    meet(lab, (BOB.me, word_of(lab)))
    assert revoke(lab, BOB.me) == 0 and "revoke the invite too" not in capsys.readouterr().err


def test_those_for_whom_a_list_has_no_room_are_counted(
    lab: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "REVOKED", 2)
    word = word_of(lab)
    meet(lab, *((Keyring.new().me, word) for _ in range(4)), (ADA.me, word))
    assert revoke(lab, ADA.me) == 0
    said = capsys.readouterr()
    assert "2 others that came by it stay" in said.out
    assert "2 of the 4 other peers of the same invite are revoked too" in said.err


def test_who_is_nobody_and_who_may_not_are_told_so(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert revoke(lab, "brisk-umber-otter") == 2
    assert "no known peer of this run has this name: 'brisk-umber-otter'" in capsys.readouterr().err
    stranger = invite.make(lab.digest, [f"/ip4/192.0.2.7/tcp/1/p2p/{ADA.me}"])
    assert revoke(lab, stranger) == 2
    (lab.path / "owner.key").unlink()
    assert revoke(lab, ADA.me) == 5
    said = capsys.readouterr().err
    assert "no owner.key" in said and "can invite" not in said and lab.revocations.number == 0
