"""Revocations reach every peer of a run, and stay there: whom the owner put out is out within seconds.

    `swarm revoke` --> <run folder>/revoked, keys <--once a second--> Trust, RunKeys of each peer there
                                                                        | number, in every heartbeat
    a heartbeat with a higher number, a frame with a newer key
        -- service `enter`: my membership --> a newer list, and for members keys --> Trust, RunKeys, roster

A list is believed by the owner's signature alone, and keys by their digest in the list, so that anybody may
pass them on. A peer that finds itself in a list leaves; others read no mail of it, hear no gossip of it and
do not average with it, and it never has the next key. Not handled here: what a list says
(swarm.core.revocation), how the owner makes one (peers.commands.revoke).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from peers.errors import Refusal, say
from peers.runtime import run_keys
from peers.runtime.changes import Changes
from swarm import events, wire
from swarm.core.membership import PRIVATE, UNSHOWN
from swarm.core.revocation import NONE, YOU, Revocations
from swarm.durable import write_durably
from swarm.net.ports import NetError, Refused, read_question
from swarm.protocol import Kind, Service
from swarm.run_types import Entry, Membership
from swarm.types import PeerId

if TYPE_CHECKING:
    from peers.runtime.host import Host

T = TypeVar("T")

REVOKED = "revoked"
"""File in a run folder: the newest list that its peers have."""

ASKED = 4
"""Peers that are asked at once: one that does not answer delays nobody."""

ASK_TIMEOUT = 5.0
"""Seconds for an answer of some kilobytes."""

AGAIN = 60.0
"""Seconds in which a peer that named a number and has no such list is not asked again."""

CLAIMS = 1024
"""Peers that have named a higher number and are remembered."""

LOOK = 1.0
"""Seconds between two looks at the folder's list."""

NAMED = 8
"""Revoked peers that one sentence names."""

GONE = f"{YOU}: others take nothing from this peer any more; ask the owner for an invite"


class RevocationExchange:
    """One peer's: asks others for newer lists and keys, and answers them."""

    def __init__(self, host: Host) -> None:
        self._host, self._trust, self._keys = host, host.trust, host.frames.keys
        self._claims: dict[bool, OrderedDict[PeerId, int]] = {True: OrderedDict(), False: OrderedDict()}
        """Has it shown a membership? -> peer -> the number that it named."""
        self._idle: OrderedDict[PeerId, float] = OrderedDict()
        """Peer -> until when it is not asked."""
        self._changes = Changes()
        self.refused = ""
        """Why this peer has to leave."""

    @property
    def number(self) -> int:
        """Of the newest list that is here, with the keys that belong to it."""
        number = self._trust.revocations.number
        return number if self._keys is None else min(number, max(self._keys.epoch, 0))

    async def serve(self) -> None:
        await self._host.ports.mail.serve(Service.ENTER, self._answer)
        if self._trust.revocations.number:
            self._obey()

    async def _answer(self, sender: PeerId, message: bytes) -> bytes:
        """Whoever is in the list may have it, too, to learn that; keys are for members."""
        keys, revoked = self._keys, self._trust.revocations.sealed
        if keys is None:
            return wire.encode(Entry(revoked=revoked))
        if not message:
            raise Refused(UNSHOWN)
        mine = read_question(message, Membership)
        now, role = self._host.now(), mine.delegation.role
        if (why := self._trust.lack(sender, role, mine, now)) is not None:
            raise Refused(f"{PRIVATE}, and {why}")
        out = self._trust.objection(sender, role, mine, now) is not None
        return wire.encode(Entry(revoked=revoked, keys=b"" if out else keys.all))

    def heard(self, peer: PeerId, number: int) -> bool:
        """A peer has this list, or encrypts with this key, as it says: whoever has shown no membership is
        asked when nobody else has. False where that is no reason to ask it."""
        if number <= self.number or self._idle.get(peer, 0.0) > self._host.now():
            return False
        _remember(self._claims[self._trust.shown(peer) is not None], peer, number)
        self._changes.wake()
        return True

    async def ask_forever(self) -> None:
        while True:
            mine = self.number
            for claims in self._claims.values():
                for peer in [peer for peer, number in claims.items() if number <= mine]:
                    del claims[peer]
            if not (claims := self._claims[True] or self._claims[False]):
                await self._changes.wait()
                continue
            asked = self._host.rng.sample([*claims], min(ASKED, len(claims)))
            for peer in asked:
                del claims[peer]
            await asyncio.gather(*map(self.ask, asked))

    async def ask(self, peer: PeerId) -> None:
        """Take the list and the keys of another peer, if these are newer."""
        host, mine = self._host, self._host.frames.membership
        question = wire.encode(mine) if mine is not None and self._keys is not None else b""
        try:
            answer = await host.ports.mail.send(peer, Service.ENTER, question, timeout=ASK_TIMEOUT)
            entry = wire.decode(answer, Entry)
            self.take(entry.revoked, entry.keys)
        except NetError:
            return  # its next heartbeat says again that it has one
        except wire.WireError as error:
            host.emit(events.Rejected, sender=peer, kind=Service.ENTER, reason=str(error))
        _remember(self._idle, peer, host.now() + AGAIN)

    def take(self, sealed: bytes, keys: bytes = b"") -> bool:
        """Act by a list and keys if they are newer than those here. Raises WireError for a list that is not
        the owner's."""
        news = self._trust.revocations.take(sealed)
        if news:
            self._obey()
        if self._keys is not None and self._keys.take(keys, self._trust.revocations.list.keys):
            news = True
        if news:
            self._host.beat_now()
        return news

    def _obey(self) -> None:
        host, revocations = self._host, self._trust.revocations
        for peer in [peer for peer, _ in host.roster if self._trust.revoked(peer)]:
            host.roster.forget(peer)
        host.emit(events.Noted, level="warning", text=sentence(revocations))
        if revocations.why(host.ports.me, host.frames.membership) is not None and not self.refused:
            self.refused = GONE
            say(f"swarm: {self.refused}")
            host.leave()
        host.move()

    def check(self) -> None:
        """Raise Refusal when it left since it was revoked."""
        if self.refused:
            raise Refusal(self.refused)


