"""Whatever fails at whatever step, a file that was published is read back as it was or as it is now: never
torn, and never neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crash_states import recorded

from peers.build import new_run, run_folder
from peers.build.joining import spec_transfer
from peers.build.local_peer import last_port
from peers.runtime.releases.announcements import Announcements
from swarm.events import Noted
from swarm.journal import Journal, read_journal
from swarm.learn.files import checkpoint
from swarm.learn.models import tiny
from swarm.membership.identity import open_key
from swarm.net.blobs.shelves import Held, Shelf
from swarm.settings.config import Listen, Run, TaskSettings
from swarm.storage.blocks import BLOCK, Blocks
from swarm.storage.durable import copy_durably, read_checked, write_checked, write_durably
from swarm.types import Digest, PeerId

OLD, NEW = b"old" * 50_000, b"new" * 60_000


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def checked(path: Path) -> bytes | None:
    return read_checked(path) if path.exists() else None


def copied(path: Path, data: bytes) -> None:
    source = path.parent.parent.parent / "source"
    source.write_bytes(data)
    copy_durably(source, path)


@pytest.mark.parametrize(
    ("write", "read"),
    [(write_durably, content), (write_checked, checked), (copied, content)],
    ids=["durably", "checked", "copied"],
)
@pytest.mark.parametrize("first", [None, OLD])
def test_a_file_is_its_old_or_its_new_content(
    tmp_path: Path,
    write: Callable[[Path, bytes], None],
    read: Callable[[Path], bytes | None],
    first: bytes | None,
) -> None:
    path = tmp_path / "disk" / "deep" / "file"
    if first is not None:
        write(path, first)
    with recorded(tmp_path / "disk") as disk:
        write(path, NEW)
    found = [read(state / "deep" / "file") for _, state in disk.states(tmp_path / "states")]
    assert {*found} == {first, NEW}
    assert found[-1] == NEW, "what was written without an error stays"


def test_a_writer_without_an_fsync_would_be_found_out(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").write_bytes(OLD)
    with recorded(tmp_path / "disk") as disk:
        (tmp_path / "disk" / "file.new").write_bytes(NEW)
        (tmp_path / "disk" / "file.new").rename(tmp_path / "disk" / "file")
    found = {content(state / "file") for _, state in disk.states(tmp_path / "states")}
    assert found == {OLD, NEW, b"", bytes(len(NEW))}


OLDER, NEWER = ({"weight": torch.full((50_000,), value)} for value in (1.0, 2.0))


def weight(folder: Path) -> float:
    """Of the checkpoint that is there, all of whose values are alike."""
    tensors, facts = checkpoint.unpack(checkpoint.read(folder))
    assert facts == {"version": 1}
    return float(tensors["weight"].unique())


def test_a_checkpoint_is_the_one_before_or_the_new_one(tmp_path: Path) -> None:
    with recorded(tmp_path / "disk") as disk:
        checkpoint.write(tmp_path / "disk" / "checkpoint", OLDER, {"version": 1})
        disk.trees.clear()
        checkpoint.write(tmp_path / "disk" / "checkpoint", NEWER, {"version": 1})
    found = [weight(state / "checkpoint") for _, state in disk.states(tmp_path / "states")]
    assert {*found} == {1.0, 2.0} and found[-1] == 2.0


def test_a_first_checkpoint_is_there_or_not(tmp_path: Path) -> None:
    with recorded(tmp_path / "disk") as disk:
        checkpoint.write(tmp_path / "disk" / "peers" / "learner-1" / "checkpoint", NEWER, {"version": 1})
    for what, state in disk.states(tmp_path / "states"):
        folder = state / "peers" / "learner-1" / "checkpoint"
        try:
            assert weight(folder) == 2.0
        except FileNotFoundError:
            assert not what.startswith("killed after 99")
            continue
    assert weight(folder) == 2.0, "the last state has it"


def test_a_key_is_there_or_not_and_never_damaged(tmp_path: Path) -> None:
    with recorded(tmp_path / "disk") as disk:
        key = open_key(tmp_path / "disk" / "peers" / "seed" / "key")
    found = [open_key(state / "peers" / "seed" / "key").me for _, state in disk.states(tmp_path / "states")]
    assert found[-1] == key.me
    assert all(path.stat().st_mode & 0o77 == 0 for path in (tmp_path / "states").rglob("key"))


def test_a_port_is_kept_or_not_and_never_another_one(tmp_path: Path) -> None:
    write_durably(tmp_path / "disk" / "port", b"4711")
    with recorded(tmp_path / "disk") as disk:
        write_durably(tmp_path / "disk" / "port", b"12345")
    found = [last_port(Listen(), state / "port") for _, state in disk.states(tmp_path / "states")]
    assert {*found} == {4711, 12345} and found[-1] == 12345


def held(shelf: Shelf, folder: Path) -> set[bytes]:
    """What a peer that starts here can offer: whole, checked, and with its publisher's word."""
    found = set()
    for path, word in Announcements(folder / "releases", lambda _: None).read():
        blocks = shelf.blocks(Digest(path.name))
        if word == b"sealed " + path.name.encode() and blocks is not None:
            found.add(blocks.whole)
    return found


