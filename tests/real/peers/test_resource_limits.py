"""What a guest may take is kept, and what its owner says is done: with real processes and files."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from places import ROOT
from still_host import still_host

from peers.build import run_folder
from peers.cli import main
from peers.errors import DONE, USAGE, CannotHere
from peers.fit import hardware
from peers.runtime.host import Host
from peers.runtime.limits import idle, machine_use, pause, resource_limits
from peers.runtime.limits.machine_use import CpuTicks
from peers.runtime.peer_folder import Place
from swarm import PROTOCOL
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.membership import identity
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import Config, DelayLaw, Peer, Run
from swarm.settings.loading import run_dict
from swarm.settings.peer_limits import Limits
from swarm.sim.clock import run as run_virtual
from swarm.sim.links import SimLinks
from swarm.types import Digest

MB = 1 << 20
CORES = len(os.sched_getaffinity(0))


def folder(path: Path, name: str = "guests", protocol: int = PROTOCOL, **newer: object) -> Path:
    """A run's folder, as `swarm start` leaves it, with an owner's key; `newer` are settings that this program
    does not know."""
    owner = identity.open_key(path / "owner.key").public.hex()
    first, settings = Digest("0" * 64), run_dict(Run(name=name)) | newer
    spec = Spec(protocol=protocol, run=settings, owner=owner, files={}, genesis=first, release_size=1)
    run_folder.keep_spec(path, wire.encode(spec))
    return path


# --- processor and memory: real processes -------------------------------------------------------------------

BURNERS = """
import os, sys
from peers.runtime.limits import resource_limits
from swarm.settings.peer_limits import Limits
resource_limits.begin(Limits(cpu=0.01, nice=7))
burn = "import time; end = time.monotonic() + 1.5\\nwhile time.monotonic() < end: pass"
began = os.times().elapsed
pids = [os.spawnl(os.P_NOWAIT, sys.executable, "python", "-c", burn) for _ in range(3)]
print(len(os.sched_getaffinity(pids[0])), os.getpriority(os.PRIO_PROCESS, pids[0]))
for pid in pids:
    os.waitpid(pid, 0)
