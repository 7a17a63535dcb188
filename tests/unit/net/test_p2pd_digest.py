"""p2pd is started where it is the published program, and nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
import platform
from pathlib import Path

import pytest

pytest.importorskip("hivemind", exc_type=ImportError)

from swarm.membership.identity import open_key
from swarm.net.libp2p import p2pd
from swarm.net.libp2p.p2pd import Daemon
from swarm.net.ports import NetError
from swarm.settings.config import Listen


def test_the_installed_p2pd_is_the_published_one() -> None:
    p2pd.check_published(p2pd.program())


def test_another_program_is_not_started_and_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "p2pd"
    other.write_text("#!/bin/sh")
    monkeypatch.setattr(p2pd, "program", lambda: other)
    monkeypatch.setattr(p2pd, "PUBLISHED", {(platform.system(), platform.machine()): "0" * 64})
    key = tmp_path / "key"
    with pytest.raises(NetError, match=r"is not the p2pd of hivemind .* install hivemind anew"):
        asyncio.run(Daemon.launch(key, open_key(key).me, Listen(host="127.0.0.1"), 1))


def test_a_p2pd_of_ones_own_is_named_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "p2pd"
    own.write_bytes(b"mine")
    monkeypatch.setenv(p2pd.OWN, hashlib.sha256(b"mine").hexdigest())
    p2pd.check_published(own)
    monkeypatch.setenv(p2pd.OWN, "0" * 64)
    with pytest.raises(NetError):
        p2pd.check_published(own)
