"""What stands in a run folder and is damaged is never used and never ends a peer: the next best is."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from peers import cli
from peers.build import new_run, run_folder
from peers.build.joining import spec_transfer
from peers.build.local_peer import open_local_peer
from peers.build.run_folder import RunFolder
from peers.commands.policies import export
from peers.commands.runs import status
from peers.errors import CannotHere
from peers.runtime.peer_folder import PeerFolder, running
from swarm.learn.models import tiny
from swarm.net.blobs.shelves import Held, Shelf
from swarm.settings.config import Run
from swarm.storage.blocks import Blocks


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("begun")
    return new_run.create(folder / "run", Run(), tiny.make(folder / "policy", "qwen3"))


@pytest.fixture
def run(tmp_path: Path, begun: RunFolder) -> RunFolder:
    found = run_folder.read(shutil.copytree(begun.path, tmp_path / "run"))
    assert found is not None
    return found


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [b"", b"junk", bytes(68)])
def test_a_peer_whose_key_is_damaged_goes_on_with_a_new_one_and_says_so(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_local_peer(PeerFolder(tmp_path / "peer")) as local:
        before = local.keyring.me
    (tmp_path / "peer" / "key").write_bytes(damage)
    with open_local_peer(PeerFolder(tmp_path / "peer")) as local:
        assert local.keyring.me != before
    said = capsys.readouterr().err
    assert str(tmp_path / "peer" / "key.damaged") in said and "with a new key" in said
    assert (tmp_path / "peer" / "key.damaged").read_bytes() == damage


def incarnation(folder: Path) -> int:
    with open_local_peer(PeerFolder(folder)) as local:
        return local.incarnation


def test_an_incarnation_is_above_the_last_one_though_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    ahead = incarnation(tmp_path / "peer")
    monkeypatch.undo()
    assert ahead > time.time() * 1000 + 3_000_000
    assert [incarnation(tmp_path / "peer"), incarnation(tmp_path / "peer")] == [ahead + 1, ahead + 2]
    flip(tmp_path / "peer" / "incarnation", 3)
    assert 0 < incarnation(tmp_path / "peer") <= time.time() * 1000, "what is damaged does not count"


@pytest.mark.parametrize("said", ["", "?", "²", "9" * 40])
def test_a_pid_file_that_names_nobody_is_no_bug(tmp_path: Path, said: str) -> None:
    with PeerFolder(tmp_path / "peers" / "x") as folder:
        (folder.path / "pid").write_text(said)
        assert running(tmp_path) == {"x": 0}
        with pytest.raises(CannotHere, match="its pid file does not name"), PeerFolder(folder.path):
            pass
        with pytest.raises(CannotHere, match="fuser"):
            status.leave(tmp_path)


def test_a_pid_takes_the_place_of_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "peers" / "x").mkdir(parents=True)
    (tmp_path / "peers" / "x" / "pid").write_text("1234567890123")
    with PeerFolder(tmp_path / "peers" / "x"):
        assert running(tmp_path) == {"x": os.getpid()}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_model_file_that_is_damaged_is_neither_served_nor_exported(
    run: RunFolder, tmp_path: Path, name: str
) -> None:
    assert not spec_transfer.damaged_files(run)
    flip(run.model / name, 40)
    assert [*spec_transfer.damaged_files(run)] == [name]
    with pytest.raises(CannotHere, match=f"{name} is damaged"):
        export.export(run.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["/proc/x", "a-file", "a-file/x"])
def test_a_place_that_nothing_can_be_exported_to_is_refused(
    run: RunFolder, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a-file").write_text("")
    assert cli.main(["export", str(tmp_path / target), "--folder", str(run.path)]) == 2
    said = capsys.readouterr().err
    assert f"cannot write {tmp_path / target}: " in said and "name another place" in said


@pytest.mark.parametrize("began", [False, True])
def test_an_export_of_a_folder_where_nothing_was_trained_says_so(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], began: bool
) -> None:
    if began:
        (run.path / "peers" / "seed").mkdir(parents=True)
        (run.path / "peers" / "seed" / "journal.jsonl").touch()
    assert cli.main(["export", str(tmp_path / "out"), "--folder", str(run.path)]) == 0
    said = capsys.readouterr().err
    assert "nothing that was trained is here" in said and "the model that the run began with" in said
    assert ("its folder peers/ has no journal" in said) is not began


def test_a_large_file_is_checked_as_a_small_one_is(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_transfer, "LARGEST", 10)
    flip(run.model / "tokenizer.json", 40)
    assert [*spec_transfer.damaged_files(run)] == ["tokenizer.json"]


def test_what_peers_kept_is_exported_though_their_keys_are_damaged(run: RunFolder) -> None:
    peer = run.path / "peers" / "sampler-1"
    (peer / "releases").mkdir(parents=True)
    (peer / "key").write_bytes(b"")
    assert export.newest_weights(run.path, run)[0] == 0


def test_a_release_that_a_running_peer_drops_while_others_are_read_is_left_out(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    releases = run.path / "peers" / "learner-1" / "releases"
    releases.mkdir(parents=True)
    (releases / "dropped").symlink_to(releases / "gone")  # listed, and not there when it is read
    assert export.newest_weights(run.path, run)[0] == 0
    assert not capsys.readouterr().err


def test_a_mark_beside_a_release_whose_number_has_changed_is_not_believed(tmp_path: Path) -> None:
    blocks = Blocks.of(b"weights" * 1000)
    shelf = Shelf(tmp_path, lambda _: None)
    shelf.put(Held.of(3, blocks), blocks, True)
    del shelf
    (mark,) = tmp_path.glob("*.release")
    whole = mark.read_bytes()
    for place in range(len(whole)):
        mark.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        (tmp_path / blocks.root).write_bytes(blocks.whole)
        assert [held.version for held in Shelf(tmp_path, lambda _: None).whole()] in ([], [3])


def test_a_shelf_whose_folder_cannot_be_had_holds_in_memory_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    shelf = Shelf(tmp_path / "file" / "blobs", lambda _: None)
    assert "takes no more" in (shelf.refusal() or "")
    blocks = Blocks.of(b"weights")
    shelf.put(Held.of(1, blocks), blocks, True)
    assert shelf.is_whole(blocks.root) and shelf.get(blocks.root) == b"weights"
