"""`swarm doctor`: checks whether this machine can take part, and says what to do if not.

Each check is a function that returns a CheckResult (ok, warn or fail; the finding; what to do). A warning
does not keep a peer from running. Installed libraries are tried on a small computation, in a process of its
own. Exit code 0, or 3 when a check failed. Nothing is sent without an invite; with one, peers of the run are
queried too (peers.commands.doctor.run_checks): 4 where none answers, 5 where they refuse.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from dashboard.text import one_line
from peers.commands.doctor.findings import CheckResult
from peers.errors import CANNOT, DONE, SENTENCE, drawn, say
from swarm import extras
from swarm.membership import invite as invites
from swarm.processes.processors import processors as cores
from swarm.settings.config import Config, EngineSettings, Optimizer, Peer, Run, Sampling

MEMORY = 1 << 30
"""Bytes for a learner or sampler with its model, its p2pd and hivemind's forked children: 300 to 600 MiB
each."""

TASKS = 60
"""Threads and processes of a peer with all of its children: with 24 it cannot start."""

UP_TASKS = 4 * TASKS
"""Of `swarm up` with a seed, a learner, a sampler and an evaluator."""

CONTROL_GROUPS = Path("/sys/fs/cgroup")

DISK = 2 << 30
"""Bytes for four releases of a 186M model in bf16, and a checkpoint with the optimizer's state."""

P2PD_PATIENCE = 20.0
"""Seconds for p2pd to print its options: milliseconds usually, but a cold disk reads 60 MB first."""


class NeededPackage(NamedTuple):
    package: str
    at_least: tuple[int, ...]
    below: tuple[int, ...]
    why: str


TRIAL = Config(
    run=Run(sampling=Sampling(group_size=2, max_tokens=2), optimizer=Optimizer(lr=1e-3)),
    peer=Peer(engine=EngineSettings(name="hf", tasks=1)),
)
"""Settings of the trial of a tiny model."""

TRIAL_LIMIT = 300.0
"""Seconds for the trial and its model: ten on an idle processor; a busy machine or a cold disk adds import
time."""

NEWEST = "newer ones were not tried"

NEEDS = (
    NeededPackage("torch", (2, 9), (2, 14), f"older ones lack functions that the learner uses; {NEWEST}"),
    NeededPackage("transformers", (5, 6), (5, 25), f"models have other names in others; {NEWEST}"),
    NeededPackage("peft", (0, 18), (0, 22), f"adapters are imported otherwise in others; {NEWEST}"),
    NeededPackage("hivemind", (1, 1, 12), (1, 1, 13), "private parts of exactly this one are used"),
    NeededPackage(
        "numpy", (1, 26), (2, 4), "newer ones break hivemind's 8-bit codecs while averaging reports success"
    ),
    NeededPackage("protobuf", (5, 29, 6), (99,), "older ones cannot read the messages of p2pd"),
)


ASKED_OTHERS = ("clock",)
"""Checks that others answer better."""


def main(folder: Path | None, as_json: bool, word: str = "", config: Config | None = None) -> int:
    """Print the findings; exit code 0, or 3 when one failed. With an invite also the findings about its run:
    then 4 where no peer answers, and 5 where the run refuses this machine. Raises InviteError."""
    invite = invites.read(word, time.time()) if word else None
    findings, code = examine(folder), DONE
    if invite is not None and importlib.util.find_spec("hivemind"):
        from peers.commands.doctor import run_checks

        asked = run_checks.examine(invite, config or Config())
        findings = [one for one in findings if one.check not in ASKED_OTHERS] + asked.findings
        code = asked.code
    failed = sum(finding.level == "fail" for finding in findings)
    if as_json:
        print(
            json.dumps(
                {"able": not failed, "findings": [finding._asdict() for finding in findings]}, indent=2
            )
        )
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for finding in findings:
            print(_line(finding, colour), file=drawn(sys.stdout))
        said = (
            f"cannot take part yet: {failed} of {len(findings)} checks failed" if failed else "can take part"
        )
        say(f"this machine {said}")
    return code or (CANNOT if failed else DONE)


def examine(folder: Path | None) -> list[CheckResult]:
    place = folder if folder is not None else _state()
    absent = extras.absent(extras.PEER)
    checks: list[Callable[[], CheckResult]] = [
        python,
        system,
        *([partial(peer_extra, absent)] if absent else []),
        *(partial(package, need) for need in NEEDS if need.package not in absent),
        processors,
        memory,
        tasks,
        partial(disk, place),
        *([] if "hivemind" in absent else [p2pd]),
        loopback,
        partial(keys, place),
        clock,
        *([] if "transformers" in absent else [engines]),
        *([] if "torch" in absent else [accelerator]),
        *([] if absent else [model]),
    ]
    return [check() for check in checks]


