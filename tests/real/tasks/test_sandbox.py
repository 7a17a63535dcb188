"""The sandbox: what code that came with a run can see and do. Real bubblewrap; skipped where it cannot
work."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_tree import children, ended

from swarm.tasks.base import RewardError
from swarm.tasks.workers import sandbox
from swarm.tasks.workers.worker import ENVIRON, Worker

CODE = """
import os, socket, time
from pathlib import Path

def fine(completions, **columns):
    return [float(len(c)) for c in completions]

def connect(host, port):
    try:
        socket.create_connection((host, port), 2.0).close()
    except OSError as error:
        return error.strerror
    return "connected"

def listed(path):
    return sorted(os.listdir(path))

def written(paths):
    told = []
    for path in paths:
        try:
            Path(path).write_text("x")
            told.append("written")
        except OSError as error:
            told.append(error.strerror)
    return told

def readable(paths):
    return [os.access(path, os.R_OK) for path in paths]

def environment():
    return dict(os.environ)

def fork_bomb():
    count = 0
    try:
        while True:
            if os.fork() == 0:
                time.sleep(600)
            count += 1
    except OSError as error:
        return [count, error.strerror]

def hungry():
    return len(bytearray(5 << 30))

def fills(path, megabytes):
    done = 0
    try:
        for i in range(megabytes):
            with open(f"{path}/{i // 10}", "ab") as file:
                file.write(bytes(1 << 20))
            done += 1
    except OSError as error:
        return [done, error.strerror]
    return [done, ""]

def signals(pid):
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.strerror
    return "seen"

def rights():
    status = Path("/proc/self/status").read_text()
    kept = ("CapEff", "NoNewPrivs")
    return {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(kept)}

