"""Two network namespaces where only one direction can connect: a sampler behind a firewall that lets nothing
in contributes.

    [hub: seed, learner] 10.213.7.1 ---veth--- 10.213.7.2 [far: the sampler; INPUT drops all but answers]

Needs root, `ip` and `iptables` (Debian: iproute2, iptables). Not handled here: loss and delay, which the
simulator has.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_processes import SETTINGS, admitted, started_swarm

from swarm import events

NEAR, FAR = "10.213.7.1", "10.213.7.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def inside(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


@pytest.fixture
def firewalled() -> Iterator[tuple[str, str]]:
    """(namespace that can be dialled, namespace that can only dial)."""
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and ip, iptables (missing: {', '.join(missing) or 'root'})")
    hub, far = f"swarm-hub-{os.getpid()}", f"swarm-far-{os.getpid()}"
    try:
        for namespace in (hub, far):
            ip("netns", "add", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        ip("link", "add", "swh", "netns", hub, "type", "veth", "peer", "name", "swf", "netns", far)
        for namespace, device, address in ((hub, "swh", NEAR), (far, "swf", FAR)):
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", namespace, "link", "set", device, "up")
        for rule in (
            ["-A", "INPUT", "-i", "lo", "-j", "ACCEPT"],
            ["-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"],
            ["-P", "INPUT", "DROP"],
        ):
            subprocess.run([*inside(far), "iptables", *rule], check=True, capture_output=True)
        yield hub, far
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces with a firewall here: {error.stderr}")
    finally:
        for namespace in (hub, far):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def dials(namespace: str, address: str, port: str) -> bool:
    script = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
    return (
        subprocess.run(
            [*inside(namespace), "python3", "-c", script], check=False, capture_output=True
        ).returncode
        == 0
    )


def test_a_sampler_that_nobody_can_dial_contributes(firewalled: tuple[str, str], tmp_path: Path) -> None:
    hub, far = firewalled
    with started_swarm(tmp_path, SETTINGS.replace('host = "127.0.0.1"', f'host = "{NEAR}"')) as house:
        seed = house.seed(wrap=inside(hub))
        learner = house.join("learner", f"peer.listen.host={NEAR}", wrap=inside(hub))
        sampler = house.join("sampler", folder=tmp_path / "far", wrap=inside(far))
        house.wait_until(
            lambda: sampler.saw(events.Started) and learner.saw(events.Started), 60, "not everybody started"
        )

        port = (tmp_path / "far" / "peers" / "sampler-1" / "port").read_text()
        assert dials(far, FAR, port), "the sampler listens"
        assert not dials(hub, FAR, port), "nobody from outside can dial it"
        house.wait_until(lambda: admitted(learner, sampler.peer) >= 16, 30, "its groups were not admitted")
        house.wait_until(
            lambda: any(e.release.version >= 2 for e in seed.saw(events.Released)),
            30,
            "nothing was learned of them",
        )
