"""Joining while no peer answers: retries for as long as the peer runs, or once with `--once`.

    no peer answers      the run is in this folder   -> it continues alone, and others find it here
                         it is not                   -> again after a pause that grows
    no peer has the run's files                      -> again after a pause that grows; where large packets
                                                        are lost on the way, a message says so

Not handled here: which addresses are dialled, and that they are dialled again later
(swarm.net.libp2p.network).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from peers.build.joining.spec_transfer import LARGEST_SPEC, FileRequest
from peers.errors import NoPeerAnswers, say
from swarm.frames import wire
from swarm.net.ports import NOTHING_CAME, NetError, Refused, Unreachable
from swarm.protocol import Service

if TYPE_CHECKING:
    from swarm.net.libp2p.node import Node

T = TypeVar("T")

TOLD = 6
"""Addresses whose dialling is reported: an invite has up to three peers', two each."""

FIRST, LONGEST = 1.0, 60.0
"""Seconds of the first pause and of the longest: each is twice the one before."""

NEXT = (
    "if those machines are gone, ask a member of the run for a new invite (`swarm invite`); Ctrl-C stops"
    " trying"
)

SMALL_SECONDS = 10.0
"""Seconds for an answer of a few bytes on a new connection."""

NARROW = (
    "small answers come from there and large ones do not, so something on the way drops large packets, often"
    " a VPN or PPPoE: try `ip link set dev DEVICE mtu 1280` with this machine's network device"
)


async def narrow(node: Node, why: str) -> str:
    """NARROW where a peer that, by `why`, sent nothing answers a small request on a new connection; else
    empty. Both ends of a connection that such a packet blocks receive nothing that follows it."""
    if NOTHING_CAME not in why:
        return ""
    ask = wire.encode(FileRequest(run=node.run, file="", offset=LARGEST_SPEC))
    for peer in sorted(peer for peer in node.peers() if f"{peer} {NOTHING_CAME}" in why):
        await node.hang_up_on(peer)
        try:
            await node.mail.send(peer, Service.SPEC, ask, SMALL_SECONDS)
        except Refused:
            return NARROW
        except NetError:
            continue
        return NARROW
    return ""


class ConnectRetry:
    """One peer's way into the network of its run."""

    def __init__(self, path: Path, once: bool, has_run: bool, quiet: bool = False) -> None:
        """`path` is the run folder; `has_run`: it has all files of the run that this peer needs; `quiet`:
        report addresses only where none was reached."""
        self._path, self._once, self._has_run = path, once, has_run
        self._pause, self._reason = FIRST, ""
        self._quiet, self._dialled, self._began = quiet, 0, time.monotonic()
        self.node: Node | None = None
        """Known once a peer was reached."""

    def dialled(self, address: str, why: str) -> None:
        """An address was dialled: `why` it failed, or an empty string. A folder may know dozens: the first
        are reported."""
        self._dialled += 1
        if not self._quiet and self._dialled <= TOLD:
            seconds = time.monotonic() - self._began
            say(f"dialled {address}: {why or 'connected'} ({seconds:.1f} s)")

    async def unreached(self, error: Unreachable) -> bool:
        """No peer answered: try again, or continue alone (False). Raises `error` when only one try is
        allowed."""
        if self._once:
            raise error
        if not self._has_run:
            return await self._wait(str(error))
        say(
            f"{error}. This peer continues alone with what is in {self._path} and dials all known addresses"
            f" until one answers; `swarm invite --folder {self._path}` prints an invite with which others"
            " join here"
        )
        return False

    async def until_had(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """The result of `fetch`, tried until it does not raise NoPeerAnswers, or once."""
        while True:
            try:
                return await fetch()
            except NoPeerAnswers as error:
                todo = await narrow(self.node, str(error)) if self.node is not None else ""
                why = f"{error}; {todo}" if todo else str(error)
                if self._once:
                    raise NoPeerAnswers(why) from error
                await self._wait(why)

    async def _wait(self, why: str) -> bool:
        """Print the failure, and wait. True: it is time to try again."""
        again = f"trying again in {self._pause:.0f} s"
        first = f"{why}. This peer is {again}, and so on until it works; {NEXT}"
        say(first if why != self._reason else f"still so: {again}")
        self._reason = why
        await asyncio.sleep(self._pause)
        self._pause = min(LONGEST, 2 * self._pause)
        return True
