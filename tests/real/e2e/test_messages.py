"""What a person is told when something is wrong, and the exit code: a sentence with cause and next step,
never a traceback.

One swarm serves all tests that need one to be refused by.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_disks import fill, small_memory_disk
from swarm_processes import SETTINGS, UNHURRIED, SwarmProcesses, started_swarm, swarm, version

from swarm import PROTOCOL, events
from swarm.membership import invite
from swarm.protocol import Role
from swarm.types import Digest

KEY = invite.keyring(bytes(32))


@pytest.fixture
def house(observed: SwarmProcesses) -> SwarmProcesses:
    return observed


def refused(ran: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    last = [line for line in ran.stderr.splitlines() if line.startswith("swarm: ")]
    assert len(last) == 1, ran.stderr
    for words in said:
        assert words in last[0]


def start(house: SwarmProcesses, folder: Path, *sets: str) -> subprocess.CompletedProcess[str]:
    return swarm(
        "start",
        str(house.config),
        "--folder",
        str(folder),
        *[word for one in sets for word in ("--set", one)],
    )


def word(run: Digest, address: str, role: Role = Role.SAMPLER, expires: int = invite.FOREVER) -> str:
    return invite.make(run, [f"{address}/p2p/{KEY.me}"], role, expires)


# --- invites ------------------------------------------------------------------------------------------------


def test_a_truncated_invite_is_refused(house: SwarmProcesses, tmp_path: Path) -> None:
    ran = swarm("join", house.invite("sampler")[:-9], "--folder", str(tmp_path / "new"))
    refused(ran, 5, "the invite is damaged", "it may be cut off", "copy it again")


def test_an_expired_invite_is_refused(house: SwarmProcesses, tmp_path: Path) -> None:
    expired = word(Digest("ab" * 32), "/ip4/127.0.0.1/tcp/9", expires=int(time.time()) - 7200)
    ran = swarm("join", expired, "--folder", str(tmp_path / "new"))
    refused(ran, 5, "expired 2 hours ago", "ask the swarm's owner for a new one")


def test_an_invite_of_another_protocol_is_refused(
    house: SwarmProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invite, "PROTOCOL", PROTOCOL + 1)
    newer = word(Digest("ab" * 32), "/ip4/127.0.0.1/tcp/9")
    said = f"speaks protocol {PROTOCOL + 1}, this program {PROTOCOL}: upgrade this program"
    refused(swarm("join", newer, "--folder", str(tmp_path / "new")), 5, said)


def test_an_invite_to_another_run_than_the_one_on_the_disk_is_refused(house: SwarmProcesses) -> None:
    other = word(Digest("ab" * 32), "/ip4/127.0.0.1/tcp/9")
    ran = swarm("join", other, "--folder", str(house.folder))
    refused(
        ran,
        5,
        f"{house.folder} belongs to run ",
        "the invite is for abababababab",
        "name another folder with --folder",
    )


@pytest.mark.nightly
def test_a_samplers_invite_does_not_make_a_learner(house: SwarmProcesses, tmp_path: Path) -> None:
    ran = swarm("join", house.invite("sampler"), "--as", "learner", "--folder", str(tmp_path / "new"))
    refused(
        ran,
        5,
        "this invite does not admit a learner",
        "ask the run's owner for one (`swarm invite --role learner`)",
    )


@pytest.mark.nightly
def test_another_tokenizer_is_refused(house: SwarmProcesses, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(house.folder / "model", model)
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("0", "1"))
    ran = swarm("join", house.invite("sampler"), "--model", str(model), "--folder", str(tmp_path / "new"))
    refused(ran, 5, f"{tokenizer} is not the run's", "another tokenizer", "leave --model out")


# --- bootstraps ---------------------------------------------------------------------------------------------


def test_a_bootstrap_where_nothing_listens_is_named_with_the_reason(
    house: SwarmProcesses, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"
    ran = swarm("join", word(Digest("ab" * 32), address), "--once", "--folder", str(tmp_path / "new"))
    refused(ran, 4, address, "connection refused")


@pytest.mark.nightly
def test_a_bootstrap_that_does_not_answer_is_named_with_the_reason(
    house: SwarmProcesses, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"
        ran = swarm("join", word(Digest("ab" * 32), address), "--once", "--folder", str(tmp_path / "new"))
    refused(ran, 4, address)


@pytest.mark.nightly
def test_a_bootstrap_that_is_somebody_else_is_named_with_the_reason(
    house: SwarmProcesses, tmp_path: Path
) -> None:
    address = f"/ip4/127.0.0.1/tcp/{(house.folder / 'peers' / 'seed' / 'port').read_text()}"
    ran = swarm("join", word(Digest("ab" * 32), address), "--once", "--folder", str(tmp_path / "new"))
    refused(ran, 4, address, "another peer answers there")


# --- this machine -------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_page_port_in_use_is_named(house: SwarmProcesses, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = start(house, tmp_path / "new", f"peer.page.port={port}", "peer.page.free=false")
    refused(ran, 3, f"{port}", "in use", "--set")


def test_a_listen_port_in_use_is_named(house: SwarmProcesses, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = start(house, tmp_path / "new", f"peer.listen.port={port}")
    refused(ran, 3, f"TCP port {port} on 127.0.0.1 is already in use", "--set peer.listen.port")


def test_a_learners_port_for_parts_in_use_is_named(house: SwarmProcesses, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sets = ("--set", "peer.listen.host=127.0.0.1", "--set", f"peer.listen.parts={port}")
        ran = swarm("join", house.invite("learner"), "--folder", str(tmp_path / "new"), *sets)
    refused(ran, 3, f"TCP port {port} on 127.0.0.1 is already in use", "--set peer.listen.parts")
    assert not (tmp_path / "new" / "peers").exists()


def test_an_unknown_key_is_refused_with_the_nearest(house: SwarmProcesses, tmp_path: Path) -> None:
    refused(
        start(house, tmp_path / "new", "run.pace.beet=2"),
        2,
        "there is no key run.pace.beet",
        "did you mean run.pace.beat?",
    )


def test_a_key_file_that_others_can_read_is_refused(house: SwarmProcesses, tmp_path: Path) -> None:
    peer_folder = tmp_path / "new" / "peers" / "sampler-1"
    peer_folder.mkdir(parents=True)
    shutil.copy(house.folder / "peers" / "seed" / "key", peer_folder / "key")
    os.chmod(peer_folder / "key", 0o644)
    ran = swarm("join", house.invite("sampler"), "--folder", str(tmp_path / "new"))
    refused(
        ran,
        3,
        f"{peer_folder / 'key'} can be read by others (mode 0644)",
        f"run `chmod 600 {peer_folder / 'key'}`",
    )


@pytest.mark.nightly
def test_a_file_where_the_folder_should_be_is_refused(house: SwarmProcesses, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("a file")
    refused(
        swarm("join", house.invite("sampler"), "--folder", str(tmp_path / "new")), 3, str(tmp_path / "new")
    )
    refused(start(house, tmp_path / "new"), 3, str(tmp_path / "new"))


@pytest.mark.nightly
def test_a_folder_that_another_seed_holds_is_refused(house: SwarmProcesses) -> None:
    ran = start(house, house.folder)
    refused(ran, 3, "is in use by process", "`swarm leave`")


@pytest.mark.nightly
def test_other_settings_than_those_of_the_run_on_the_disk_are_refused(house: SwarmProcesses) -> None:
    refused(
        start(house, house.folder, "run.optimizer.lr=0.5"),
        5,
        "holds a run with other settings (optimizer)",
        "--folder",
    )


@pytest.mark.nightly
def test_data_without_the_column_is_named_by_a_whole_swarm_too(house: SwarmProcesses, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"frage": "1+1=", "answer": "2"}\n' * 20)
    words = ("--set", f"run.task.name=data:{tmp_path}/rows.jsonl", "--model", str(house.folder / "model"))
    ran = swarm("up", str(house.config), "--folder", str(tmp_path / "new"), *words)
    refused(
        ran,
        2,
        "seed cannot run: data:",
        "none of the columns prompt, question",
        "it has frage, answer: set run.task",
    )


# --- windows ------------------------------------------------------------------------------------------------


def test_a_swarm_that_does_not_answer_is_named_by_a_window_too(house: SwarmProcesses, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}"
    nobodys = word(Digest("ab" * 32), address, Role.OBSERVER)
    refused(
        swarm("dashboard", nobodys, "--once", "--folder", str(tmp_path / "late")), 4, "connection refused"
    )


def test_an_expired_invite_opens_no_window(house: SwarmProcesses, tmp_path: Path) -> None:
    said = invite.read(house.invite("observer"), time.time())
    old = invite.make(said.run, said.addresses, Role.OBSERVER, int(time.time()) - 7200)
    refused(swarm("dashboard", old, "--folder", str(tmp_path / "late")), 5, "expired 2 hours ago")


def test_a_watchers_invite_does_not_make_a_sampler(house: SwarmProcesses, tmp_path: Path) -> None:
    ran = swarm("join", house.invite("observer"), "--folder", str(tmp_path / "late"))
    refused(ran, 2, "`swarm dashboard` with it shows the swarm")


@pytest.mark.nightly
def test_a_port_that_was_asked_for_and_is_taken_is_named(house: SwarmProcesses, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = swarm(
            "dashboard", house.invite("observer"), "--port", str(port), "--folder", str(tmp_path / "late")
        )
    assert ran.returncode == 3, ran.stderr
    assert f"port {port} of 127.0.0.1 is in use" in ran.stderr


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no journal\n")
    ran = swarm("replay", str(tmp_path / "file"))
    refused(ran, 2, f"{tmp_path / 'file'} is not a journal of this program: line 1 is not an event")
    assert not ran.stdout
    assert os.listdir(tmp_path) == ["file"]


# --- disks --------------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    with small_memory_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.mark.nightly
def test_a_full_disk_at_the_start_is_named(house: SwarmProcesses, mounted: Path) -> None:
    fill(mounted)
    refused(start(house, mounted / "new"), 3, str(mounted), "No space left on device", "free space")
    ran = swarm("join", house.invite("sampler"), "--folder", str(mounted / "joined"))
    refused(ran, 3, "No space left on device", "free space")


@pytest.mark.nightly
def test_a_read_only_disk_is_named(house: SwarmProcesses, mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    refused(start(house, mounted / "new"), 3, str(mounted), "the file system is read-only", "--folder")


@pytest.mark.nightly
def test_a_disk_that_fills_up_costs_a_seed_what_it_would_keep_and_not_the_run(
    tmp_path: Path, mounted: Path
) -> None:
    with started_swarm(mounted, SETTINGS) as it:
        seed = it.seed()
        learner = it.join("learner", folder=tmp_path / "learner")
        it.join("sampler", *UNHURRIED, folder=tmp_path / "sampler")
        it.wait_until(lambda: version(learner) >= 3, 60, "the learner did not train")
        fill(mounted)
        goal = version(learner) + 5
        it.wait_until(lambda: version(learner) >= goal, 60, "the training stopped")
        late = it.join("sampler", *UNHURRIED, folder=tmp_path / "late")
        it.wait_until(lambda: late.saw(events.Sampled), 60, "nobody new was given a policy")
        assert seed.process.poll() is None


@pytest.mark.nightly
def test_a_disk_that_fills_up_costs_a_learner_its_checkpoints_and_not_the_training(
    tmp_path: Path, mounted: Path
) -> None:
    with started_swarm(tmp_path, SETTINGS) as it:
        it.seed()
        learner = it.join("learner", folder=mounted / "learner")
        it.join("sampler", *UNHURRIED)
        it.wait_until(lambda: learner.saw(events.Saved), 60, "the learner did not save")
        fill(mounted)
        seed = it.programs[0]

        def told() -> list[str]:
            details = (event.detail for event in seed.saw(events.Faulted, part="disk"))
            return [one for one in details if "checkpoint" in one]

        it.wait_until(told, 90, "nobody was told that no checkpoint is written")
        assert "No space left on device" in told()[0]
        goal = max(e.release.version for e in seed.saw(events.Released)) + 3
        it.wait_until(
            lambda: max(e.release.version for e in seed.saw(events.Released)) >= goal,
            20,
            "the training stopped",
        )
