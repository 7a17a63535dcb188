"""This machine's hardware: a short description for the roster and the dashboard, and bytes for estimates.

Free memory is what a new process can use now: the kernel's estimate, or a control group's limit when that is
lower. GPUs are read from `nvidia-smi`, since CUDA itself must not start in a process that forks later. Not
handled: slices of a GPU (MIG) and GPUs of other makers; a machine with those counts as one without a GPU.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from swarm.processes.processors import processors
from swarm.settings.peer_limits import Limits

PATIENCE = 20.0
"""Seconds for nvidia-smi: a tenth usually, several when the driver has to start."""

NOT_LIMITED = 1 << 60
"""Bytes from which a limit means none: a control group of version 1 without a limit gives a number near
2^63."""

_GROUPS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Files of control groups, version 2 and version 1: limit, usage, details of the usage."""

_PARTS = re.compile(r"\b(nvidia|amd|geforce|tesla|pcie|sxm\d?|nvl|hbm\w*|\d+ ?gb)\b", re.IGNORECASE)
"""Parts of a GPU's name that are left out: maker, socket, and memory, which is shown beside the name."""


class Gpu(NamedTuple):
    name: str
    """For example `H100`."""
    total: int
    """Bytes."""
    free: int


class Machine(NamedTuple):
    gpus: tuple[Gpu, ...]
    cores: int
    ram: int
    """Bytes in all, or the control group's share."""
    free: int
    """Bytes that a new process can use without another one being swapped out."""

    def __str__(self) -> str:
        return f"{_gpus(self.gpus) or _cores(self.cores)}, {_gib(self.ram)} GB RAM"

    @property
    def device(self) -> str:
        """The name of the device that one process computes on; measurements are kept under it."""
        return f"{self.gpus[0].name} {_gib(self.gpus[0].total)} GB" if self.gpus else _cores(self.cores)


def describe() -> str:
    """For example `2 x H100 80 GB, 512 GB RAM` or `2 cores x86_64, 24 GB RAM`. GPUs only where the caller's
    role has loaded torch."""
    torch, gpus = sys.modules.get("torch"), []
    if torch is not None and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            gpus.append(Gpu(short(found.name), found.total_memory, 0))
    return str(Machine(tuple(gpus), processors(), *memory()))


def machine() -> Machine:
    """Ask the system for this machine's hardware; starts neither torch nor CUDA."""
    return Machine(_nvidia(os.environ), processors(), *memory())


def lent(machine: Machine, limits: Limits) -> Machine:
    """What of a machine a peer with these limits may use."""
    ram = int(limits.memory * (1 << 30)) or machine.ram
    gpus = tuple(
        Gpu(gpu.name, int(limits.gpu_memory * gpu.total), min(gpu.free, int(limits.gpu_memory * gpu.total)))
        for gpu in machine.gpus
    )
    return machine._replace(gpus=gpus, ram=min(machine.ram, ram), free=min(machine.free, ram))


def memory(meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """(total, free) bytes of RAM: the machine's, or those that the control group of a container leaves; (0,
    0) where unknown."""
    try:
        said = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo.read_text(), re.MULTILINE))
        total, free = (int(said[name]) << 10 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError):
        return 0, 0
    for limit, used, detail in _GROUPS:
        allowed, taken = _number(groups / limit), _number(groups / used) or 0
        if allowed is not None and allowed < NOT_LIMITED:
            total, free = min(total, allowed), min(free, max(0, allowed - taken + _cached(groups / detail)))
    return total, free


def disk(folder: Path) -> int:
    """Bytes free for `folder`, which exists."""
    return shutil.disk_usage(folder).free


def short(name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `H100`."""
    return " ".join(_PARTS.sub(" ", name).replace("-", " ").split())[:24] or name[:24]


def _nvidia(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order."""
    if (program := shutil.which("nvidia-smi")) is None:
        return ()
    words = [program, "--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = (
        [[cell.strip() for cell in line.split(",")] for line in ran.stdout.splitlines()]
        if ran.returncode == 0
        else []
    )
    found = {}
    for row in rows:
        if len(row) == 5 and row[3].isdigit() and row[4].isdigit():
            found[row[0]] = found[row[1]] = Gpu(short(row[2]), int(row[3]) << 20, int(row[4]) << 20)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found[row[0]] for row in rows if row[0] in found)
    # CUDA uses the names up to the first one that it does not know.
    return tuple(
        found[name] for name in itertools.takewhile(found.__contains__, map(str.strip, visible.split(",")))
    )


def _gpus(gpus: tuple[Gpu, ...]) -> str:
    kinds = [f"{gpu.name} {_gib(gpu.total)} GB" for gpu in gpus]
    counted = [(kinds.count(kind), kind) for kind in dict.fromkeys(kinds)]
    return " + ".join(kind if count == 1 else f"{count} x {kind}" for count, kind in counted)


def _cores(count: int) -> str:
    return f"{count} cores {platform.machine()}"


def _gib(count: int) -> int:
    """Bytes as rounded GiB, which are the GB of a GPU's product name: a card of "80 GB" has 79.6 GiB."""
    return round(count / (1 << 30))


def _cached(stat: Path) -> int:
    """Bytes of the file cache: a control group counts them as used, but the kernel drops them for a
    program."""
    try:
        found = re.search(r"^(?:total_)?inactive_file (\d+)$", stat.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _number(path: Path) -> int | None:
    """The number in a file; None where it is missing or says `max`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
