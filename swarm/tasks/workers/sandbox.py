"""Sandbox: bubblewrap commands that isolate a program from this machine, and a check that they work.

    bwrap [namespaces, mounts] -- python limits.py LIMITS -- COMMAND

Inside: no network (not even the loopback of the machine), no home, no environment, no other process; /usr,
Python's own folders and this package, read-only; an empty /tmp in memory. A program gets limits on memory,
processes, files and what it writes (`ProcessLimits`), and everything in it dies with the process that started
it. Root changes to an unused user, because the kernel does not count root's processes; other users get a user
namespace.

Not handled: limits on time (the caller ends a program), a bug in the kernel that lets a program out, and
information from timing. On Linux before 5.14 the limit of processes counts all of this user's.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import swarm

PACKAGE = Path(swarm.__file__).resolve().parent
LIMITS = PACKAGE / "tasks" / "workers" / "limits.py"
SCRATCH = 64 << 20
"""Bytes of /tmp, and of /dev/shm, in memory, for files of programs under test."""

PROBE = 20.0
"""Seconds for `bwrap ... true`, which takes a hundredth: a machine that swaps."""

USERS = range(40_000, 60_000)
"""Below what containers map (65536), and where neither people nor services have accounts."""

BOXED = "reward code of a run, gym: and the reward `code` run in bubblewrap here"
TRUST = (
    "or let reward code and gym: run as programs of this user with `--set peer.rewards.code=trust`, or not at"
    " all with `refuse`"
)


class NoSandbox(ValueError):
    """Bubblewrap cannot make a sandbox here. The message gives the reason, and a remedy."""


class ProcessLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of each process; 0 is none. See `swarm.tasks.workers.limits`."""

    memory: int = 0
    """Bytes of address space."""
    files: int = 0
    size: int = 0
    """Bytes of one written file."""
    processes: int = 0
    parent: int = 0
    """Die with this process."""
    user: int = 0


def limited(command: Sequence[str], limit: ProcessLimits) -> list[str]:
    """`command` with limits, seeing all that this process sees."""
    return [sys.executable, "-I", "-S", str(LIMITS), msgspec.json.encode(limit).decode(), *command]


def sandboxed(command: Sequence[str], limit: ProcessLimits) -> list[str]:
    """`command` in a sandbox. Raises NoSandbox. Give it an environment of `environment()`."""
    if why := missing():
        raise NoSandbox(f"{why}, {TRUST}")
    return _wrapped(command, limit)


def environment() -> dict[str, str]:
    """All that a sandboxed program sees of the environment."""
    return {
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(PACKAGE.parent),  # of which only this package is there
        "TOKENIZERS_PARALLELISM": "false",
    }


@functools.cache
def missing() -> str:
    """Why there is no sandbox on this machine, and how to get one; empty when there is. Tries it once."""
    if sys.platform != "linux":
        return f"{BOXED}, which exists on Linux only: join from Linux"
    if shutil.which("bwrap") is None:
        return (
            f"{BOXED}, which is not installed: install it (Debian and Ubuntu: apt-get install bubblewrap;"
            " Fedora: dnf install bubblewrap)"
        )
    try:
        words = _wrapped([sys.executable, "-I", "-S", "-c", ""], ProcessLimits())
        tried = subprocess.run(words, env=environment(), capture_output=True, timeout=PROBE, check=False)
    except NoSandbox as error:
        return str(error)
    except subprocess.TimeoutExpired:
        why = f"no answer within {PROBE:g} s"
    else:
        if tried.returncode == 0:
            return ""
        why = (
            tried.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {tried.returncode}"]
        )[-1]
    return (
        f"bubblewrap is installed but cannot make a sandbox here ({why}): allow user namespaces (sysctl"
        " kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; in a"
        " container its own security options)"
    )


def _wrapped(command: Sequence[str], limit: ProcessLimits) -> list[str]:
    words = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
    ]
    words += ["--unshare-cgroup-try", "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        # The first step inside needs these two to become another user, and loses them by it.
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        limit = msgspec.structs.replace(limit, user=secrets.choice(USERS))
    else:
        words += ["--unshare-user"]
    words += ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            words += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            words += ["--ro-bind", name, name]
    for name in ("/etc/ld.so.cache", "/etc/alternatives"):  # how libraries are found
        words += ["--ro-bind-try", name, name]
    words += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *_scratch("/dev/shm"),
        "--remount-ro",
        "/dev",
        *_scratch("/tmp"),
    ]
    words += _readable([*_interpreter(), PACKAGE])  # after /tmp, where one of them may lie
    words += ["--remount-ro", "/", "--chdir", "/tmp", "--", *limited(command, limit)]
    return words


def _scratch(folder: str) -> list[str]:
    """An empty folder in memory that any user may write to."""
    size = ["--size", str(SCRATCH)] if _version() >= (0, 7) else []
    return ["--perms", "1777", *size, "--tmpfs", folder]


@functools.cache
def _version() -> tuple[int, ...]:
    output = subprocess.run(
        ["bwrap", "--version"], capture_output=True, text=True, check=False
    ).stdout.split()
    return tuple(int(part) for part in output[-1].split(".") if part.isdigit()) if output else ()


def _readable(folders: Sequence[Path]) -> list[str]:
    """Binds each folder where it lies, and makes the folders above it with nothing else in them.

    bwrap's own would be closed to all but root.
    """
    words: list[str] = []
    made = {Path("/"), Path("/tmp")}
    bound = {Path("/usr")}
    for folder in dict.fromkeys(folders):
        if bound & {folder, *folder.parents}:
            continue
        above = [parent for parent in reversed(folder.parents) if parent not in made]
        words += [word for parent in above for word in ("--perms", "0755", "--dir", str(parent))]
        words += ["--ro-bind", str(folder), str(folder)]
        made.update(above)
        bound.add(folder)
    return words


def _interpreter() -> list[Path]:
    """The folders of this Python: the environment, the installation behind it, each stop of the links between
    them."""
    folders = [Path(sys.prefix), Path(sys.base_prefix)]
    here = Path(sys.executable)
    while here.is_symlink():
        here = here.parent / here.readlink()
        folders.append(here.parent.parent)
    home = Path.home()
    for folder in folders:
        if folder == Path("/") or folder == home or folder in home.parents:
            raise NoSandbox(
                f"Python is installed in {folder} itself, so that reward code would see all of it: make a"
                " venv"
            )
    return folders
