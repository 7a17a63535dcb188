"""`swarm identity`: a key goes to another folder under a passphrase, and nothing else opens or overwrites
it."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

import pytest
from private_labs import lab

from peers import cli
from peers.build import new_run, run_folder
from peers.build.run_folder import RunFolder
from swarm.frames import wire
from swarm.learn.models import tiny
from swarm.membership import sealed_identity
from swarm.membership.identity import IdentityError, Keyring, open_key
from swarm.membership.sealed_identity import Identity
from swarm.settings.config import Run
from swarm.types import Digest

__all__ = ["lab"]
SECRET = "correct horse"


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_identity, "COST", 4)


def identity(*words: str | Path, passphrase: str = SECRET, at: Path) -> int:
    secret = at / "passphrase"
    secret.write_text(f"{passphrase}\nanother line")
    return cli.main(["identity", *map(str, words), "--passphrase-file", str(secret)])


def peer(lab: RunFolder, name: str = "learner-1") -> Keyring:
    folder = lab.path / "peers" / name
    folder.mkdir(parents=True)
    (folder / "membership").write_bytes(b"renewed")
    return open_key(folder / "key")


def test_a_peer_is_the_same_in_the_other_folder(lab: RunFolder, tmp_path: Path) -> None:
    mine, file, there = peer(lab), tmp_path / "exported", tmp_path / "there"
    assert identity("export", file, "--folder", lab.path, at=tmp_path) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert (lab.path / "peers/learner-1/key").read_bytes()[4:36] not in file.read_bytes()
    assert identity("import", file, "--folder", there, at=tmp_path) == 0
    assert open_key(there / "peers/learner-1/key").me == mine.me
    assert (there / "peers/learner-1/membership").read_bytes() == b"renewed"


def test_the_owners_key_goes_the_same_way(lab: RunFolder, tmp_path: Path) -> None:
    file, there = tmp_path / "exported", tmp_path / "there"
    run_folder.keep_spec(there, wire.encode(lab.spec))
    assert identity("export", file, "--peer", "owner", "--folder", lab.path, at=tmp_path) == 0
    assert identity("import", file, "--folder", there, at=tmp_path) == 0
    assert (there / "owner.key").read_bytes() == (lab.path / "owner.key").read_bytes()


def test_nothing_is_overwritten(lab: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer(lab)
    file = tmp_path / "exported"
    file.write_bytes(b"mine")
    assert identity("export", file, "--folder", lab.path, at=tmp_path) == 2 and file.read_bytes() == b"mine"
    assert "is there already" in capsys.readouterr().err
    file.unlink()
    assert identity("export", file, "--folder", lab.path, at=tmp_path) == 0
    before = (lab.path / "peers/learner-1/key").read_bytes()
    assert identity("import", file, "--folder", lab.path, at=tmp_path) == 2
    assert (lab.path / "peers/learner-1/key").read_bytes() == before


def test_another_passphrase_or_a_damaged_file_opens_nothing(
    lab: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer(lab)
    file, there = tmp_path / "exported", tmp_path / "there"
    assert identity("export", file, "--folder", lab.path, at=tmp_path) == 0
    assert identity("import", file, "--folder", there, passphrase="correct house", at=tmp_path) == 3
    assert "the passphrase is another one, or the file is damaged" in capsys.readouterr().err
    whole = file.read_bytes()
    for at in range(len(whole)):
        if at == len(sealed_identity.MARK):
            continue  # the cost: as many as it says
        broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(IdentityError):
            sealed_identity.opened(broken, SECRET)
    for short in (b"", sealed_identity.MARK, whole[:-1], sealed_identity.MARK + b"\xff" * 60):
        with pytest.raises(IdentityError):
            sealed_identity.opened(short, SECRET)
    assert not there.exists()


def made(lab: RunFolder, at: Path, **what: Any) -> Path:
    """A file that somebody made who knows the passphrase."""
    open_key(at / "key")
    said = {"name": "learner-1", "run": lab.digest, "key": (at / "key").read_bytes()} | what
    (at / "made").write_bytes(sealed_identity.sealed(Identity(**said), SECRET))
    return at / "made"


@pytest.mark.parametrize(
    "what",
    [
        {"run": "../../.."},
        {"run": "AB" * 32},
        {"name": ".."},
        {"name": "a\0b"},
        {"name": "x" * 300},
        {"name": "learner-1\n"},
        {"name": ""},
        {"key": b"junk"},
        {"key": b"\x08\x01\x12\x40" + bytes(64)},
    ],
    ids=["a path as run", "capitals", "a path as name", "nul", "long", "line", "no name", "junk", "halves"],
)
def test_what_somebody_made_is_checked_before_anything_is_written(
    lab: RunFolder, tmp_path: Path, what: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state/of/this/user"))
    file, there = made(lab, tmp_path, **what), tmp_path / "there"
    before = sorted(tmp_path.rglob("*"))
    assert identity("import", file, "--folder", there, at=tmp_path) == 3
    assert identity("import", file, at=tmp_path) == 3
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "passphrase"])
    assert identity("import", made(lab, tmp_path), "--folder", there, at=tmp_path) == 0


@pytest.mark.parametrize("cost", [0, 21, 255])
def test_a_cost_that_nobody_writes_is_refused(
    lab: RunFolder, tmp_path: Path, cost: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = made(lab, tmp_path)
    content = bytearray(file.read_bytes())
    content[len(sealed_identity.MARK)] = cost
    file.write_bytes(content)
    assert identity("import", file, "--folder", tmp_path / "there", at=tmp_path) == 3
    assert "is not a key" in capsys.readouterr().err


def test_the_owners_key_is_the_owners_alone(
    lab: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = run_folder.keep_spec(tmp_path / "there", wire.encode(lab.spec)).path
    mine, owner = tmp_path / "mine", tmp_path / "owner"
    mine.mkdir(), owner.mkdir()
    for file, peer, why in (
        (made(lab, mine), "owner", "holds the key of learner-1, not of owner"),
        (made(lab, owner, name="owner"), "learner-1", "holds the key of owner, not of learner-1"),
        (made(lab, owner, name="owner"), "owner", "is not that of the owner of run"),
    ):
        assert identity("import", file, "--folder", there, "--peer", peer, at=tmp_path) == 2
        assert why in capsys.readouterr().err
    assert not (there / "owner.key").exists() and not (there / "peers").exists()
    right = made(lab, owner, name="owner", key=(lab.path / "owner.key").read_bytes())
    assert identity("import", right, "--folder", there, at=tmp_path) == 0


def test_a_run_that_is_begun_later_is_nobody_elses(
    lab: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file, there = made(lab, tmp_path, name="owner"), tmp_path / "there"
    assert identity("import", file, "--folder", there, at=tmp_path) == 2
    said = capsys.readouterr().err
    assert f"`swarm join WORD --folder {there}`" in said and "no run yet" in said
    assert identity("import", file, at=tmp_path) == 2
    assert "`swarm join WORD`" in capsys.readouterr().err
    assert not there.exists() and not (tmp_path / "state").exists()
    policy = tiny.make(tmp_path / "policy", "qwen3")
    assert new_run.create(there, Run(), policy).spec.owner != open_key(tmp_path / "key").public.hex()


def test_who_gives_no_passphrase_is_told_so(
    lab: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_: str) -> str:
        raise EOFError  # Ctrl-D

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", ended)
    words = ["identity", "export", str(tmp_path / "one"), "--peer", "owner", "--folder", str(lab.path)]
    assert cli.main(words) == 2 and "no passphrase was given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--peer", "learner-7"), "--peer names learner-1 or learner-2 or owner"),
        ((), "has 2 peers"),
        (("--peer", "../other"), "is not the name"),
    ],
)
def test_a_peer_that_is_not_named_is_asked_for(
    lab: RunFolder, tmp_path: Path, words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    peer(lab), peer(lab, "learner-2")
    assert identity("export", tmp_path / "exported", *words, "--folder", lab.path, at=tmp_path) == 2
    assert why in capsys.readouterr().err


def test_without_a_terminal_or_with_a_short_passphrase_nothing_is_exported(
    lab: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer(lab)
    assert identity("export", tmp_path / "one", "--folder", lab.path, passphrase="short", at=tmp_path) == 2
    assert "8 letters" in capsys.readouterr().err
    assert not sys.stdin.isatty()
    assert cli.main(["identity", "export", str(tmp_path / "one"), "--folder", str(lab.path)]) == 2
    assert "--passphrase-file" in capsys.readouterr().err and not (tmp_path / "one").exists()


def test_a_passphrase_that_cannot_be_read_is_told_once_and_with_what_to_do(
    lab: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer(lab)
    (latin := tmp_path / "latin").write_bytes(b"passphr\xe4se\n")
    for file, why in ((tmp_path / "gone", "No such file or directory"), (latin, "it is no utf-8")):
        words = ["export", tmp_path / "one", "--folder", lab.path, "--passphrase-file", file]
        assert cli.main(["identity", *map(str, words)]) == 2
        said = f"swarm: the passphrase cannot be read from {file}: {why}; name another file\n"
        assert capsys.readouterr().err == said


def test_a_key_of_another_run_is_not_brought_here(lab: RunFolder, tmp_path: Path) -> None:
    file, key = tmp_path / "exported", open_key(tmp_path / "key")
    other = Identity(name="learner-1", run=Digest("ab" * 32), key=(tmp_path / "key").read_bytes())
    file.write_bytes(sealed_identity.sealed(other, SECRET))
    assert identity("import", file, "--folder", lab.path, at=tmp_path) == 2
    assert sealed_identity.opened(file.read_bytes(), SECRET).key == (tmp_path / "key").read_bytes() and key.me
