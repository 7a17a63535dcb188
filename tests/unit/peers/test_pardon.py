"""`swarm pardon` lets samplers back that learners of a folder suspended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from private_labs import lab
from revoking import meet, word_of

from peers import cli
from peers.audits.evidence import SUSPENDED, keep_suspended, read_suspended
from peers.build.run_folder import RunFolder
from peers.commands.invites import pardon as command
from peers.runtime.membership import revocations
from swarm.core.suspensions import Suspension
from swarm.frames import wire
from swarm.membership.identity import Keyring, human_name
from swarm.storage.durable import write_checked
from swarm.types import PeerId

__all__ = ["lab"]

ADA, BOB = PeerId("12D3KooWAda"), PeerId("12D3KooWBob")
WHY = Suspension(until=1e12, strikes=3, why="two tokens are off")


def suspended(folder: Path, learner: str, *samplers: PeerId) -> Path:
    path = folder / "peers" / learner / "evidence"
    keep_suspended(path, dict.fromkeys(samplers, WHY))
    return path


def pardoned(folder: Path, peer: str) -> int:
    return cli.main(["pardon", peer, "--folder", str(folder)])


def test_a_sampler_is_let_back_by_all_learners_of_a_folder_and_the_others_are_not(tmp_path: Path) -> None:
    one, two = suspended(tmp_path, "learner-0", ADA, BOB), suspended(tmp_path, "learner-1", ADA)
    assert pardoned(tmp_path, "12D3KooWA") == 0
    assert read_suspended(one) == {BOB: WHY} and read_suspended(two) == {}


def test_a_sampler_goes_by_the_name_that_the_page_shows(tmp_path: Path) -> None:
    ada, bob = (Keyring.new().me for _ in range(2))
    path = suspended(tmp_path, "learner-0", ada, bob)
    assert pardoned(tmp_path, human_name(ada)) == 0
    assert read_suspended(path) == {bob: WHY}


def test_the_owner_s_pardon_is_in_the_list_that_all_learners_obey_and_stays_there(lab: RunFolder) -> None:
    ada, bob, eve = (Keyring.new().me for _ in range(3))
    path = suspended(lab.path, "learner-0", ada)
    before = int(time.time())
    assert pardoned(lab.path, ada) == pardoned(lab.path, bob) == 0
    assert read_suspended(path) == {} and lab.revocations.number == 2
    assert cli.main(["revoke", eve, "--folder", str(lab.path)]) == 0 == pardoned(lab.path, ada)
    found = lab.revocations
    assert found.why(eve) and not found.why(ada) and [one.peer for one in found.list.pardons] == [bob, ada]
    assert found.pardoned(ada) >= before > 0 == found.pardoned(eve)
    keys = lab.keys()
    assert keys is not None and keys.epoch == found.number == 4


def test_the_owner_pardons_by_the_name_that_is_shown_though_its_folder_has_no_learner(lab: RunFolder) -> None:
    ada = Keyring.new().me
    assert pardoned(lab.path, human_name(ada)) == 2
    meet(lab, (ada, word_of(lab)))
    assert pardoned(lab.path, human_name(ada)) == 0 and lab.revocations.pardoned(ada) > 0
    assert revocations.sentence(lab.revocations) == f"the run's owner has pardoned {ada}"


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    write_checked(tmp_path / "evidence" / SUSPENDED, wire.encode({ADA: WHY[:3]}))
    assert read_suspended(tmp_path / "evidence") == {ADA: WHY}


def test_who_was_suspended_while_the_owner_s_list_was_written_stays_so(
    lab: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = (Keyring.new().me for _ in range(2))
    path = suspended(lab.path, "learner-0", ada)
    monkeypatch.setattr(command, "_for_all", lambda *_: keep_suspended(path, {ada: WHY, bob: WHY}))
    assert pardoned(lab.path, ada) == 0
    assert read_suspended(path) == {bob: WHY}


@pytest.mark.parametrize(
    ("peer", "why"), [("12D3", "the beginning of several"), ("12D3KooWEve", "not suspended")]
)
def test_who_is_not_named_clearly_is_asked_for(
    tmp_path: Path, peer: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = suspended(tmp_path, "learner-0", ADA, BOB)
    assert pardoned(tmp_path, peer) == 2 and why in capsys.readouterr().err
    assert len(read_suspended(folder)) == 2


def test_a_folder_where_nobody_is_suspended_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        pardoned(tmp_path, "12D3") == 2
        and "no learner of this folder has suspended a sampler" in capsys.readouterr().err
    )


def test_no_name_pardons_nobody(lab: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    path = suspended(lab.path, "learner-0", ADA)
    assert pardoned(lab.path, "") == 2 and "no sampler given" in capsys.readouterr().err
    assert read_suspended(path) == {ADA: WHY} and not lab.revocations.list.pardons


@pytest.mark.parametrize("content", [b"\x80\nblake3:" + bytes(32), b"junk"], ids=["torn", "junk"])
def test_a_damaged_list_of_one_learner_does_not_hide_another_s(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, damaged = suspended(tmp_path, "learner-0", ADA), suspended(tmp_path, "learner-1", ADA) / SUSPENDED
    damaged.write_bytes(content)
    assert pardoned(tmp_path, ADA) == 0 and read_suspended(whole) == {}
    assert f"{damaged} is damaged" in capsys.readouterr().err and damaged.read_bytes() == content
    assert pardoned(tmp_path, BOB) == 2 and "not suspended" in capsys.readouterr().err


def test_the_owner_pardons_whom_a_damaged_list_does_not_name(lab: RunFolder) -> None:
    (suspended(lab.path, "learner-0", ADA) / SUSPENDED).write_bytes(b"junk")
    eve = Keyring.new().me
    assert pardoned(lab.path, eve) == 0 and lab.revocations.pardoned(eve) > 0
