"""The specification travels, and the joiner believes nothing."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from peers.build.joining import spec_transfer
from peers.build.joining.spec_transfer import SLICE
from peers.build.real_host import check_settings
from peers.build.run_folder import RunFolder, digest_of, keep_spec
from peers.errors import CANNOT, CannotHere, NoPeerAnswers, Refusal, explain
from swarm import PROTOCOL
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Handler, Refused, Unreachable
from swarm.processes.process import Child
from swarm.protocol import Role
from swarm.settings.config import DelayLaw, Run
from swarm.sim.clock import run as in_virtual_time
from swarm.sim.flows import AccessLine
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

TOKENIZER = bytes(range(256)) * (2 * SLICE // 256) + b"tail"
BASE = bytes(reversed(range(256))) * (4 * SLICE // 256) + b"weights"


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

    async def send(
        self, to: PeerId, service: str, data: bytes, timeout: float = 15.0, idle: float | None = None
    ) -> bytes:
        if to not in self.handlers:
            raise Unreachable(f"{to} is not there")
        return await self.handlers[to](PeerId("joiner"), data)


def origin(path: Path, **changes: Any) -> RunFolder:
    files = {"config.json": b"{}", "tokenizer.json": TOKENIZER, "model.safetensors": BASE}
    task = {"rewards-0.py": b"def reward(): ..."}
    spec = Spec(
        protocol=PROTOCOL,
        run={"name": "demo"},
        owner="00",
        genesis=Digest("d" * 64),
        release_size=1,
        files={name: digest_of(content) for name, content in files.items()},
        task={name: digest_of(content) for name, content in task.items()},
        sizes={name: len(content) for name, content in files.items()}
        | {f"task/{n}": len(c) for n, c in task.items()},
    )
    run = keep_spec(path, wire.encode(msgspec.structs.replace(spec, **changes)))
    for folder, contents in ((run.model, files), (run.path / "task", task)):
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    return run


def fetch(post: Post, run: RunFolder, path: Path, model: Path | None = None, *sources: str) -> RunFolder:
    chosen = [PeerId(source) for source in sources or ("good",)]
    return asyncio.run(spec_transfer.fetch(post, chosen, run.digest, path, model))  # type: ignore[arg-type]


def served(run: RunFolder) -> Post:
    post = Post()
    asyncio.run(spec_transfer.serve(post.at("good"), run))  # type: ignore[arg-type]
    return post


def test_a_joiner_gets_the_spec_and_every_file_slice_by_slice(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    joined = fetch(served(run), run, tmp_path / "joined")
    assert (joined.spec, joined.digest) == (run.spec, run.digest)
    assert (joined.model / "tokenizer.json").read_bytes() == TOKENIZER
    assert (joined.model / "config.json").read_bytes() == b"{}"
    assert (joined.model / "model.safetensors").read_bytes() == BASE
    assert (joined.path / "task" / "rewards-0.py").read_bytes() == b"def reward(): ..."
    assert not list(joined.path.rglob("*.part"))


def test_the_files_of_an_evaluation_set_come_into_a_folder_of_their_own(tmp_path: Path) -> None:
    name, rows = "hard/data.parquet", b"rows"
    task, sizes = {name: digest_of(rows)}, {f"task/{name}": len(rows)}
    run = origin(tmp_path / "run", files={}, task=task, sizes=sizes)
    (run.path / "task" / "hard").mkdir()
    (run.path / "task" / name).write_bytes(rows)
    joined = fetch(served(run), run, tmp_path / "joined")
    assert (joined.path / "task" / name).read_bytes() == rows


def test_peers_that_join_together_in_one_folder_fetch_each_file_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = origin(tmp_path / "run")
    post, asked = served(run), []
    answer = post.handlers["good"]

    async def counted(sender: PeerId, data: bytes) -> bytes:
        asked.append(data)
        await asyncio.sleep(0)  # another one's turn
        return await answer(sender, data)

    post.handlers["good"] = counted
    fetch(post, run, tmp_path / "alone")
    alone = [one for one in asked if b"tokenizer" in one or b"model" in one or b"task" in one]
    asked.clear()

    async def together() -> None:
        one = (post, [PeerId("good")], run.digest, tmp_path / "joined", None)
        await asyncio.gather(*(spec_transfer.fetch(*one) for _ in range(3)))  # type: ignore[arg-type]

    asyncio.run(together())
    assert [one for one in asked if b"tokenizer" in one or b"model" in one or b"task" in one] == alone
    assert "damaged" not in capsys.readouterr().err
    assert (tmp_path / "joined" / "model" / "tokenizer.json").read_bytes() == TOKENIZER


def test_a_fetch_that_failed_keeps_nobody_out_by_a_child_that_was_forked_meanwhile(tmp_path: Path) -> None:
    run, children = origin(tmp_path / "run"), list[Child]()
    post = served(run)
    answer = post.handlers["good"]

    async def forks(sender: PeerId, data: bytes) -> bytes:
        if b"tokenizer" in data and not children:
            children.append(Child(partial(time.sleep, 60)))
            raise Unreachable("it is gone")
        return await answer(sender, data)

    post.handlers["good"] = forks
    with pytest.raises(NoPeerAnswers):
        fetch(post, run, tmp_path / "joined")

    async def again() -> None:
        async with asyncio.timeout(10):
            await spec_transfer.fetch(post, [PeerId("good")], run.digest, tmp_path / "joined", None)  # type: ignore[arg-type]

    asyncio.run(again())
    assert children[0].alive
    children[0].end()


def test_a_liar_and_a_dead_peer_are_passed_over(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    post = served(run)

    async def lie(sender: PeerId, data: bytes) -> bytes:
        return b"lies"

    post.handlers["liar"] = lie
    assert fetch(post, run, tmp_path / "joined", None, "dead", "liar", "good").digest == run.digest
    with pytest.raises(NoPeerAnswers, match=r"dead is not there.*sent other bytes"):
        fetch(post, run, tmp_path / "other", None, "dead", "liar")
    assert not (tmp_path / "other").exists(), "nothing that was not checked is written"


def test_a_run_that_wants_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    strange = {"../../outside": digest_of(b"{}")}
    sizes = {"../../outside": 2, "task/../../outside": 2}
    for number, changes in enumerate(({"files": strange}, {"task": strange})):
        run = origin(tmp_path / f"run-{number}", **changes, sizes=sizes)
        with pytest.raises(Refusal, match="outside"):
            fetch(served(run), run, tmp_path / "joined")
        assert not (tmp_path / "outside").exists() and not (tmp_path / "joined").exists()


@pytest.mark.parametrize("sizes", [{}, {"config.json": 1 << 40}, {"config.json": -1}])
def test_a_file_of_a_size_that_no_run_needs_is_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    run = origin(tmp_path / "run", sizes=sizes, files={"config.json": digest_of(b"{}")}, task={})
    with pytest.raises(Refusal, match=r"wants config.json to have .* bytes"):
        fetch(served(run), run, tmp_path / "joined")


class Breaks(Post):
    """A peer that answers so many requests for slices of a file, then no more."""

    def __init__(self, run: RunFolder, answers: int) -> None:
        super().__init__()
        asyncio.run(spec_transfer.serve(self.at("good"), run))  # type: ignore[arg-type]
        self.left, self.asked = answers, []  # type: ignore[var-annotated]
        whole = self.handlers["good"]

        async def breaks(sender: PeerId, data: bytes) -> bytes:
            ask = wire.decode(data, spec_transfer.FileRequest)
            if ask.file == "model.safetensors":
                self.asked.append(ask.offset)
                self.left -= 1
                if self.left < 0:
                    raise Unreachable("the line broke")
            return await whole(sender, data)

        self.handlers["breaks"] = breaks


def test_a_transfer_that_broke_goes_on_where_it_was_also_with_another_peer(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    post = Breaks(run, 2)
    with pytest.raises(NoPeerAnswers, match=r"no peer gave model.safetensors .*the line broke"):
        fetch(post, run, tmp_path / "joined", None, "breaks")
    assert (tmp_path / "joined/model/model.safetensors.part").stat().st_size == 2 * SLICE
    post.left, post.asked = 1, []
    joined = fetch(post, run, tmp_path / "joined", None, "breaks", "good")
    assert post.asked == [2 * SLICE, 3 * SLICE], "nothing was asked for twice"
    assert (joined.model / "model.safetensors").read_bytes() == BASE


def test_a_slice_that_takes_minutes_on_a_slow_line_is_not_begun_anew_while_it_comes(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")

    async def main() -> RunFolder:
        line = AccessLine(up=10_000.0, down=10_000.0)
        links = SimLinks(DelayLaw(law="none"), 1e9, random.Random(1), {PeerId("good"): line})
        async with MemoryNetwork(random.Random(2), links) as network:
            good, joiner = (network.ports(name, lambda kind: 0.0) for name in ("good", "joiner"))
            await spec_transfer.serve(good.mail, run)
            return await spec_transfer.fetch(joiner.mail, [good.me], run.digest, tmp_path / "joined", None)

    joined = in_virtual_time(main())
    assert (joined.model / "model.safetensors").read_bytes() == BASE


def test_the_rate_of_a_transfer_is_that_of_the_source_that_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(spec_transfer, "time", now)
    run = origin(tmp_path / "run")
    post = served(run)
    whole = post.handlers["good"]

    async def answer(seconds: float, silent: bool, sender: PeerId, data: bytes) -> bytes:
        if b"model.safetensors" in data:
            await asyncio.sleep(seconds)
            if silent:
                raise Unreachable("no answer")
        return await whole(sender, data)

    post.handlers |= {"silent": partial(answer, 300.0, True), "good": partial(answer, 8.0, False)}
    sources = [PeerId("silent"), PeerId("good")]
    in_virtual_time(spec_transfer.fetch(post, sources, run.digest, tmp_path / "joined", None))  # type: ignore[arg-type]
    told = [line for line in capsys.readouterr().err.splitlines() if "model.safetensors: " in line]
    *full, _few_bytes = told
    assert len(told) == 5 and all(", 131 kB/s, " in line for line in full), told


@pytest.mark.parametrize("start", [b"not how it begins", BASE + b"longer than it is"])
def test_a_wrong_beginning_costs_one_more_transfer(tmp_path: Path, start: bytes) -> None:
    run = origin(tmp_path / "run")
    part = tmp_path / "joined/model/model.safetensors.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(start)
    joined = fetch(served(run), run, tmp_path / "joined")
    assert (joined.model / "model.safetensors").read_bytes() == BASE


def test_a_peer_whose_own_file_is_cut_short_or_changed_is_passed_over(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    post = served(run)
    for name, content in (("short", BASE[:-1]), ("changed", b"x" + BASE[1:-1] + b"x")):
        other = origin(tmp_path / name)
        asyncio.run(spec_transfer.serve(post.at(name), other))  # type: ignore[arg-type]
        (other.model / "model.safetensors").write_bytes(content)
    with pytest.raises(
        NoPeerAnswers, match=rf"short: it has {len(BASE) - 1} of {len(BASE)} bytes; changed: sent other bytes"
    ):
        fetch(post, run, tmp_path / "joined", None, "short", "changed")
    joined = fetch(post, run, tmp_path / "joined", None, "short", "changed", "good")
    assert (joined.model / "model.safetensors").read_bytes() == BASE


def test_a_full_disk_says_which(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    part = tmp_path / "joined/model/model.safetensors.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        fetch(served(run), run, tmp_path / "joined")
    code, says = explain(caught.value) or (0, "")
    assert code == CANNOT and says.startswith(f"cannot use {part}: the disk is full: free some space")


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    sizes = {"config.json": 2, "tokenizer.json": 9, "model.safetensors": 1 << 60, "task/rewards-0.py": 9}
    run = origin(tmp_path / "run", sizes=sizes)
    with pytest.raises(CannotHere, match=r"need 1152921504.6 GB, and the disk of .* has .* GB free"):
        fetch(served(run), run, tmp_path / "joined")
    assert not (tmp_path / "joined/model").exists()


def test_a_base_of_a_local_folder_is_taken_where_it_is_the_runs_and_fetched_where_not(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "model.safetensors").write_bytes(BASE)
    post = Breaks(run, 9)
    fetch(post, run, tmp_path / "joined", mine, "breaks")
    assert post.asked == []
    (mine / "model.safetensors").write_bytes(b"in other shards")
    joined = fetch(post, run, tmp_path / "again", mine, "breaks")
    assert (joined.model / "model.safetensors").read_bytes() == BASE


def test_another_protocol_is_refused_with_what_to_install(tmp_path: Path) -> None:
    run = origin(tmp_path / "run", protocol=PROTOCOL + 1)
    with pytest.raises(Refusal, match=f"protocol {PROTOCOL + 1}"):
        fetch(served(run), run, tmp_path / "joined")


def test_a_run_of_a_newer_version_passes_through_an_older_one_as_it_was(tmp_path: Path) -> None:
    """Its specification has a field that this program does not know, and settings that it does not know."""
    known = msgspec.to_builtins(origin(tmp_path / "plain", files={}, task={}, sizes={}).spec)
    newer = {**known, "licence": "of the model", "run": {"name": "demo", "wisdom": {"level": 3}}}
    run = keep_spec(tmp_path / "run", wire.encode(newer))
    joined = fetch(served(run), run, tmp_path / "joined")
    third = fetch(served(joined), joined, tmp_path / "third")
    assert third.digest == run.digest == digest_of(wire.encode(newer))
    assert third.settings == Run(name="demo")


@pytest.mark.parametrize("role", Role)
def test_settings_that_are_not_known_are_refused_by_name_to_whom_they_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: Role
) -> None:
    settings = {"name": "demo", "pace": {"rhythm": "waltz"}, "averaging": {"compression": "int4"}}
    run = origin(tmp_path / "run", run=settings)
    if role is Role.LEARNER:
        with pytest.raises(Refusal, match=r"learners act by averaging\.compression, which"):
            check_settings(run, role)
    else:
        check_settings(run, role)
        assert "pace.rhythm, averaging.compression" in capsys.readouterr().err


def test_local_files_of_another_model_are_refused_and_the_runs_own_are_not_fetched_twice(
    tmp_path: Path,
) -> None:
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
    [
        ({"run": Digest("0" * 64)}, "not of 0000"),
        ({"file": "owner.key"}, "no file"),
        ({"file": "../owner.key"}, "no file"),
    ],
)
def test_only_who_knows_the_run_gets_only_its_files(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    run = origin(tmp_path / "run")
    post = served(run)
    ask = msgspec.structs.replace(spec_transfer.FileRequest(run=run.digest, file="", offset=0), **changes)
    with pytest.raises(Refused, match=why):
        asyncio.run(post.send(PeerId("good"), "spec", wire.encode(ask)))
    with pytest.raises(Refused):
        asyncio.run(post.send(PeerId("good"), "spec", b"noise"))


def test_an_offset_beyond_the_end_or_before_the_start_is_harmless(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    post = served(run)
    spec = (run.path / "spec").read_bytes()
    for offset, answer in ((-5, spec), (len(spec), b""), (1 << 60, b"")):
        ask = spec_transfer.FileRequest(run=run.digest, file="", offset=offset)
        assert asyncio.run(post.send(PeerId("good"), "spec", wire.encode(ask))) == answer


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_file_is_told_at_the_start_and_given_to_nobody(tmp_path: Path, damage: str) -> None:
    run = origin(tmp_path / "run")
    place = run.model / "tokenizer.json"
    if damage == "gone":
        place.unlink()
    else:
        place.write_bytes(TOKENIZER[:-1] if damage == "cut" else b"x" + TOKENIZER[1:-1] + b"x")
    post = Post()
    damaged = asyncio.run(spec_transfer.serve(post.at("good"), run))  # type: ignore[arg-type]
    (told,) = damaged.values()
    assert str(place) in told and "bring it back" in told
    with pytest.raises(NoPeerAnswers, match=r"good: tokenizer\.json is damaged here"):
        fetch(post, run, tmp_path / "joined")

    def mended(*peers: str) -> list[str]:
        return asyncio.run(spec_transfer.mend(post, run, damaged, [*map(PeerId, peers)]))  # type: ignore[arg-type]

    assert mended("nobody") == [] and [*damaged] == ["tokenizer.json"], "nobody has it yet"
    asyncio.run(spec_transfer.serve(post.at("member"), origin(tmp_path / "whole")))  # type: ignore[arg-type]
    assert mended("nobody", "member") == ["tokenizer.json"] and not damaged
    assert fetch(post, run, tmp_path / "joined").digest == run.digest, "it is given to others again"
    assert place.read_bytes() == TOKENIZER


def test_a_seed_mends_a_file_beside_a_joiner_of_its_folder(tmp_path: Path) -> None:
    run, mine = origin(tmp_path / "run"), origin(tmp_path / "mine")
    post, asked = served(run), list[bytes]()
    answer = post.handlers["good"]

    async def counted(sender: PeerId, data: bytes) -> bytes:
        asked.append(data)
        await asyncio.sleep(0.01)  # another one's turn
        return await answer(sender, data)

    post.handlers["good"] = counted
    damaged = {"model.safetensors": "is gone", "tokenizer.json": "is gone"}
    for name in damaged:
        (mine.model / name).unlink()

    async def both() -> list[str]:
        mended, _ = await asyncio.gather(
            spec_transfer.mend(post, mine, damaged, [PeerId("good")]),  # type: ignore[arg-type]
            spec_transfer.fetch(post, [PeerId("good")], run.digest, mine.path, None),  # type: ignore[arg-type]
        )
        return mended

    assert sorted(asyncio.run(both())) == ["model.safetensors", "tokenizer.json"] and not damaged
    assert (mine.model / "model.safetensors").read_bytes() == BASE
    assert (mine.model / "tokenizer.json").read_bytes() == TOKENIZER
    assert sum(b"model.safetensors" in data for data in asked) == -(-len(BASE) // SLICE), "each slice once"


def test_a_part_that_another_program_writes_into_is_not_taken_for_the_file(tmp_path: Path) -> None:
    run = origin(tmp_path / "run")
    post, part = served(run), tmp_path / "joined" / "model" / "model.safetensors.part"
    answer, wrote = post.handlers["good"], list[int]()

    async def beside(sender: PeerId, data: bytes) -> bytes:
        if b"model.safetensors" in data and not wrote:
            wrote.append(part.write_bytes(b"garbage"))
        return await answer(sender, data)

    post.handlers["good"] = beside
    with pytest.raises(NoPeerAnswers):
        fetch(post, run, tmp_path / "joined")
    assert wrote and not (tmp_path / "joined" / "model" / "model.safetensors").exists()
    fetch(post, run, tmp_path / "joined")
    assert (tmp_path / "joined" / "model" / "model.safetensors").read_bytes() == BASE


def test_a_transfer_that_broke_goes_on_where_the_rest_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, joined = origin(tmp_path / "run"), tmp_path / "joined"
    (joined / "model").mkdir(parents=True)
    (joined / "model" / "model.safetensors.part").write_bytes(BASE[: 3 * SLICE])
    room = len(BASE) - 3 * SLICE + len(TOKENIZER) + len(b"{}") + len(b"def reward(): ...")
    disk = SimpleNamespace(free=room - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    with pytest.raises(CannotHere, match=r"need 3\.15 MB, and the disk of .* has 3\.15 MB free"):
        fetch(served(run), run, joined)
    disk.free = room
    fetch(served(run), run, joined)
    assert (joined / "model" / "model.safetensors").read_bytes() == BASE
