"""Whether others can dial this peer, and where it is reached if they cannot.

    watch --dialback--> up to three connected peers: each dials this one and reports the result
       all reach it: these addresses are announced   one does not: --relay--> two reservations, as circuits
    Circuits (swarm.net.libp2p.circuits) carries the connections of others, where this peer can be dialled

A peer that is asked dials only hosts from which the asker is connected: no peer can be made to knock at a
third one's port. Invariant: announced addresses are ordered by from how far they can be dialled. Not handled:
holes in NATs, a port that the router maps (peer.listen.upnp).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from swarm.core.budget import Budget
from swarm.frames import wire
from swarm.net.libp2p.addresses import Address
from swarm.net.libp2p.circuits import Circuits
from swarm.net.libp2p.dialling import greeted
from swarm.net.libp2p.listening import Scope
from swarm.net.libp2p.network import Network
from swarm.net.libp2p.p2pd import Daemon
from swarm.net.ports import Busy, Mail, NetError, Refused, read_question
from swarm.protocol import Service
from swarm.settings.config import Listen
from swarm.types import Finite, PeerId, Struct, Word

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Seconds between two looks at whether the relays are still connected."""

AGAIN_SECONDS, DOUBTED_SECONDS = 300.0, 60.0
"""Seconds between two questions to others, and where they could not dial me: routers and addresses change
rarely, a busy machine answers late."""

WITNESSES = 3
"""Peers that are asked: one may sit in my own network."""

RELAYS = 2
"""Reservations: one relay may go."""

REFUSED_SECONDS = 300.0
"""Seconds until a peer that refused to be a relay is asked again."""

ASK_SECONDS = 10.0
"""Seconds for an answer, of which a dial takes up to five."""

ADDRESSES, DIALS, WORD = 4, 8, 200
"""Addresses of one peer in a question or an answer, dials for one question, characters of a reason."""

DIALS_OF_ONE, DIALS_OF_ALL, ASKERS = (0.1, 3.0), (2.0, 10.0), 1024
"""Dialbacks a second and at once, of one asker and of all; askers that are remembered."""


class DialQuery(Struct, tag="dial-query"):
    """Asks to be dialled."""

    ports: Annotated[tuple[Annotated[int, Meta(gt=0, lt=65536)], ...], Meta(max_length=ADDRESSES)]
    """TCP, at the hosts that the asker is connected from."""


class Dialled(Struct):
    address: Word
    why: Word
    """Why it failed; empty: libp2p answers there."""


class DialAnswer(Struct, tag="dial-answer"):
    seen: Annotated[tuple[Word, ...], Meta(max_length=ADDRESSES)]
    """Where the asker's connections come from."""
    dialled: Annotated[tuple[Dialled, ...], Meta(max_length=DIALS)]


class Reserved(Struct, tag="reserved"):
    """A relay carries connections to the asker."""

    seconds: Finite
    addresses: Annotated[tuple[Word, ...], Meta(max_length=ADDRESSES)]
    """Where the relay can be dialled."""


class Reservation(NamedTuple):
    address: str
    """Where others reach me by it."""
    renew_at: float


