"""The program p2pd is the one that hivemind published: its digest is checked before it is started.

It has this peer's key and every byte that peers say to each other. Not handled here: hivemind's Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from swarm.net.ports import NetError

PUBLISHED = {("Linux", "x86_64"): "42f8f48e62583b97cdba3c31439c08029fb2b9fc506b5bdd82c46b7cc1d279d8"}
"""System and machine -> sha256 of p2pd in the wheel of hivemind 1.1.12. For others hivemind is built where it
is installed, and no digest is known before."""

OWN = "SWARM_P2PD_SHA256"
"""Environment variable with the sha256 of a p2pd that somebody built for themselves."""


def program() -> Path:
    """The p2pd that hivemind starts."""
    return Path(str(resources.files("hivemind.hivemind_cli") / "p2pd"))


def check(path: Path) -> None:
    """Raise NetError where p2pd is another program than the published one, or than the environment names."""
    expected = os.environ.get(OWN) or PUBLISHED.get((platform.system(), platform.machine()))
    if expected is None or (found := _digest(path)) == expected.lower():
        return
    raise NetError(
        f"{path} is not the p2pd of hivemind {metadata.version('hivemind')}: its sha256 is {found}, not"
        f" {expected}; install hivemind anew (pip install --force-reinstall --no-deps hivemind), or set {OWN}"
        " to its sha256 where you built it yourself"
    )


@cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