def python() -> CheckResult:
    said = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 13):
        return CheckResult("python", "ok", said)
    return CheckResult("python", "fail", said, "install Python 3.11 or 3.12")


def system() -> CheckResult:
    said = f"{platform.system()} {platform.machine()}"
    if sys.platform == "linux":
        return CheckResult("system", "ok", said)
    level = "warn" if sys.platform == "darwin" else "fail"
    return CheckResult(
        "system",
        level,
        said,
        "p2pd is built for Linux and macOS, and only Linux is tested: use Linux or WSL 2",
    )


def peer_extra(absent: Sequence[str]) -> CheckResult:
    """One finding for all of an extra that is not installed: one line installs it."""
    return CheckResult(
        extras.PEER,
        "fail",
        f"without {', '.join(absent)} this machine reads and shows runs, and takes part in none",
        extras.install(extras.PEER),
    )


def package(need: NeededPackage) -> CheckResult:
    wanted = f">={_dotted(need.at_least)},<{_dotted(need.below)}"
    try:
        version = importlib.metadata.version(need.package)
    except importlib.metadata.PackageNotFoundError:
        return CheckResult(need.package, "fail", "not installed", f"pip install '{need.package}{wanted}'")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
    if need.at_least <= numbers < need.below:
        return CheckResult(need.package, "ok", version)
    return CheckResult(need.package, "fail", version, f"pip install '{need.package}{wanted}': {need.why}")


def processors() -> CheckResult:
    if (count := cores()) > 1:
        return CheckResult("processors", "ok", f"{count}")
    return CheckResult(
        "processors", "warn", "1", "take part as one peer; `swarm up` shares the core between all of them"
    )


def memory() -> CheckResult:
    free = _free_memory()
    if free is None:
        return CheckResult(
            "memory", "warn", "cannot be read on this system", f"each peer needs {_size(MEMORY)} free"
        )
    said = f"{_size(free)} free, a peer needs about half of {_size(MEMORY)} and its model"
    if free >= MEMORY:
        return CheckResult("memory", "ok", said)
    return CheckResult(
        "memory",
        "fail" if free < MEMORY // 2 else "warn",
        said,
        "close other programs, or use a larger machine",
    )


def tasks() -> CheckResult:
    """Check how many threads and processes this user and this container may still start."""
    left, limit = min(_tasks_left(), default=(math.inf, ""))
    if left == math.inf:
        return CheckResult("processes", "ok", "without a limit")
    said = f"{left:.0f} more threads and processes by {limit}, a peer needs {TASKS}"
    if left >= UP_TASKS:
        return CheckResult("processes", "ok", said)
    return CheckResult(
        "processes",
        "fail" if left < TASKS else "warn",
        said,
        "raise `ulimit -u`, a container's `--pids-limit`, for a service TasksMax=",
    )


def disk(place: Path) -> CheckResult:
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    said = f"{_size(free)} free for {place}"
    if not os.access(there, os.W_OK):
        return CheckResult(
            "disk", "fail", f"{there} cannot be written", "check its owner, or name another with --folder"
        )
    if free >= DISK:
        return CheckResult("disk", "ok", said)
    return CheckResult(
        "disk",
        "fail" if free < DISK // 8 else "warn",
        said,
        "free some space, or name another folder with --folder",
    )