def test_a_seed_holds_the_release_before_or_the_new_one(tmp_path: Path) -> None:
    versions = [bytes([version]) * (BLOCK + 9) for version in range(4)]
    folder = tmp_path / "disk"
    shelf = Shelf(folder / "blobs", pytest.fail)
    words = Announcements(folder / "releases", lambda why: None)

    def publish(version: int) -> None:
        blocks = Blocks.of(versions[version])
        shelf.put(Held.of(version, blocks), blocks, True)
        words.keep(blocks.root, b"sealed " + blocks.root.encode(), shelf.is_whole)
        if version > 1:
            shelf.drop([Blocks.of(versions[version - 2]).root])

    publish(0)
    publish(1)
    with recorded(folder) as disk:
        publish(2)
        publish(3)
    last: set[bytes] = set()
    for what, state in disk.states(tmp_path / "states"):
        last = held(Shelf(state / "blobs", lambda damage: None), state)
        assert last & {*versions[1:]}, what
        assert last <= {*versions}, what
    assert versions[3] in last


def test_a_release_that_is_fetched_is_there_or_fetched_again(tmp_path: Path) -> None:
    blocks = Blocks.of(OLD * 10)
    shelf = Shelf(tmp_path / "disk", pytest.fail)
    with recorded(tmp_path / "disk") as disk:
        shelf.begin(Held.of(1, blocks))
        for leaf, block in zip(blocks.leaves, blocks, strict=True):
            shelf.add({leaf: bytes(block)})
        shelf.mark(Held.of(1, blocks), True)
    for _, state in disk.states(tmp_path / "states"):
        after = Shelf(state, lambda damage: None)
        found = after.blocks(blocks.root)
        assert found is None or found.whole == blocks.whole
    assert found is not None, "the last state has it"


@pytest.mark.parametrize("training", ["full", "lora"])
def test_a_run_that_is_created_is_whole_or_not_begun(tmp_path: Path, training: Any) -> None:
    policy = tiny.make(tmp_path / "policy", "qwen3")
    (tmp_path / "mine.py").write_text("def short(completions, **_):\n    return [1.0] * len(completions)\n")
    task = TaskSettings(name="digit-sums", rewards=(f"{tmp_path / 'mine.py'}:short",))
    run = Run(task=task)
    if training == "lora":
        run = Run(task=task, model=type(run.model)(name=str(policy), training="lora"))
    with recorded(tmp_path / "disk") as disk:
        made = new_run.create(tmp_path / "disk" / "run", run, policy)
    begun = 0
    for what, state in disk.states(tmp_path / "states"):
        if (found := run_folder.read(state / "run")) is None:
            assert not begun or not what.startswith("killed"), what
            continue
        begun += 1
        assert found.digest == made.digest
        assert not spec_transfer.damaged_files(found), what
        assert found.genesis() and found.owner(), what
    assert begun


def test_a_spec_that_is_mended_is_never_gone(tmp_path: Path) -> None:
    run = new_run.create(tmp_path / "disk", Run(), tiny.make(tmp_path / "policy", "qwen3"))
    (run.path / run_folder.SPEC).write_bytes(b"\0" * 900)
    with recorded(run.path) as disk:
        run_folder.existing_run(run.path, Run())
    for what, state in disk.states(tmp_path / "states"):
        found = run_folder.read(state)
        assert found is not None and found.digest == run.digest, what


def test_a_file_that_came_from_a_peer_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "disk" / "model").mkdir(parents=True)
    with recorded(tmp_path / "disk") as disk:
        part = spec_transfer._Part(tmp_path / "disk" / "model" / "tokenizer.json.part")
        for start in range(0, len(NEW), 50_000):
            part.add(NEW[start : start + 50_000])
        part.close()
        part.rename(tmp_path / "disk" / "model" / "tokenizer.json")
    found = [content(state / "model" / "tokenizer.json") for _, state in disk.states(tmp_path / "states")]
    assert {*found} == {None, NEW} and found[-1] == NEW


def test_a_journal_is_a_row_of_its_events_and_goes_on(tmp_path: Path) -> None:
    def noted(text: str) -> Noted:
        return Noted(at=0.0, peer=PeerId("me"), level="info", text=text)

    texts = ["one" * 50, "two" * 99, "three" * 200]
    with recorded(tmp_path / "disk") as disk:
        journal = Journal(tmp_path / "disk" / "journal.jsonl")
        for text in texts:
            journal(noted(text))
        journal.close()
    for what, state in disk.states(tmp_path / "states"):
        again = Journal(state / "journal.jsonl")
        again(noted("again"))
        again.close()
        found = [event.text for event in read_journal(again.path) if isinstance(event, Noted)]
        assert found == [*texts[: len(found) - 1], "again"], what


def test_the_steps_between_two_contents_of_any_file_are_all_tried(tmp_path: Path) -> None:
    with recorded(tmp_path / "disk") as disk:
        write_durably(tmp_path / "disk" / "new" / "file", NEW)
    steps = [what.split()[-1] for what in disk.trees if what.startswith("power")]
    assert steps == ["before", "mkdir", "open", "fsync", "open", "write", "fsync", "rename", "open", "fsync"]
