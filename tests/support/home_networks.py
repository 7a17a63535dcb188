"""An internet of network namespaces: public machines on one bridge, and homes behind routers that masquerade
what goes out and drop what comes in.

    [hub: bridge] --- machine 45.9.1.n             a public address
                  --- router  45.9.1.n --- home 192.168.n.2   a NAT
                                           `---- 192.168.n.3  another machine of that home

Needs root, `ip` and `iptables` (Debian: iproute2, iptables). Not handled here: delay and rates.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

NETWORK = "45.9.1"
"""Addresses that count as public; nothing leaves the namespaces."""

NETWORK6 = "2a0f:ff00::"


@dataclass(frozen=True)
class Place:
    """A machine: the words that run a command there, its own address, and that of its way out."""

    space: str
    address: str
    outside: str

    @property
    def inside(self) -> list[str]:
        return ["ip", "netns", "exec", self.space]


class Internet:
    def __init__(self) -> None:
        self._spaces: list[str] = []

    def begin(self) -> None:
        self._hub = self._space("hub")
        _ip("-n", self._hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "br0", "up")

    def machine(self) -> Place:
        """One with a public address."""
        number = len(self._spaces)
        space = self._space(f"m{number}")
        self._plug(space, number)
        return Place(space, f"{NETWORK}.{number}", f"{NETWORK}.{number}")

    def home(self) -> Place:
        """One behind a NAT of its own."""
        number = len(self._spaces)
        router, lan = self._space(f"r{number}"), f"192.168.{number}"
        self._plug(router, number)
        _ip("-n", router, "link", "add", "lan", "type", "bridge")
        _ip("-n", router, "addr", "add", f"{lan}.1/24", "dev", "lan")
        _ip("-n", router, "link", "set", "lan", "up")
        within = ["ip", "netns", "exec", router]
        _run(*within, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for rule in (
            ["-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE"],
            ["-A", "FORWARD", "-i", "lan", "-j", "ACCEPT"],
            ["-A", "FORWARD", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"],
            ["-P", "FORWARD", "DROP"],
            ["-A", "INPUT", "-i", "wan", "-j", "DROP"],
        ):
            _run(*within, "iptables", *rule)
        return self._at_home(router, number, 2)

    def beside(self, home: Place) -> Place:
        """Another machine in the same home, whose router does not lead it back to what it forwards."""
        number = int(home.outside.rpartition(".")[2])
        return self._at_home(self._router(home), number, 3)

    def forward(self, home: Place, port: int) -> None:
        """The home's router forwards a TCP port to it."""
        within, to = ["ip", "netns", "exec", self._router(home)], f"{home.address}:{port}"
        about = ["-i", "wan", "-p", "tcp", "--dport", str(port)]
        _run(*within, "iptables", "-t", "nat", "-A", "PREROUTING", *about, "-j", "DNAT", "--to", to)
        _run(*within, "iptables", "-A", "FORWARD", *about, "-j", "ACCEPT")

    def move(self, place: Place, number: int) -> Place:
        """Give a machine another address in its network, in the place of the one that it has."""
        network = place.address.rpartition(".")[0]
        behind, here = network != NETWORK, ("-n", place.space)
        device = "eth0" if behind else "wan"
        _ip(*here, "addr", "del", f"{place.address}/24", "dev", device)
        _ip(*here, "addr", "add", f"{network}.{number}/24", "dev", device)
        if behind:
            _ip(*here, "route", "replace", "default", "via", f"{network}.1")
        new = f"{network}.{number}"
        return Place(place.space, new, place.outside if behind else new)

    @contextmanager
    def cut(self, place: Place) -> Iterator[None]:
        """The uplink of a machine or of a home's router carries nothing, and nobody is told."""
        port = ("-n", self._hub, "link", "set", f"port{place.outside.rpartition('.')[2]}")
        _ip(*port, "nomaster")
        try:
            yield
        finally:
            _ip(*port, "master", "br0")

    def _router(self, home: Place) -> str:
        return f"swarm-{os.getpid()}-r{home.outside.rpartition('.')[2]}"

    def _at_home(self, router: str, number: int, place: int) -> Place:
        lan, device = f"192.168.{number}", f"port{place}"
        home = self._space(f"h{number}-{place}")
        _ip("link", "add", device, "netns", router, "type", "veth", "peer", "name", "eth0", "netns", home)
        _ip("-n", router, "link", "set", device, "master", "lan", "up")
        _ip("-n", home, "addr", "add", f"{lan}.{place}/24", "dev", "eth0")
        _ip("-n", home, "link", "set", "eth0", "up")
        _ip("-n", home, "route", "add", "default", "via", f"{lan}.1")
        return Place(home, f"{lan}.{place}", f"{NETWORK}.{number}")

    def close(self) -> None:
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def _space(self, name: str) -> str:
        space = f"swarm-{os.getpid()}-{name}"
        _ip("netns", "add", space)
        self._spaces.append(space)
        _ip("-n", space, "link", "set", "lo", "up")
        return space

    def _plug(self, space: str, number: int) -> None:
        device = f"port{number}"
        _ip("link", "add", device, "netns", self._hub, "type", "veth", "peer", "name", "wan", "netns", space)
        _ip("-n", self._hub, "link", "set", device, "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", "wan")
        _ip("-n", space, "addr", "add", f"{NETWORK6}{number}/64", "dev", "wan", "nodad")
        _ip("-n", space, "link", "set", "wan", "up")


@contextmanager
def internet() -> Iterator[Internet]:
    """Skips the test where the machine has no such namespaces."""
    missing = [tool for tool in ("ip", "iptables", "sysctl") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and ip, iptables, sysctl (missing: {', '.join(missing) or 'root'})")
    net = Internet()
    try:
        net.begin()
        yield net
    finally:
        net.close()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    """Skips the test with what the command said."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no homes here: {' '.join(words)}: {done.stderr.strip()}")
