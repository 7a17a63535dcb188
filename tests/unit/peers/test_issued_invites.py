"""`swarm invite --list`, `--note` and `--qr`: what a folder knows of the words that were made in it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from invited_peers import KEYS, address, joined, met, started
from msgspec.structs import replace

from peers import cli
from peers.build import assembly
from peers.build.local_peer import open_local_peer
from peers.runtime.membership.contacts import CONTACTS, Contact
from peers.runtime.peer_folder import PeerFolder
from swarm.frames import wire
from swarm.limits import TEXT_LIMIT
from swarm.membership import invite
from swarm.membership.identity import open_key
from swarm.protocol import Role
from swarm.storage.durable import write_durably


def folder(path: Path) -> Path:
    run = started(path)
    met(run, {0: (Role.SEED, 0.0)})
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["invite", *words]) == 0
    return capsys.readouterr().out


def test_a_word_is_listed_with_its_note_its_role_and_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(folder(tmp_path))
    ended = said(
        capsys, "--folder", path, "--role", "learner", "--expires", "7d", "--note", "for Ada"
    ).strip()
    endless = said(capsys, "--folder", path).strip()
    listed = json.loads(said(capsys, "--folder", path, "--list", "--json"))
    assert [(each["invite"], each["role"], each["note"]) for each in listed] == [
        (ended, "learner", "for Ada"),
        (endless, "sampler", ""),
    ]
    assert listed[0]["expires"] == invite.read(ended, 0.0).expires and listed[1]["expires"] is None
    table = said(capsys, "--folder", path, "--list")
    assert "for Ada" in table and f"…{ended[-8:]}" in table and "never" in table
    assert ended not in table and endless not in table, "who looks over the shoulder sees no secret"


def test_the_list_is_the_makers_alone_and_holds_a_word_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path)
    for note in ("first", "again"):
        said(capsys, "--folder", str(path), "--note", note)
    assert (path / "invites" / "made").stat().st_mode & 0o077 == 0
    (listed,) = json.loads(said(capsys, "--folder", str(path), "--list", "--json"))
    assert listed["note"] == "again", "a public run's word for samplers is the same each time"


def test_the_words_of_a_start_are_their_owners_alone(tmp_path: Path) -> None:
    run = started(tmp_path)
    with open_local_peer(run.peer_folder(Role.SEED)) as local:
        assembly._print_invites(local, run, [address(0)])
    kept = [path for role in Role if (path := run.invite_path(role)).exists()]
    assert Role.LEARNER in {path.name for path in kept}
    assert not [path.name for path in kept if path.stat().st_mode & 0o077]


def test_a_note_that_is_no_utf_8_or_a_book_is_kept_as_far_as_it_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(folder(tmp_path))
    word = said(capsys, "--folder", path, "--role", "learner", "--note", "for Ren\udce9").strip()
    (listed,) = json.loads(said(capsys, "--folder", path, "--list", "--json"))
    assert (listed["invite"], listed["note"]) == (word, "for Ren?")
    longer = said(capsys, "--folder", path, "--renew", word, "--note", "\udce9" * 5000).strip()
    assert json.loads(said(capsys, "--folder", path, "--list", "--json"))[-1] | {"made": 0.0} == {
        "invite": longer,
        "role": "learner",
        "made": 0.0,
        "expires": invite.read(longer, 0.0).expires,
        "note": "?" * TEXT_LIMIT,
        "revoked": False,
        "uses_left": None,
    }


@pytest.mark.parametrize("line", [b'{"word": "swarm1ab\n', b'{"word": "\xff"}\n'])
def test_a_line_that_a_crash_cut_off_or_a_disk_changed_costs_that_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    path = folder(tmp_path)
    said(capsys, "--folder", str(path), "--note", "whole")
    with (path / "invites" / "made").open("ab") as made:
        made.write(line)
    said(capsys, "--folder", str(path), "--role", "observer")
    listed = json.loads(said(capsys, "--folder", str(path), "--list", "--json"))
    assert [each["role"] for each in listed] == ["sampler", "observer"]


def test_words_by_which_a_folder_was_invited_are_listed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = started(tmp_path / "lab")
    word = lab.invite(Role.LEARNER, [address(0)])
    guest = joined(tmp_path / "guest", lab, word)
    (listed,) = json.loads(said(capsys, "--folder", str(guest.path), "--list", "--json"))
    assert (listed["invite"], listed["note"]) == (word, "by which this folder was invited")


def test_a_word_that_cannot_be_listed_is_printed_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path)
    (path / "invites" / "made").mkdir(parents=True)
    assert cli.main(["invite", "--folder", str(path)]) == 0
    printed = capsys.readouterr()
    assert invite.read(printed.out, 0.0).role is Role.SAMPLER
    assert "not on this folder's list" in printed.err


def test_a_qr_code_stands_beside_the_word_and_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["invite", "--folder", str(folder(tmp_path)), "--qr"]) == 0
    printed = capsys.readouterr()
    word = printed.out.strip()
    code = invite.qr_code(word, error="l")
    assert code.mode == "alphanumeric", "a third fewer bits than small letters take"
    lines = [line for line in printed.err.splitlines() if any(half in line for half in "▀▄█")]
    assert len(lines) >= code.symbol_size()[1] // 2
    assert invite.read(word.upper(), 0.0) == invite.read(word, 0.0), "a phone reads capitals"


def test_a_word_to_which_nobody_answers_is_printed_with_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The peers of a run that is finished were all heard a minute ago, and have left since."""
    run = started(tmp_path)
    mine = open_key(run.path / "peers" / "learner-1" / "key").me
    heard = time.time() - 60.0
    here = Contact(peer=mine, role=Role.LEARNER, addresses=(f"/ip4/192.0.2.1/tcp/1/p2p/{mine}",), heard=heard)
    there = replace(here, peer=KEYS[0].me, addresses=(address(0),))
    command = ["invite", "--folder", str(tmp_path)]
    for known, said in (
        ((here,), "no peer answers this invite now, as far as this folder knows: start a peer"),
        (
            (here, there),
            "no peer of this folder runs, and the last heartbeat of another was",
        ),
    ):
        write_durably(run.path / "peers" / "learner-1" / CONTACTS, wire.encode(known))
        assert cli.main(command) == 0
        assert said in capsys.readouterr().err
    with PeerFolder(run.path / "peers" / "learner-1"):
        assert cli.main(command) == 0
    assert capsys.readouterr().err == "", "a peer of the run is here"