used = os.times()
print((used.children_user + used.children_system) / (used.elapsed - began))
"""


def test_what_a_limited_peer_starts_stays_on_its_cores_and_has_its_priority() -> None:
    said = subprocess.run(
        [sys.executable, "-c", BURNERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert said[:2] == ["1", "7"]
    assert float(said[2]) <= 1.1, "cores that three busy processes took"


def started(program: str) -> subprocess.Popen[str]:
    """A Python program, once it has said a line."""
    ran = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert ran.stdout is not None and ran.stdout.readline()
    return ran


def test_memory_is_that_of_a_process_and_all_below_it() -> None:
    inner = f"held = b'x' * {64 * MB}; print(1, flush=True); input()"
    outer = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {inner!r}],"
        " stdout=subprocess.PIPE, stdin=subprocess.PIPE); p.stdout.readline(); print(1, flush=True);"
        " import time; time.sleep(600)"
    )
    ran = started(outer)
    try:
        assert 64 * MB < machine_use.memory({ran.pid}) < 256 * MB
    finally:
        ran.kill()
        ran.wait()


def test_processor_time_of_others_is_told_from_ours() -> None:
    ran = started("print(1, flush=True)\nwhile True: pass")
    try:
        before = machine_use.times({ran.pid})
        while (after := machine_use.times({ran.pid})).ours < before.ours + 20:  # ticks, a fifth of a second
            time.sleep(0.05)
        without = after._replace(ours=before.ours)
        assert without.others_since(before) > after.others_since(before) >= 0.0
    finally:
        ran.kill()
        ran.wait()


def test_a_machine_is_taken_for_what_of_it_is_lent() -> None:
    whole = hardware.Machine((hardware.Gpu("H100", 80 * 1024 * MB, 70 * 1024 * MB),), 8, 64 << 30, 32 << 30)
    lent = hardware.lent(whole, Limits(memory=4, gpu_memory=0.5))
    assert (lent.ram, lent.free) == (4 << 30, 4 << 30)
    assert lent.gpus == (hardware.Gpu("H100", 40 * 1024 * MB, 40 * 1024 * MB),)
    assert hardware.lent(whole, Limits()) == whole


# --- when it rests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "works"),
    [
        ("", range(24)),
        ("22-7", (22, 23, 0, 1, 2, 3, 4, 5, 6)),
        ("9-17:00", range(9, 17)),
        ("7-7", range(24)),
        ("18:45-20:15", (19, 20)),
    ],
)
def test_hours_are_those_of_this_machine_and_may_pass_midnight(hours: str, works: range) -> None:
    at = [time.mktime((2025, 6, 15, hour, 0, 0, 0, 0, -1)) for hour in range(24)]
    assert [hour for hour in range(24) if resource_limits.within(hours, at[hour])] == sorted(works)


def test_others_that_are_quiet_for_a_minute_let_it_go_on() -> None:
    use, every, taken, ours = resource_limits.OthersUse(0.25), 0, 0, 0
    uses = {}
    for second in range(0, 200, 5):
        every += 1000
        taken += 500 if 50 <= second < 100 else 0
        ours += 300
        uses[second] = use.take(float(second), CpuTicks(every, every - taken - ours, ours))
    rests = [second for second, used in uses.items() if used]
    assert rests[0] in (50, 55, 60) and 150 <= rests[-1] <= 170


def supply(path: Path, **says: str) -> None:
    path.mkdir()
    for name, text in says.items():
        (path / name).write_text(f"{text}\n")


def test_a_battery_that_discharges_without_mains_feeds_the_machine(tmp_path: Path) -> None:
    assert not machine_use.on_battery(tmp_path / "none")
    supply(tmp_path / "hid-mouse", type="Battery", scope="Device", status="Discharging")
    supply(tmp_path / "AC", type="Mains", online="0")
    assert not machine_use.on_battery(tmp_path)
    supply(tmp_path / "BAT0", type="Battery", status="Discharging")
    assert machine_use.on_battery(tmp_path)
    (tmp_path / "AC" / "online").write_text("1\n")
    assert not machine_use.on_battery(tmp_path)


def network() -> MemoryNetwork:
    return MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1)))


def guest(
    limits: Limits, path: Path, role: Role = Role.SAMPLER
) -> tuple[Host, resource_limits.ResourceLimits]:
    host = still_host(network(), "guest", role, Config(peer=Peer(limits=limits)))
    return host, resource_limits.ResourceLimits(host, host.pause_gate, path, path)


def watched(limits: Limits, path: Path, until: Callable[[Host], bool], role: Role = Role.SAMPLER) -> Host:
    """A host whose manners are watched, once `until` holds."""

    async def watch() -> Host:
        host, kept = guest(limits, path, role)
        watching = asyncio.create_task(kept.watch())
        async with asyncio.timeout(60):
            while not until(host):
                await asyncio.sleep(0.1)
        watching.cancel()
        if host.stop.is_set():
            kept.check()
        return host

    return run_virtual(watch())


def test_a_pause_holds_for_all_peers_that_compute_and_for_those_started_later(tmp_path: Path) -> None:
    pause.keep(tmp_path, math.inf)
    host = watched(Limits(), tmp_path, lambda host: host.pause_gate.reason is not None)
    assert host.pause_gate.reason is not None and host.pause_gate.reason.phase is Phase.PAUSED

    async def seed() -> None:
        host, kept = guest(Limits(), tmp_path, Role.SEED)
        kept.look()
        assert host.pause_gate.reason is None, "it serves"

    run_virtual(seed())
    pause.end(tmp_path)
    watched(Limits(), tmp_path, lambda host: host.pause_gate.reason is None)


def test_a_peer_that_rests_says_why(tmp_path: Path) -> None:
    pause.keep(tmp_path, math.inf)

    async def rest() -> None:
        host, kept = guest(Limits(), tmp_path)
        kept.look()
        resting = asyncio.create_task(host.pause_gate.waited())
        await asyncio.sleep(1)
        assert (cause := idle.of(host)) and cause.short == "it is paused until `swarm resume`"
        pause.end(tmp_path)
        kept.look()
        assert await resting and idle.of(host) is None

    run_virtual(rest())


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("which", [".", "peers/sampler-1"])
def test_a_peer_whose_folder_is_moved_or_removed_ends_with_what_to_do(
    tmp_path: Path, moved: bool, again: bool, which: str
) -> None:
    run, own = tmp_path / "run", tmp_path / "run" / "peers" / "sampler-1"
    own.mkdir(parents=True)

    async def watch() -> None:
        host = still_host(network(), "guest", Role.SAMPLER, Config())
        watching = asyncio.create_task(
            resource_limits.ResourceLimits(host, host.pause_gate, run, own).watch()
        )
        await asyncio.sleep(10)
        assert not watching.done()
        (run / which).rename(tmp_path / "elsewhere")
        gone = Place(run / which)
        assert not gone.is_here(), "it was moved before this peer looked for the first time"
        if not moved:
            shutil.rmtree(tmp_path / "elsewhere")
        if again:  # the peer writes there before it looks
            own.mkdir(parents=True)
        with pytest.raises(
            CannotHere, match=r"was moved or removed while its peer ran.* goes on from what it"
        ):
            await watching

    run_virtual(watch())


def test_a_pause_ends_at_its_time_and_a_damaged_one_by_hand(tmp_path: Path) -> None:
    pause.keep(tmp_path, 100.0)
    assert pause.until(tmp_path, 99.0) == 100.0 and pause.until(tmp_path, 100.0) is None
    (tmp_path / pause.PAUSE).write_bytes(b"\x00")
    assert pause.until(tmp_path, 1e12) == math.inf


def test_outside_of_its_hours_a_peer_is_limited(tmp_path: Path) -> None:
    async def look() -> None:
        now = time.localtime()
        hours = f"{(now.tm_hour + 2) % 24}-{(now.tm_hour + 3) % 24}"
        host, kept = guest(Limits(hours=hours), tmp_path)
        kept.look()
        assert host.pause_gate.reason is not None
        assert host.pause_gate.reason.phase is Phase.LIMITED and hours in host.pause_gate.reason.text

    run_virtual(look())


@pytest.mark.parametrize("off", [-7200.0, 7200.0])
def test_a_pause_and_hours_go_by_the_machines_clock_also_where_that_was_set_since_the_start(
    tmp_path: Path, off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look() -> None:
        wall = still_host(network(), "clock", Role.SAMPLER).now() + off
        monkeypatch.setattr(time, "time", lambda: wall)
        hour = time.localtime(wall).tm_hour
        host, kept = guest(Limits(hours=f"{hour}-{(hour + 1) % 24}"), tmp_path)
        pause.keep(tmp_path, wall + 3600.0)
        kept.look()
        assert host.pause_gate.reason is not None and host.pause_gate.reason.phase is Phase.PAUSED
        pause.keep(tmp_path, wall - 1.0)
        kept.look()
        assert host.pause_gate.reason is None, "the pause is over, and these are its hours"

    run_virtual(look())


@pytest.mark.parametrize(
    ("limits", "says"), [(Limits(memory=0.001), "GB RAM"), (Limits(disk=0.001), "GB on the disk")]
)
def test_a_peer_that_has_more_than_it_may_leaves_and_says_the_figures(
    tmp_path: Path, limits: Limits, says: str
) -> None:
    (tmp_path / "blobs").write_bytes(os.urandom(4 * MB))
    with pytest.raises(CannotHere, match=says):
        watched(limits, tmp_path, lambda host: host.stop.is_set())
    assert watched(Limits(memory=64, disk=1), tmp_path, lambda host: True)


# --- commands -----------------------------------------------------------------------------------------------


def test_pause_and_resume_say_until_when_and_status_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--folder", str(folder(tmp_path / "run")))
    assert main(["pause", "--for", "2h", *run]) == DONE
    assert "no peer of this folder runs now" in capsys.readouterr().err
    assert 7000 < (pause.until(tmp_path / "run", time.time()) or 0) - time.time() <= 7200
    assert main(["status", *run]) == DONE
    assert "are paused until" in capsys.readouterr().err
    assert main(["resume", *run]) == main(["resume", *run]) == DONE
    assert "is not paused" in capsys.readouterr().err
    assert main(["pause", "--folder", str(tmp_path)]) == USAGE


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"INSTALLER": "pip"}, "pip install --upgrade gepo-swarm"),
        ({"INSTALLER": "uv"}, "uv pip install --upgrade gepo-swarm"),
        (
            {
                "INSTALLER": "pip",
                "direct_url.json": {"url": "file:///a/my%20swarm", "dir_info": {"editable": True}},
            },
            "git -C /a/my swarm pull",
        ),
        (
            {"INSTALLER": "pip", "direct_url.json": {"url": "https://x.y/swarm", "vcs_info": {"vcs": "git"}}},
            "pip install --upgrade 'gepo-swarm @ git+https://x.y/swarm'",
        ),
    ],
)
def test_the_line_is_that_of_the_way_in_which_it_was_installed(
    tmp_path: Path, files: dict[str, object], line: str
) -> None:
    info = tmp_path / "gepo_swarm-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gepo-swarm\nVersion: 9.9\n")
    for name, said in files.items():
        (info / name).write_text(said if isinstance(said, str) else json.dumps(said))
    program = "from swarm import extras; print(extras.upgrade())"
    said = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; {program}"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == line
