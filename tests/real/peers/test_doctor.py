"""The doctor finds what it says it finds, and each failure says what to do."""

import asyncio
import importlib.metadata
import json
import os
import re
import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from forks import fork_children
from places import ROOT

from peers import cli, errors
from peers.commands.doctor import machine_checks, run_checks
from peers.commands.fit import probe
from swarm.core.membership import UNSHOWN
from swarm.membership import invite
from swarm.membership.identity import open_key
from swarm.net.libp2p.node import Node
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.types import Digest, PeerId

SOMEBODY = "12D3KooWSmGyvUY4BRQK8E9BgUKp3pS4PLfxCSbvAJK5p7mDFuUX"


def test_this_machine_can_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_children(monkeypatch, probe, lambda _: probe.main())
    assert machine_checks.main(tmp_path, as_json=True) == errors.DONE
    said = json.loads(capsys.readouterr().out)
    assert said["able"]
    found = {finding["check"]: finding["level"] for finding in said["findings"]}
    assert {"python", "torch", "hivemind", "numpy", "p2pd", "loopback", "disk", "gpu", "clock"} <= set(found)
    assert found["p2pd"] == found["loopback"] == found["numpy"] == found["model"] == "ok"


@pytest.mark.nightly
def test_packages_in_range_with_which_no_model_learns_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As peft did, which reads what it does not import, where no other package had imported it."""
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "__init__.py").write_text(
        "raise AttributeError(\"module 'torch.distributed' has no attribute 'tensor'\")\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = machine_checks.model()
    assert found.level == "fail" and "has no attribute 'tensor'" in found.found
    assert f"peft {importlib.metadata.version('peft')}" in found.found
    assert "'transformers==5." in found.todo and found.todo.endswith("these were tried")


def test_a_failure_is_exit_code_3_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        machine_checks,
        "loopback",
        lambda: machine_checks.CheckResult("loopback", "fail", "closed", "open it"),
    )
    monkeypatch.setattr(
        machine_checks, "accelerator", lambda: machine_checks.CheckResult("gpu", "ok", "none")
    )
    monkeypatch.setattr(machine_checks, "model", lambda: machine_checks.CheckResult("model", "ok", "learns"))
    assert machine_checks.main(tmp_path, as_json=False) == errors.CANNOT
    said = capsys.readouterr()
    assert "fail loopback     closed -> open it\n" in said.out
    assert "1 of " in said.err
    assert "\033" not in said.out


@pytest.mark.parametrize(
    ("version", "level"),
    [("1.25.9", "fail"), ("1.26", "ok"), ("2.3.5", "ok"), ("2.4.0", "fail"), ("2.4.0rc1", "fail")],
)
def test_the_known_trap_of_numpy_is_found(monkeypatch: pytest.MonkeyPatch, version: str, level: str) -> None:
    monkeypatch.setattr(machine_checks.importlib.metadata, "version", lambda name: version)
    need = next(need for need in machine_checks.NEEDS if need.package == "numpy")
    finding = machine_checks.package(need)
    assert finding.level == level
    assert level == "ok" or "pip install 'numpy>=1.26,<2.4'" in finding.todo


def test_the_doctor_asks_for_the_versions_that_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["peer"]]
    floors = dict(re.findall(r"^([a-z]+)[>=]=([\d.]+)", "\n".join(asked), re.MULTILINE))
    for need in machine_checks.NEEDS:
        assert floors[need.package] == ".".join(map(str, need.at_least)), need.package


def word(port: int) -> str:
    return invite.make(Digest("0" * 64), [f"/ip4/127.0.0.1/tcp/{port}/p2p/{SOMEBODY}"])


def test_a_word_at_which_nobody_answers_is_exit_code_4_with_the_reason_of_each_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_checks, "model", lambda: machine_checks.CheckResult("model", "ok", "learns"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert cli.main(["doctor", "--json", "--folder", str(tmp_path), word(port)]) == errors.UNREACHED
    said = json.loads(capsys.readouterr().out)
    (told,) = [one for one in said["findings"] if one["check"] == "address"]
    assert told["found"] == f"127.0.0.1 port {port}: connection refused (nothing listens on that port)"
    assert "`swarm invite`" in told["todo"]


def test_a_damaged_word_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(invite.InviteError):
        machine_checks.main(tmp_path, as_json=True, word=word(4000)[:-3])


@pytest.mark.parametrize(("uses", "level", "code"), [(3, "warn", 0), (0, "fail", 5)])
def test_a_word_for_a_number_of_uses_is_not_used_up_and_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: int, level: str, code: int
) -> None:
    async def refused(*_: object) -> None:
        raise errors.Refusal(f"{UNSHOWN}; ask the run's owner for an invite")

    async def reached(*_: object) -> list[PeerId]:
        return [PeerId(SOMEBODY)]

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(run_checks.spec_transfer, "fetch_spec", refused)
    given = invite.delegate(invite.keyring(bytes(32)), "lab", Role.LEARNER, 1 << 31, uses=uses)
    said = invite.make(
        Digest("0" * 64), [f"/ip4/127.0.0.1/tcp/1/p2p/{SOMEBODY}"], Role.LEARNER, 1 << 31, given
    )
    one = run_checks._Examination(invite.read(said, 0.0), Config(), tmp_path)
    monkeypatch.setattr(one, "_addresses", reached)
    monkeypatch.setattr(one, "_clock", nothing)
    node = cast(Node, SimpleNamespace(mail=SimpleNamespace(guard=None), me=PeerId(SOMEBODY)))
    assert asyncio.run(one._asked(node)) == code
    (found,) = one._found
    assert (found.check, found.level) == ("run", level)
    assert ("does not spend a use of this invite" in found.found) is bool(uses)


def test_a_missing_package_is_named() -> None:
    finding = machine_checks.package(machine_checks.NeededPackage("no-such-package-here", (1,), (2,), ""))
    assert (finding.level, finding.todo) == ("fail", "pip install 'no-such-package-here>=1,<2'")


def test_a_key_that_others_can_read_is_found(tmp_path: Path) -> None:
    key = tmp_path / "runs" / "demo" / "peers" / "seed" / "key"
    open_key(key)
    assert machine_checks.keys(tmp_path).level == "ok"
    key.chmod(0o644)
    finding = machine_checks.keys(tmp_path)
    assert (finding.level, finding.todo) == ("fail", f"chmod 600 {key}")


def test_a_daemon_without_gossip_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "hivemind"
    (package / "hivemind_cli").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    binary = package / "hivemind_cli" / "p2pd"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(machine_checks.sys.modules, "hivemind", raising=False)
    assert "is missing" in machine_checks.p2pd().found
    binary.write_text("#!/bin/sh\necho nothing\n")
    assert "does not run" in machine_checks.p2pd().found
    binary.chmod(0o755)
    assert "has no GossipSub" in machine_checks.p2pd().found


def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = os.statvfs(tmp_path)
    monkeypatch.setattr(machine_checks, "DISK", 8 * usage.f_blocks * usage.f_frsize * 2)
    assert machine_checks.disk(tmp_path / "not" / "yet" / "there").level == "fail"


@pytest.mark.parametrize(("most", "level"), [("40", "fail"), ("200", "warn"), ("4000", "ok"), ("max", "ok")])
def test_a_container_with_few_processes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, level: str
) -> None:
    (tmp_path / "pids.max").write_text(f"{most}\n")
    (tmp_path / "pids.current").write_text("7\n")
    monkeypatch.setattr(machine_checks, "_control_groups", lambda: iter([tmp_path, tmp_path / "above"]))
    monkeypatch.setattr(
        machine_checks.resource, "getrlimit", lambda _: (machine_checks.resource.RLIM_INFINITY,) * 2
    )
    finding = machine_checks.tasks()
    assert finding.level == level
    assert level == "ok" or ("pids.max" in finding.found and "TasksMax" in finding.todo)


def test_a_user_with_few_processes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks.os, "geteuid", lambda: 54321)
    monkeypatch.setattr(machine_checks.resource, "getrlimit", lambda _: (24, 24))
    monkeypatch.setattr(machine_checks, "_control_groups", lambda: iter(()))
    finding = machine_checks.tasks()
    assert finding.level == "fail" and finding.found.startswith("24 more threads and processes by ulimit -u")


def test_a_closed_loopback_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine_checks.socket, "create_server", closed)
    assert machine_checks.loopback().level == "fail"
