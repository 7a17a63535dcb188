"""Keys, ids and names: the same as libp2p's, the same for everybody."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import base58
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarm.membership import identity
from swarm.membership.identity import (
    DamagedKey,
    IdentityError,
    Keyring,
    human_name,
    open_key,
    peer_id,
    public_key,
    verify,
)
from swarm.types import PeerId

FIXED = Keyring(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


def test_a_key_file_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    made = open_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert open_key(path).me == made.me
    assert os.listdir(path.parent) == ["key"], "nothing is left lying around"


def test_the_key_file_is_the_protobuf_that_p2pd_reads(tmp_path: Path) -> None:
    """message PrivateKey { required KeyType Type = 1; required bytes Data = 2; } with Ed25519 = 1 and Data =
    seed + public."""
    from hivemind.proto import crypto_pb2

    made = open_key(tmp_path / "key")
    parsed = crypto_pb2.PrivateKey.FromString((tmp_path / "key").read_bytes())
    assert parsed.key_type == crypto_pb2.KeyType.Ed25519
    seed, public = parsed.data[:32], parsed.data[32:]
    assert Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() == public == made.public


def test_an_id_is_libp2ps_identity_multihash_of_the_public_keys_protobuf() -> None:
    from hivemind.p2p import PeerID
    from hivemind.proto import crypto_pb2

    encoded = crypto_pb2.PublicKey(key_type=crypto_pb2.KeyType.Ed25519, data=FIXED.public).SerializeToString()
    multihash = bytes([0x00, len(encoded)]) + encoded
    assert FIXED.me == PeerID(multihash).to_base58() == base58.b58encode(multihash).decode()
    assert FIXED.me.startswith("12D3Koo")


def test_an_id_holds_its_public_key() -> None:
    assert public_key(FIXED.me) == FIXED.public and peer_id(FIXED.public) == FIXED.me


@pytest.mark.parametrize(
    "peer",
    [
        "",
        "x",
        "0OIl" * 13,
        "Qm" + "a" * 44,
        "é" * 52,
        FIXED.me + " ",
        FIXED.me + "\n",
        " " + FIXED.me,
        "1" + FIXED.me,
        FIXED.me[:-1],
        "z" * 52,
        base58.b58encode(b"\x12\x20" + hashlib.sha256(b"").digest()).decode(),
    ],
)
def test_what_is_no_ed25519_id_has_no_key(peer: str) -> None:
    assert public_key(PeerId(peer)) is None
    assert not FIXED.verify(PeerId(peer), b"x", FIXED.sign(b"x"))


def test_an_id_is_decoded_once_however_much_its_peer_says(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, other = list[str](), Keyring(Ed25519PrivateKey.generate())

    def b58decode(text: str) -> bytes:
        decoded.append(text)
        return base58.b58decode(text)

    monkeypatch.setattr(identity, "base58", SimpleNamespace(b58decode=b58decode, b58encode=base58.b58encode))
    assert all(FIXED.verify(other.me, data, other.sign(data)) for data in (b"a", b"b", b"c"))
    assert not FIXED.verify(other.me, b"a", other.sign(b"b"))
    assert decoded == [other.me]


def test_an_id_of_a_megabyte_is_refused_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "base58", None)
    assert public_key(PeerId("2" * (1 << 20))) is None


def test_a_signature_is_good_for_its_key_and_its_data_alone() -> None:
    other = Keyring(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    signature = FIXED.sign(b"data")
    assert len(signature) == 64 and other.verify(FIXED.me, b"data", signature)
    assert not other.verify(FIXED.me, b"date", signature)
    assert not other.verify(other.me, b"data", signature)
    assert not other.verify(FIXED.me, b"data", signature[:-1])
    assert not verify(b"short", b"data", signature)


def test_a_key_that_others_can_read_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "key"
    open_key(path)
    path.chmod(0o640)
    with pytest.raises(IdentityError, match=f"chmod 600 {path}"):
        open_key(path)


def spoil_header(data: bytes) -> bytes:
    return b"\x08\x00" + data[2:]


def spoil_public(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("spoil", [spoil_header, spoil_public, lambda data: data[:-1], lambda data: b""])
def test_a_damaged_key_is_never_used(tmp_path: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "key"
    open_key(path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DamagedKey, match=str(path)):
        open_key(path)


def test_a_folder_that_cannot_hold_a_key_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="cannot use the key file"):
        open_key(tmp_path / "file" / "key")


def test_a_name_is_three_words_and_never_changes() -> None:
    assert human_name(FIXED.me) == human_name(peer_id(FIXED.public))
    assert human_name(PeerId("12D3KooWA")) == "patient-azure-wren"


def test_names_have_no_word_twice_and_seldom_collide() -> None:
    lists = (identity._MANNERS, identity._COLOURS, identity._ANIMALS)
    assert all(len(set(words)) == len(words) for words in lists)
    names = {human_name(PeerId(str(k))) for k in range(2000)}
    assert len(names) > 1980
