"""Distributes revocations to every peer of a run: a revoked peer is excluded within seconds, and stays so.

    `swarm revoke` --> <run folder>/revoked, keys <--once a second--> Trust, RunKeys of each peer there
                                                                        | number, in every heartbeat
    a heartbeat with a higher number, a frame with a newer key
        -- service `enter`: own membership --> a newer list, and for members keys --> Trust, RunKeys, roster

A list is trusted by the owner's signature alone, and keys by their digest in the list, so that any peer may
pass them on. A peer that finds itself in a list leaves; others ignore its mail and its gossip and do not
average with it, and it never gets the next key. Not handled here: the entries of a list
(swarm.core.revocation), how the owner makes one (peers.commands.invites.revoke).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from contextlib import AbstractContextManager
from pathlib import Path

from peers.errors import Refusal, say
from peers.runtime.faults import DiskFaults
from peers.runtime.kernel import Kernel
from peers.runtime.membership import run_keys
from peers.runtime.notifier import Notifier
from swarm import events
from swarm.core.membership import PRIVATE, UNSHOWN
from swarm.core.revocation import NONE, YOU, Revocations
from swarm.frames import wire
from swarm.frames.run_types import Entry, Membership, RevocationList
from swarm.limits import remember
from swarm.net.ports import NetError, Refused, read_question
from swarm.protocol import Kind, Service
from swarm.storage import durable
from swarm.storage.durable import write_durably
from swarm.types import PeerId

REVOKED = "revoked"
"""File in a run folder: the newest list that its peers have."""

ASKED = 4
"""Peers that are asked at once, so that one without an answer delays nothing."""

ASK_TIMEOUT = 5.0
"""Seconds for an answer of some kilobytes."""

AGAIN = 60.0
"""Seconds in which a peer that named a number but has no such list is not asked again."""

CLAIMS = 1024
"""Peers that have named a higher number and are remembered."""

LOCK = "revoked.lock"
"""File in a run folder, of nothing."""

LOOK = 1.0
"""Seconds between two looks at the folder's list."""

NAMED = 8
"""Most revoked peers named in one sentence."""

GONE = f"{YOU}: others take nothing from this peer any more; ask the owner for an invite"


class RevocationExchange:
    """One peer's: asks others for newer lists and keys, and answers them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._trust, self._keys = kernel, kernel.trust, kernel.frames.keys
        self._claims: dict[bool, OrderedDict[PeerId, int]] = {True: OrderedDict(), False: OrderedDict()}
        """Has it shown a membership? -> peer -> the number that it named."""
        self._idle: OrderedDict[PeerId, float] = OrderedDict()
        """Peer -> until when it is not asked."""
        self._changes = Notifier()
        self.refused = ""
        """Why this peer has to leave."""

    @property
    def number(self) -> int:
        """Of the newest list that is here, with the keys that belong to it."""
        number = self._trust.revocations.number
        return number if self._keys is None else min(number, max(self._keys.epoch, 0))

    async def serve(self) -> None:
        await self._kernel.ports.mail.serve(Service.ENTER, self._answer)
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
        now, role = self._kernel.now(), mine.delegation.role
        if (why := self._trust.lack(sender, role, mine, now)) is not None:
            raise Refused(f"{PRIVATE}, and {why}")
        out = self._trust.objection(sender, role, mine, now) is not None
        return wire.encode(Entry(revoked=revoked, keys=b"" if out else keys.all))

    def note_claim(self, peer: PeerId, number: int) -> bool:
        """Note that a peer claims this list, or encrypts with this key: peers that presented no membership
        are asked only when no other has it. False where that is no reason to ask it."""
        if number <= self.number or self._idle.get(peer, 0.0) > self._kernel.now():
            return False
        remember(self._claims[self._trust.shown(peer) is not None], peer, number, CLAIMS)
        self._changes.wake()
        return True

    async def run(self) -> None:
        while True:
            mine = self.number
            for claims in self._claims.values():
                for peer in [peer for peer, number in claims.items() if number <= mine]:
                    del claims[peer]
            if not (claims := self._claims[True] or self._claims[False]):
                await self._changes.wait()
                continue
            asked = self._kernel.rng.sample([*claims], min(ASKED, len(claims)))
            for peer in asked:
                del claims[peer]
            await asyncio.gather(*map(self.ask, asked))

    async def ask(self, peer: PeerId) -> None:
        """Take the list and the keys of another peer, if these are newer."""
        kernel, mine = self._kernel, self._kernel.frames.membership
        question = wire.encode(mine) if mine is not None and self._keys is not None else b""
        try:
            answer = await kernel.ports.mail.send(peer, Service.ENTER, question, timeout=ASK_TIMEOUT)
            entry = wire.decode(answer, Entry)
            self.take(entry.revoked, entry.keys)
        except NetError:
            return  # its next heartbeat names the number again
        except wire.WireError as error:
            kernel.emit(events.Rejected, sender=peer, kind=Service.ENTER, reason=str(error))
        remember(self._idle, peer, kernel.now() + AGAIN, CLAIMS)

    def take(self, sealed: bytes, keys: bytes = b"") -> bool:
        """Act by a list and keys if they are newer than those here. Raises WireError for a list that is not
        the owner's."""
        before = self._trust.revocations.list
        news = self._trust.revocations.take(sealed)
        if news:
            self._obey()
            if lost := _lost(before, self._trust.revocations.list):
                self._kernel.emit(events.Noted, level="warning", text=lost)
        if self._keys is not None and self._keys.take(keys, self._trust.revocations.list.keys):
            news = True
        if news:
            self._kernel.beat_now()
        return news

    def _obey(self) -> None:
        kernel, revocations = self._kernel, self._trust.revocations
        for peer in [peer for peer, _ in kernel.roster]:
            if (why := self._trust.revoked(peer)) is not None:
                kernel.roster.forget(peer)
                kernel.emit(events.Rejected, sender=peer, kind="membership", reason=why)
        kernel.emit(events.Noted, level="warning", text=sentence(revocations))
        if revocations.why(kernel.ports.me, kernel.frames.membership) is not None and not self.refused:
            self.refused = GONE
            say(f"swarm: {self.refused}")
            kernel.leave()
        kernel.move()

    def check(self) -> None:
        """Raise Refusal when it left since it was revoked."""
        if self.refused:
            raise Refusal(self.refused)