def _remember(known: OrderedDict[PeerId, T], peer: PeerId, what: T) -> None:
    known[peer] = what
    known.move_to_end(peer)
    if len(known) > CLAIMS:
        known.popitem(last=False)


# --- the folder ---------------------------------------------------------------------------------------------


def kept(run_folder: Path) -> bytes:
    """The list in this folder; none where there is no such file. Raises OSError."""
    try:
        return (run_folder / REVOKED).read_bytes()
    except FileNotFoundError:
        return NONE


def keep(run_folder: Path, sealed: bytes, keys: bytes = b"") -> None:
    """Write a list and the keys that belong to it. Raises OSError."""
    if keys:
        run_keys.keep(run_folder, keys)  # first: a list without its keys says what is missing here
    if sealed != NONE:
        write_durably(run_folder / REVOKED, sealed)


async def follow(host: Host, run_folder: Path) -> None:
    """Keep the folder's list and keys and this peer's the same, the newer of both, until cancelled."""
    seen: tuple[bytes, bytes] | None = None
    while True:
        try:
            here = kept(run_folder), run_keys.kept(run_folder)
            if here != seen:
                host.revocations.take(*here)
            seen = here
            if (mine := _mine(host)) != here:
                await host.ports.work.run(Kind.KEEP, keep, run_folder, *mine)
            host.disk.tell(REVOKED, "")
        except wire.WireError as error:
            host.disk.tell(REVOKED, f"{run_folder / REVOKED} is damaged ({error}): another takes its place")
            seen = here
            with contextlib.suppress(OSError):  # the next look tells it
                keep(run_folder, *_mine(host))
        except OSError as error:
            host.disk.tell(REVOKED, f"who was revoked is not on the disk: {error.strerror}")
        await host.ports.clock.sleep(LOOK)


def _mine(host: Host) -> tuple[bytes, bytes]:
    keys = host.frames.keys
    return host.trust.revocations.sealed, keys.all if keys is not None else b""


def sentence(known: Revocations) -> str:
    """What the owner has done so far."""
    more = len(known.peers) - NAMED
    named = [*known.peers[-NAMED:], *([f"{more} more"] if more > 0 else [])]
    invites = sum(bool(one.invite) for one in known.list.entries)
    told = [", ".join(named)] * bool(named) + [f"{invites} invite{'s' * (invites > 1)}"] * bool(invites)
    done = [f"revoked {' and '.join(told)}"] * bool(told)
    if back := ", ".join(one.peer for one in known.list.pardons[-NAMED:]):
        done.append(f"pardoned {back}")
    return f"the run's owner has {', and '.join(done) or 'revoked nobody'}"
