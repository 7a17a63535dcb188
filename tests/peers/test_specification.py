"""The specification travels, and the joiner believes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from peers import specification
from peers.errors import Refusal, Unreached
from peers.runfolder import RunFolder, digest_of, keep
from peers.specification import SLICE
from swarm import PROTOCOL, wire
from swarm.net.ports import Handler, Refused, Unreachable
from swarm.types import Digest, PeerId, Spec

TOKENIZER = bytes(range(256)) * (2 * SLICE // 256) + b"tail"


class Post:
    """Mail between peers of one process, without time."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.to = ""

    def at(self, peer: str) -> Post:
        self.to = peer
        return self

    async def serve(self, service: str, handler: Handler) -> None:
        self.handlers[self.to] = handler

    async def send(self, to: PeerId, service: str, data: bytes, timeout: float = 15.0) -> bytes:
        if to not in self.handlers:
            raise Unreachable(f"{to} is not there")
        return await self.handlers[to](PeerId("joiner"), data)


def origin(path: Path, **changes: Any) -> RunFolder:
    files = {"config.json": b"{}", "tokenizer.json": TOKENIZER}
    spec = Spec(
        protocol=PROTOCOL, run={"name": "demo"}, owner="00", genesis=Digest("d" * 64),
        files={name: Digest(hashlib.sha256(content).hexdigest()) for name, content in files.items()},
    )  # fmt: skip
    run = keep(path, wire.encode(msgspec.structs.replace(spec, **changes)))
    run.model.mkdir()
    for name, content in files.items():
        (run.model / name).write_bytes(content)
    return run


def fetch(post: Post, run: RunFolder, path: Path, model: Path | None = None, *sources: str) -> RunFolder:
    chosen = [PeerId(source) for source in sources or ("good",)]
    return asyncio.run(specification.fetch(post, chosen, run.digest, path, model))  # type: ignore[arg-type]


def served(run: RunFolder) -> Post:
    post = Post()
    asyncio.run(specification.serve(post.at("good"), run))  # type: ignore[arg-type]
    return post


def test_a_joiner_gets_the_spec_and_every_file_slice_by_slice(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    joined = fetch(served(run), run, tmp_path / "joined")
    assert (joined.spec, joined.digest) == (run.spec, run.digest)
    assert (joined.model / "tokenizer.json").read_bytes() == TOKENIZER
    assert (joined.model / "config.json").read_bytes() == b"{}"


def test_a_liar_and_a_dead_peer_are_passed_over(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    post = served(run)

    async def lie(sender: PeerId, data: bytes) -> bytes:
        return b"lies"

    post.handlers["liar"] = lie
    assert fetch(post, run, tmp_path / "joined", None, "dead", "liar", "good").digest == run.digest
    with pytest.raises(Unreached, match=r"dead is not there.*sent other bytes"):
        fetch(post, run, tmp_path / "other", None, "dead", "liar")
    assert not (tmp_path / "other").exists(), "nothing that was not checked is written"


def test_a_run_that_wants_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    run = origin(tmp_path / "run", files={"../../outside": digest_of(b"{}")})
    (run.model / "../../outside").write_bytes(b"{}")
    post = served(run)
    (tmp_path / "outside").unlink()
    with pytest.raises(Refusal, match="outside"):
        fetch(post, run, tmp_path / "joined")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "joined").exists()


def test_another_protocol_is_refused_with_what_to_install(tmp_path: Path) -> None:
    run = origin(tmp_path / "run", protocol=PROTOCOL + 1)
    with pytest.raises(Refusal, match=f"protocol {PROTOCOL + 1}"):
        fetch(served(run), run, tmp_path / "joined")


def test_local_files_of_another_model_are_refused_and_the_runs_own_are_not_fetched_twice(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_bytes(b"{}")
    (mine / "tokenizer.json").write_bytes(b"another")
    with pytest.raises(Refusal, match="tokenizer"):
        fetch(served(run), run, tmp_path / "joined", mine)
    assert (mine / "tokenizer.json").read_bytes() == b"another"
    (mine / "tokenizer.json").write_bytes(TOKENIZER)
    assert fetch(served(run), run, tmp_path / "joined", mine).digest == run.digest


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"run": Digest("0" * 64)}, "not of 0000"), ({"file": "owner.key"}, "no file"), ({"file": "../owner.key"}, "no file")],
)
def test_only_who_knows_the_run_gets_only_its_files(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    run = origin(tmp_path / "run")
    post = served(run)
    ask = msgspec.structs.replace(specification.Ask(run=run.digest, file="", offset=0), **changes)
    with pytest.raises(Refused, match=why):
        asyncio.run(post.send(PeerId("good"), "spec", wire.encode(ask)))
    with pytest.raises(Refused):
        asyncio.run(post.send(PeerId("good"), "spec", b"noise"))


def test_an_offset_beyond_the_end_or_before_the_start_is_harmless(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    post = served(run)
    spec = (run.path / "spec").read_bytes()
    for offset, answer in ((-5, spec), (len(spec), b""), (1 << 60, b"")):
        ask = specification.Ask(run=run.digest, file="", offset=offset)
        assert asyncio.run(post.send(PeerId("good"), "spec", wire.encode(ask))) == answer