def p2pd() -> CheckResult:
    """Check hivemind's libp2p daemon: it is installed, runs here and knows GossipSub."""
    hivemind = importlib.util.find_spec("hivemind")
    assert hivemind is not None and hivemind.origin is not None
    binary = Path(hivemind.origin).parent / "hivemind_cli" / "p2pd"
    if not binary.exists():
        return CheckResult(
            "p2pd", "fail", f"{binary} is missing", "install hivemind from its wheel, which carries p2pd"
        )
    try:
        ran = subprocess.run(
            [binary, "-help"], capture_output=True, text=True, timeout=P2PD_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult(
            "p2pd", "fail", f"{binary} does not run: {error}", "check that the folder is not mounted noexec"
        )
    if "-pubsubRouter" not in ran.stdout + ran.stderr:
        return CheckResult(
            "p2pd", "fail", f"{binary} has no GossipSub", "pip install --force-reinstall hivemind==1.1.12"
        )
    return CheckResult("p2pd", "ok", "runs, with GossipSub")


def loopback() -> CheckResult:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            return CheckResult("loopback", "ok", "a TCP port opens and answers")
    except OSError as error:
        return CheckResult(
            "loopback", "fail", f"no TCP port opens on 127.0.0.1: {error}", "allow loopback in the firewall"
        )


def keys(place: Path) -> CheckResult:
    """Check that no other user may read the key files of the runs under `place`."""
    found = [
        path
        for run in ("", "runs/*/")
        for name in ("peers/*/key", "owner.key")
        for path in place.glob(run + name)
    ]
    loose = [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if loose:
        return CheckResult(
            "keys", "fail", f"{loose[0]} can be read by others", f"chmod 600 {' '.join(map(str, loose))}"
        )
    if foreign := [path for path in found if not os.access(path, os.R_OK)]:
        return CheckResult("keys", "fail", f"{foreign[0]} cannot be read by you", "check its owner")
    return CheckResult(
        "keys",
        "ok",
        f"{len(found)}, readable by you alone" if found else "none yet; the first start makes one",
    )


def clock() -> CheckResult:
    if Path("/run/systemd/timesync/synchronized").exists():
        return CheckResult("clock", "ok", "synchronised by systemd")
    todo = "keep NTP on: 3 s of difference are refused at the join"
    return CheckResult("clock", "warn", "cannot be checked without asking others", todo)


def engines() -> CheckResult:
    if importlib.util.find_spec("vllm") is not None:
        return CheckResult("engines", "ok", "transformers, vllm")
    return CheckResult("engines", "ok", "transformers; vllm is not installed (the extra `vllm`, for GPUs)")


def accelerator() -> CheckResult:
    try:
        import torch
    except (ImportError, OSError) as error:
        return CheckResult(
            "gpu", "fail", f"torch cannot be imported: {error}", "reinstall torch for this machine"
        )
    if not torch.cuda.is_available():
        return CheckResult("gpu", "ok", "none; everything runs on the processor")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return CheckResult("gpu", "ok", ", ".join(names))


def model() -> CheckResult:
    """Check that a tiny model samples tokens and takes steps: versions in range may not fit each other."""
    from peers.commands.fit import probe

    with tempfile.TemporaryDirectory() as folder:
        job = probe.Job(what="tiny", folder=folder, config=TRIAL, prompt=4)
        tried = probe.run(job, TRIAL_LIMIT)
        if not tried.failed:
            tried = probe.run(msgspec.structs.replace(job, what="trial"), TRIAL_LIMIT)
    if not tried.failed:
        return CheckResult(
            "model", "ok", "a tiny one sampled a token and took a step, whole and with an adapter"
        )
    versions = " ".join(f"'{name}=={version}'" for name, version in extras.TRIED.items())
    here = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in extras.TRIED)
    todo = "free some memory, or close other programs"
    if tried.failed == "other":
        todo = f"pip install {versions}: these were tried"
    return CheckResult("model", "fail", f"a tiny one fails with {here}: {tried.detail}", todo)


def _state() -> Path:
    import platformdirs

    return platformdirs.user_state_path("swarm")


def _free_memory() -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _tasks_left() -> Iterator[tuple[float, str]]:
    """(number of further processes and threads that a limit allows, the limit's name), for each limit that is
    set."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is not held to it
        yield soft - _own_tasks(), "ulimit -u"
    for folder in _control_groups():
        try:
            most, now = ((folder / name).read_text().strip() for name in ("pids.max", "pids.current"))
        except OSError:
            continue  # the root group has no limit
        if most.isdigit():
            yield int(most) - int(now), f"{folder / 'pids.max'}"


def _own_tasks() -> int:
    """Threads of this user's processes."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            count += len(os.listdir(process / "task")) if process.stat().st_uid == os.geteuid() else 0
    return count


def _control_groups() -> Iterator[Path]:
    """Folders of this process's control groups that may limit its tasks, and of those above."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, kinds, path in (line.split(":", 2) for line in lines):
        if kinds in ("", "pids"):
            top = CONTROL_GROUPS / kinds
            mine = top / path.lstrip("/")
            yield from (one for one in (mine, *mine.parents) if one.is_relative_to(top))


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


_COLOURS = {"ok": "\033[32m", "warn": "\033[33m", "fail": "\033[31m"}


def _line(finding: CheckResult, colour: bool) -> str:
    level = f"{_COLOURS[finding.level]}{finding.level:4}\033[0m" if colour else f"{finding.level:4}"
    said = f"{finding.check:12} {finding.found}" + (f" -> {finding.todo}" if finding.todo else "")
    return f"{level} {one_line(said, SENTENCE)}"