class Reachability:
    """One peer's. `serve`, then a task for `watch`."""

    def __init__(
        self,
        me: PeerId,
        listen: Listen,
        network: Network,
        line: Callable[[], Awaitable[Daemon]],
        own: Callable[[], Sequence[str]],
        circuits: Circuits,
    ) -> None:
        """`own()`: where p2pd listens, or the addresses in the settings."""
        self.open: bool | None = False if listen.dial_only else None
        """Whether all peers that were asked can dial this one; None while none has answered."""
        self.answers: Mapping[PeerId, DialAnswer] = {}
        """Their last answers."""
        self._me, self._listen, self._network = me, listen, network
        self._line, self._own, self._circuits = line, own, circuits
        self._reached: tuple[str, ...] = ()
        self._asked_of: tuple[str, ...] = ()
        """Where p2pd listened when others were asked last."""
        self._reservations: dict[PeerId, Reservation] = {}
        self._rests: dict[PeerId, float] = {}
        """Peers that refused -> until when they are not asked."""
        self._again = 0.0
        self._budget = Budget(DIALS_OF_ONE, DIALS_OF_ALL, ASKERS)
        self._looked = asyncio.Event()

    @property
    def relays(self) -> tuple[PeerId, ...]:
        """Peers that carry connections to this one."""
        return tuple(self._reservations)

    def addresses(self) -> tuple[str, ...]:
        """Where others may dial me, most widely reachable first."""
        over = [one.address for one in self._reservations.values()]
        ranked = [(_rank(text, self._listen, self.open), text) for text in (*self._reached, *self._own())]
        ranked += [(1 if one == 0 else 3, text) for one, text in enumerate(over)]
        return tuple(dict.fromkeys(text for _, text in sorted(ranked, key=lambda both: both[0])))

    # --- service for others ---------------------------------------------------------------------------------

    async def serve(self, mail: Mail) -> None:
        await mail.serve(Service.DIALBACK, self._dial_back)
        await mail.serve(Service.RELAY, self._reserve)

    async def _dial_back(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, DialQuery)
        if not self._budget.take(sender, 1, time.monotonic()):
            raise Busy("asked too often: a peer is dialled back once in ten seconds")
        seen = (await self._seen(sender))[:ADDRESSES]
        if not seen:
            raise Refused("you are connected over a relay: where you are is not known here")
        hosts = dict.fromkeys("/".join(end.split("/")[:3]) for end in seen)
        texts = [f"{host}/tcp/{port}/p2p/{sender}" for host in hosts for port in dict.fromkeys(asked.ports)]
        targets = [one for text in texts[:DIALS] if (one := Address.parse(text)) is not None]
        reasons = await asyncio.gather(*(greeted(one.host, one.port) for one in targets))
        dialled = tuple(
            Dialled(address=one.text, why=why[:WORD]) for one, why in zip(targets, reasons, strict=True)
        )
        return wire.encode(DialAnswer(seen=seen, dialled=dialled))

    async def _reserve(self, sender: PeerId, _: bytes) -> bytes:
        if not self._listen.relay or self._listen.dial_only:
            raise Refused("this peer is no relay")
        if self.open is False:
            raise Refused("this peer cannot be dialled itself")
        if not await self._seen(sender):
            raise Refused("you are connected over a relay yourself")
        shown = tuple(text for text in self.addresses() if "/p2p-circuit/" not in text)[:ADDRESSES]
        return wire.encode(Reserved(seconds=self._circuits.reserve(sender), addresses=shown))

    async def _seen(self, peer: PeerId) -> tuple[str, ...]:
        return (await (await self._line()).direct()).get(peer, ())

    # --- service by others ----------------------------------------------------------------------------------

    async def watch(self, mail: Mail, changed: Callable[[str], None]) -> None:
        """Run for ever: find out whether this peer can be dialled, and keep reservations where it cannot.
        `changed(sentence)` is called when that changes."""
        before = ""
        while True:
            try:
                await self.look(mail)
            except NetError as error:
                log.debug("p2pd was replaced meanwhile: %s", error)
            self._looked.set()
            if (now := self.description()) != before:
                before = now
                changed(now)
            await asyncio.sleep(LOOK_SECONDS)

    async def settled(self) -> None:
        """Return when the peers connected at the start have been asked."""
        await self._looked.wait()

    def description(self) -> str:
        """How others reach this peer, where they cannot dial it; empty where they can, or that is unknown."""
        if self.open is not False:
            return ""
        why = next((one.why for answer in self.answers.values() for one in answer.dialled if one.why), "")
        what = f"others cannot dial this peer ({why})" if why else "others cannot dial this peer"
        if count := len(self._reservations):
            return f"{what}: they reach it over {'another peer' if count == 1 else f'{count} other peers'}"
        return f"{what}, and no peer that they can dial carries their connections to it"

    async def look(self, mail: Mail) -> None:
        """Ask, if it is time, and keep reservations where they are needed. Raises NetError."""
        direct, now = await (await self._line()).direct(), time.monotonic()
        if (own := tuple(self._own())) != self._asked_of:
            self._asked_of, self._again, self._reached = own, 0.0, ()
        if direct and not self._listen.dial_only and now > self._again:
            await self._ask(mail, direct)
            pause = AGAIN_SECONDS if self.open else DOUBTED_SECONDS if self.answers else ASK_SECONDS
            self._again = now + pause
        kept = {} if self.open is not False else self._reservations
        self._reservations = {peer: one for peer, one in kept.items() if peer in direct}
        if self.open is False:
            await self._keep_reservations(mail, direct)

    async def _ask(self, mail: Mail, direct: Mapping[PeerId, tuple[str, ...]]) -> None:
        first = self._network.bootstrap_peers
        order = sorted(direct, key=lambda peer: (peer not in first, random.random()))
        ports = dict.fromkeys(one.port for text in self._own() if (one := Address.parse(text)) is not None)
        question = wire.encode(DialQuery(ports=tuple(ports)[:ADDRESSES]))
        asked = order[:WITNESSES]
        results = await asyncio.gather(*(self._asked(mail, peer, question) for peer in asked))
        self.answers = {peer: one for peer, one in zip(asked, results, strict=True) if one is not None}
        answers = self.answers.values()
        reached = [one.address for answer in answers for one in answer.dialled if not one.why]
        self._reached = tuple(one for one in dict.fromkeys(reached) if self._is_mine(one))
        self.open = all(_reaches(answer) for answer in answers) if answers else self.open

    async def _asked(self, mail: Mail, peer: PeerId, question: bytes) -> DialAnswer | None:
        try:
            answer = await mail.send(peer, Service.DIALBACK, question, timeout=ASK_SECONDS)
            return wire.decode(answer, DialAnswer)
        except (NetError, wire.WireError) as error:
            log.debug("%s did not dial me: %s", peer, error)
            return None

    def _is_mine(self, text: str) -> bool:
        address = Address.parse(text)
        return address is not None and address.peer == self._me and not address.relayed

    async def _keep_reservations(self, mail: Mail, direct: Mapping[PeerId, tuple[str, ...]]) -> None:
        now, first = time.monotonic(), self._network.bootstrap_peers
        due = [peer for peer, one in self._reservations.items() if now >= one.renew_at]
        order = sorted(direct, key=lambda peer: (peer not in first, random.random()))
        free = [one for one in order if one not in self._reservations and self._rests.get(one, now) <= now]
        missing = RELAYS - len(self._reservations)
        for peer in (*due, *free[:missing]):
            if (one := await self._reserved(mail, peer, direct[peer])) is not None:
                self._reservations[peer] = one
            else:
                self._reservations.pop(peer, None)
                self._rests[peer] = now + REFUSED_SECONDS
        self._rests = {peer: until for peer, until in self._rests.items() if until > now}

    async def _reserved(self, mail: Mail, peer: PeerId, ends: Sequence[str]) -> Reservation | None:
        try:
            answer = await mail.send(peer, Service.RELAY, b"", timeout=ASK_SECONDS)
            reserved = wire.decode(answer, Reserved)
        except (NetError, wire.WireError) as error:
            log.debug("%s is no relay for me: %s", peer, error)
            return None
        found = [Address.parse(text) for text in (*self._network.addresses_of(peer), *reserved.addresses)]
        own = [one for one in found if one is not None and one.peer == peer and not one.relayed]
        # The address by which this peer is connected with it works; else the widest that it announces.
        own.sort(key=lambda one: (not any(one.text.startswith(f"{end}/") for end in ends), one.scope))
        if not own:
            return None
        address = f"{own[0].text}/p2p-circuit/p2p/{self._me}"
        return Reservation(address, time.monotonic() + max(reserved.seconds / 2, LOOK_SECONDS))


def _reaches(answer: DialAnswer) -> bool:
    return any(not one.why for one in answer.dialled)


def _rank(text: str, listen: Listen, reachable: bool | None) -> int:
    """0: from everywhere, 1: the first relay, 2: from a private network, 3: other relays, 4: hardly."""
    address = Address.parse(text)
    if address is None or any(text.startswith(said.split("/p2p/")[0] + "/") for said in listen.announce):
        return 0
    if address.scope is Scope.PRIVATE:
        return 2
    return 0 if address.scope is Scope.PUBLIC and reachable is not False else 4