def hangs():
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    time.sleep(600)
"""
works = pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing() or "it works")


class Boxed:
    """A sandboxed worker with all functions of CODE."""

    def __init__(self, folder: Path, timeout: float = 20.0) -> None:
        (folder / "theirs.py").write_text(CODE)
        names = re.findall(r"def (\w+)", CODE)
        functions = {name: f"theirs.py:{name}" for name in names}
        self.worker = Worker(functions, {"theirs.py": folder / "theirs.py"}, True, timeout)

    def ask(self, function: str, **arguments: Any) -> Any:
        return self.worker.ask(function, arguments)


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxed]:
    made = Boxed(tmp_path_factory.mktemp("boxed"))
    yield made
    made.worker.close()


@works
def test_rewards_come_from_within(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(CODE)
    worker = Worker({"fine": "theirs.py:fine"}, {"theirs.py": tmp_path / "theirs.py"}, True, 20.0)
    assert worker.call(["p", "p"], ["a", "bc"], {"answer": ["", ""]}) == [[1.0, 2.0]]
    worker.close()


@works
def test_there_is_no_network_not_even_this_machines_own(boxed: Boxed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        assert boxed.ask("connect", host="127.0.0.1", port=port) != "connected"
    assert boxed.ask("connect", host="192.0.2.1", port=80) == "Network is unreachable"


@works
def test_there_is_no_home_and_nothing_of_the_peer(boxed: Boxed, tmp_path: Path) -> None:
    secret = tmp_path / "owner.key"
    secret.write_text("secret")
    shown = boxed.ask("listed", path="/")
    assert set(shown) <= {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "tmp", "usr", *tops()}
    hidden = [
        str(secret),
        "/etc/passwd",
        "/etc/shadow",
        "/sys",
        "/run",
        "/var",
        str(Path.home() / ".bashrc"),
        __file__,
    ]
    assert boxed.ask("readable", paths=hidden) == [False] * len(hidden)


@works
def test_the_environment_is_empty_but_for_what_python_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    boxed = Boxed(tmp_path)
    shown = boxed.ask("environment")
    boxed.worker.close()
    assert set(shown) - {"PWD", "SHLVL", "_", *ENVIRON} == set(sandbox.environment()) - {*ENVIRON}


@works
def test_nothing_can_be_written_outside_of_tmp(boxed: Boxed) -> None:
    folders = ["/", "/usr", "/dev", "/etc", sys.prefix, str(sandbox.PACKAGE), "/tmp", "/dev/shm"]
    told = boxed.ask("written", paths=[f"{folder}/of-a-test" for folder in folders])
    assert told[-2:] == ["written", "written"] and "written" not in told[:-2]
    assert not [folder for folder in folders if (Path(folder) / "of-a-test").exists()]


@works
def test_tmp_is_private_and_empty(boxed: Boxed, tmp_path: Path) -> None:
    assert set(boxed.ask("listed", path="/tmp")) <= {"of-a-test", *(part for part in tmp_python_parts())}


@works
def test_other_processes_cannot_be_seen(boxed: Boxed) -> None:
    assert boxed.ask("signals", pid=os.getpid() + (1 << 20)) == "No such process"
    assert boxed.ask("signals", pid=os.getpid()) == "No such process"
    assert len([name for name in boxed.ask("listed", path="/proc") if name.isdigit()]) <= 3


@works
def test_it_has_no_rights_and_cannot_get_any(boxed: Boxed) -> None:
    assert boxed.ask("rights") == {"CapEff": "0000000000000000", "NoNewPrivs": "1"}


@works
def test_a_fork_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    boxed = Boxed(tmp_path)
    count, why = boxed.ask("fork_bomb")
    boxed.worker.close()
    assert count < 64 and why == "Resource temporarily unavailable"


@works
def test_memory_ends_at_the_limit(boxed: Boxed) -> None:
    with pytest.raises(RewardError, match="hungry raised MemoryError"):
        boxed.ask("hungry")


@works
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_a_full_disk_is_not_mine(boxed: Boxed, folder: str) -> None:
    done, why = boxed.ask("fills", path=folder, megabytes=200)
    assert done < 70 and why == "No space left on device"


@works
def test_all_that_it_started_ends_with_it(tmp_path: Path) -> None:
    before = children()
    boxed = Boxed(tmp_path, 1.0)
    boxed.worker.check()
    started: set[int] = set()
    look = threading.Timer(0.5, lambda: started.update(children() - before))
    look.start()
    with pytest.raises(RewardError, match=r"hangs did not answer within 1 s"):
        boxed.ask("hangs")
    assert len(started) >= 3  # bubblewrap, the worker, and what that forked
    assert ended(*started)


def test_where_bubblewrap_is_missing_it_refuses_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "theirs.py").write_text(CODE)
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.missing.cache_clear()
    try:
        with pytest.raises(
            sandbox.NoSandbox, match=r"apt-get install bubblewrap.*--set peer.rewards.code=trust"
        ):
            Worker({"fine": "theirs.py:fine"}, {"theirs.py": tmp_path / "theirs.py"}, True, 5.0)
    finally:
        sandbox.missing.cache_clear()


def test_where_bubblewrap_does_not_work_it_refuses_and_quotes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sandbox.missing.cache_clear()
    try:
        with pytest.raises(
            sandbox.NoSandbox, match=r"No permissions to create .*user namespaces.*rewards.code=trust"
        ):
            sandbox.sandboxed(["/bin/true"], sandbox.ProcessLimits())
    finally:
        sandbox.missing.cache_clear()


def test_a_python_that_is_installed_in_the_home_folder_itself_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", sys.prefix)
    with pytest.raises(sandbox.NoSandbox, match="so that reward code would see all of it"):
        sandbox._interpreter()


@works
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_gets_a_user_namespace() -> None:
    """Under Debian's Python, since the one of the tests may lie in root's home."""
    code = (
        f"import os, subprocess, sys; sys.path += [{str(sandbox.PACKAGE.parent)!r},"
        f" {sysconfig.get_path('platlib')!r}]\nos.setgroups([]); os.setgid(65534); os.setuid(65534);"
        " os.environ['HOME'] = '/nonexistent'\ntry:\n    from swarm.tasks.workers import sandbox\nexcept"
        " ImportError as error:\n    sys.exit(f'skip: {error}')\nwords = sandbox.sandboxed(['/usr/bin/id',"
        " '-u'], sandbox.ProcessLimits(processes=8))\nassert '--unshare-user' in words\nsubprocess.run(words,"
        " env=sandbox.environment(), check=True)\n"
    )
    done = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, check=False)
    if done.stderr.startswith("skip:"):
        pytest.skip(f"Debian's Python cannot import this package: {done.stderr[6:].strip()}")
    assert done.stdout.strip() == "65534", done.stderr


# --- what is there ------------------------------------------------------------------------------------------


def tops() -> set[str]:
    """First parts of the paths of Python and of this package."""
    return {path.parts[1] for path in (*sandbox._interpreter(), sandbox.PACKAGE)}


def tmp_python_parts() -> set[str]:
    return {path.parts[2] for path in (*sandbox._interpreter(), sandbox.PACKAGE) if path.parts[1] == "tmp"}
