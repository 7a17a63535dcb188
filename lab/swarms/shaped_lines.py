"""Lines of a given rate between the processes of this machine: a network namespace for each peer.

    peer's namespace [eth0 10.213.8.n] ---veth--- [bridge] in the namespace of the exchange
       token bucket: its uplink                    token bucket: its downlink

`parted` cuts the network in two for a while: some lines lie at a second bridge. Needs root, `ip` and `tc`
(Debian: iproute2). A line has its rate from its first byte on, and no delay of its own: kernels without
`netem` have none to give.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lab.figures.table import Unmeasured

NETWORK = "10.213.8"

BURST = "64kb"
"""Burst of the bucket: the largest packet that a kernel hands over."""

LATENCY = "400ms"
"""How long a packet may wait in a line before it is dropped, as in a home router."""

BRIDGES = ("br0", "br1")
"""All lines lie at the first; those of the smaller part of a parted network at the second."""


class ShapedLines:
    """Use as a context manager."""

    def __init__(self, up: float, down: float) -> None:
        """Rates in Mbit/s, of every line."""
        self._up, self._down = up, down
        self._hub = f"swarm-lines-{os.getpid()}"
        self._namespaces: list[str] = []

    def __enter__(self) -> ShapedLines:
        missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if os.geteuid() != 0 or missing:
            raise Unmeasured(f"lines need root, ip and tc (missing: {', '.join(missing) or 'root'})")
        try:
            self._add(self._hub)
            for bridge in BRIDGES:
                _run("ip", "-n", self._hub, "link", "add", bridge, "type", "bridge")
                _run("ip", "-n", self._hub, "link", "set", bridge, "up")
        except BaseException:
            self._delete()
            raise
        return self

    def __exit__(self, *exit: object) -> None:
        self._delete()

    def line(self, up: float | None = None) -> tuple[list[str], str]:
        """A new line -> the words that run a command at its end, and its address. `up`: its own uplink."""
        number = len(self._namespaces)
        space, device = f"{self._hub}-{number}", f"line{number}"
        self._add(space)
        _run(
            "ip",
            "link",
            "add",
            device,
            "netns",
            self._hub,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            space,
        )
        _run("ip", "-n", self._hub, "link", "set", device, "master", BRIDGES[0], "up")
        _run("ip", "-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        _run("ip", "-n", space, "link", "set", "eth0", "up")
        for where, end, rate in ((space, "eth0", up or self._up), (self._hub, device, self._down)):
            bucket = ["tbf", "rate", f"{rate:g}mbit", "burst", BURST, "latency", LATENCY]
            _run("tc", "-n", where, "qdisc", "add", "dev", end, "root", *bucket)
        return ["ip", "netns", "exec", space], f"{NETWORK}.{number}"

    @contextmanager
    def parted(self, numbers: Sequence[int]) -> Iterator[None]:
        """These lines (the first is 1) reach each other and none of the others."""
        self._move(numbers, BRIDGES[1])
        try:
            yield
        finally:
            self._move(numbers, BRIDGES[0])

    def _move(self, numbers: Sequence[int], bridge: str) -> None:
        for number in numbers:
            _run("ip", "-n", self._hub, "link", "set", f"line{number}", "master", bridge)

    def _add(self, space: str) -> None:
        _run("ip", "netns", "add", space)
        self._namespaces.append(space)
        _run("ip", "-n", space, "link", "set", "lo", "up")

    def _delete(self) -> None:
        for space in self._namespaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def _run(*words: str) -> None:
    """Raises Unmeasured with the command's output."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Unmeasured(f"no lines here: {' '.join(words)}: {done.stderr.strip()}")