# --- the folder ---------------------------------------------------------------------------------------------


def kept(run_folder: Path) -> bytes:
    """The list in this folder; none where there is no such file. Raises OSError."""
    try:
        return (run_folder / REVOKED).read_bytes()
    except FileNotFoundError:
        return NONE


def locked(run_folder: Path) -> AbstractContextManager[None]:
    """Held from the look at the folder's list until the next one and its keys are there. Raises OSError."""
    return durable.locked(run_folder / LOCK)


def keep_newer(run_folder: Path, known: Revocations, keys: bytes) -> None:
    """Write a list and keys where the folder has older ones, of which `swarm revoke` may write newer ones at
    any time. Keys there are more than these belong to a list that is still to come. Raises OSError."""
    sealed = known.sealed
    with locked(run_folder):
        number, there, here = known.opened(sealed).number, -1, kept(run_folder)
        with contextlib.suppress(wire.WireError):  # a damaged one, which any other is better than
            there = known.opened(here).number
        if there == number and here != sealed:
            return  # the owner signed two of one number: each has its own keys
        had = run_keys.kept(run_folder)
        keep(
            run_folder,
            sealed if there < number else NONE,
            keys if keys != had and len(keys) >= len(had) else b"",
        )


def keep(run_folder: Path, sealed: bytes, keys: bytes = b"") -> None:
    """Write a list and the keys that belong to it over the old ones; the caller holds the folder's lock.
    Raises OSError."""
    if keys:
        run_keys.keep(run_folder, keys)  # first: a list without its keys is reported as incomplete
    if sealed != NONE:
        write_durably(run_folder / REVOKED, sealed)


async def follow(kernel: Kernel, exchange: RevocationExchange, disk: DiskFaults, run_folder: Path) -> None:
    """Keep the folder's list and keys and this peer's the same, the newer of both, until cancelled."""
    seen: tuple[bytes, bytes] | None = None
    while True:
        try:
            here = kept(run_folder), run_keys.kept(run_folder)
            why = ""
            if here != seen:
                why = _taken(exchange, run_folder, here)
            seen = None if why else here
            if _has_more(kernel, here):
                keys = kernel.frames.keys
                mine = keys.all if keys is not None else b""
                await kernel.ports.work.run(Kind.KEEP, keep_newer, run_folder, kernel.trust.revocations, mine)
            disk.report(REVOKED, why)
        except OSError as error:
            disk.report(REVOKED, f"the list of revocations is not on the disk: {error.strerror}")
        await kernel.ports.clock.sleep(LOOK)


def _taken(exchange: RevocationExchange, run_folder: Path, here: tuple[bytes, bytes]) -> str:
    """Act by the folder's list and keys; why its list is none, or empty."""
    try:
        exchange.take(*here)
    except wire.WireError as error:
        return f"{damaged(run_folder)} ({error})"
    return ""


def damaged(run_folder: Path) -> str:
    """Advice for a list that cannot be read."""
    return (
        f"{run_folder / REVOKED} is damaged: a peer that runs here takes the list of others in its place;"
        " if nothing was ever revoked or pardoned there is no such list, and the file can be deleted"
    )


def _has_more(kernel: Kernel, here: tuple[bytes, bytes]) -> bool:
    """Whether this peer has a list or keys that the folder lacks."""
    sealed, keys = kernel.trust.revocations.sealed, kernel.frames.keys
    mine = keys.all if keys is not None else b""
    return sealed not in (NONE, here[0]) or (mine != here[1] and len(mine) >= len(here[1]))


def _lost(before: RevocationList, now: RevocationList) -> str:
    """Entries that the newer of two lists lacks, and what its owner has to do; empty where it lacks none."""
    there = {(one.peer, one.invite) for one in now.entries}
    gone = [
        one.peer or f"the invite {one.invite.hex()[:16]}"
        for one in before.entries
        if (one.peer, one.invite) not in there
    ]
    if not gone:
        return ""
    more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
    return (
        f"list {now.number} of this run's revocations lacks {', '.join(gone[:NAMED])}{more}, which list"
        f" {before.number} has: it was made in a folder that was brought back from a copy, and they are in"
        " again; the owner revokes them again"
    )


def sentence(known: Revocations) -> str:
    """A summary of the owner's revocations."""
    more = len(known.peers) - NAMED
    named = [*known.peers[-NAMED:], *([f"{more} more"] if more > 0 else [])]
    invites = sum(bool(one.invite) for one in known.list.entries)
    revoked = [", ".join(named)] * bool(named) + [f"{invites} invite{'s' * (invites > 1)}"] * bool(invites)
    done = [f"revoked {' and '.join(revoked)}"] * bool(revoked)
    if back := ", ".join(one.peer for one in known.list.pardons[-NAMED:]):
        done.append(f"pardoned {back}")
    return f"the run's owner has {', and '.join(done) or 'revoked no peer'}"
