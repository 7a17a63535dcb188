"""From a config or an invite to a running peer: the real world's assembly, in the order that its parts demand.

    key -> node (p2pd, DHT: forks) -> spec and model files -> averager (forks) -> model (torch) -> role
    and back: the role leaves, then the averager, then the node, each with a deadline

hivemind forks, so its parts come before torch computes anything. SIGINT or SIGTERM once: finish the group or step and leave;
twice: now.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import policies, runfolder, specification
from peers.errors import Interrupted, Refusal, UsageError
from peers.runfolder import RunFolder
from swarm import events
from swarm import invite as invites
from swarm.config import Config, Listen, Loaded, Run, from_run_dict
from swarm.identity import Keyring, human_name, open_key, verify
from swarm.invite import Invite
from swarm.types import Digest, Membership, PeerId, Role

GOODBYE = 10.0
# Seconds for each part to end: a forked process that hangs is killed by then.


def start(loaded: Loaded, folder: Path | None, page: bool) -> int:
    """`swarm start`: begin a run (or go on with it), be its seed, print how to join. Returns an exit code."""
    config = loaded.config
    path = folder or runfolder.default_path(config.run.name)
    run = runfolder.create(path, config.run, policies.folder(config.run))
    return run_until_signalled(lambda departure: _seed(run, config, page, departure))


def join(word: str, role: Role | None, loaded: Loaded, folder: Path | None) -> int:
    """`swarm join`: take part in the run that the invite names. Returns an exit code."""
    invite = invites.read(word, time.time())
    if (mine := [key for key in loaded.origins if key.startswith("run.") and key != "run.model.name" and loaded.origins[key] != "default"]):
        raise UsageError(f"{mine[0]} is the run's, not yours: a joiner sets [peer] keys only, the rest comes from the swarm")
    path = folder or runfolder.default_path(invite.run[:12])
    role = role or invite.role or Role.SAMPLER
    return run_until_signalled(lambda departure: _join(invite, role, loaded.config, path, departure))


# --- signals ------------------------------------------------------------------------------------------------------------


class Departure:
    """SIGINT or SIGTERM: the first asks `leave`, the second cancels the program."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.leave: Callable[[], None] | None = None

    def install(self, program: asyncio.Task[None]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number, program)

    def _on_signal(self, number: int, program: asyncio.Task[None]) -> None:
        again, self.signal = self.signal is not None, number
        if again or self.leave is None:
            program.cancel()
            return
        print("leaving: finishing what is at hand (again to leave now)", file=sys.stderr, flush=True)
        self.leave()


def run_until_signalled(program: Callable[[Departure], Coroutine[Any, Any, None]]) -> int:
    """Run a program to its end: 0. Raises Interrupted after a signal, however far the program came."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    departure = Departure()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        departure.install(task)
        await program(departure)

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        if departure.signal is None:
            raise
    if departure.signal is not None:
        raise Interrupted(departure.signal)
    return 0


# --- the parts ----------------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """A peer's corner of a run folder, and its journal."""

    folder: Path
    keyring: Keyring
    bus: events.Bus

    def report(self, part: str, detail: str, seconds: float | None) -> None:
        """Faults and recoveries of the node's and the averager's processes, as events."""
        about: dict[str, Any] = {"at": time.time(), "peer": self.keyring.me, "part": part}
        fault = seconds is None
        self.bus.emit(events.Faulted(detail=detail, **about) if fault else events.Recovered(seconds=round(seconds or 0, 2), **about))


@contextlib.contextmanager
def _place(folder: Path) -> Any:
    keyring = open_key(folder / "key")
    bus = events.Bus()
    journal = events.Journal(folder / "journal.jsonl")
    bus.add(journal)
    (folder / "pid").write_text(str(os.getpid()))
    try:
        yield Place(folder, keyring, bus)
    finally:
        (folder / "pid").unlink(missing_ok=True)
        journal.close()


@asynccontextmanager
async def _node(place: Place, run: Digest, listen: Listen, bootstrap: Sequence[str]) -> AsyncIterator[Any]:
    """A running node under supervision."""
    import torch

    torch.set_num_threads(1)  # peers share machines: two threads on a busy one are six times slower than one
    from swarm.net.hive import Node

    listen = _kept_port(listen, place.folder / "port")
    node = await Node.start(
        keyring=place.keyring, key_path=place.folder / "key", run=run, listen=listen, bootstrap=bootstrap, report=place.report
    )
    if not listen.dial_only:
        (place.folder / "port").write_text(str(node.port))
    supervision = asyncio.create_task(node.supervise())
    try:
        yield node
    finally:
        supervision.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.close(), GOODBYE)


def _kept_port(listen: Listen, path: Path) -> Listen:
    """The port of the last time, so that old invites and remembered addresses go on working."""
    import msgspec

    if listen.port == 0 and path.exists() and path.read_text().isdigit():
        return msgspec.structs.replace(listen, port=int(path.read_text()))
    return listen
