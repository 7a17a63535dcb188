"""What a peer that observes keeps of the swarm: a State over its bus, kept over restarts and told to windows
that come late.

    bus -> Feed over State -> page, terminal
             ^       |
             |       +-> folder/history, every `history.save` seconds and at the end
             |       +-> service `history` -> a window that joined late
    own file, or a seed's snapshot when that knows more

`catch_up` asks before anybody reads the feed; what the bus brought meanwhile is folded after the snapshot. A
file or a snapshot that cannot be read is a warning and a State without it, a disk that takes no more costs
the history and not the window. Not handled here: how a State is folded, written and read (dashboard).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from dashboard import snapshot
from dashboard.feed import Feed
from dashboard.state import State
from peers.runtime.host import Host
from swarm import events, wire
from swarm.durable import write_durably
from swarm.net.ports import NetError, Refused
from swarm.protocol import FRAME_LIMIT, Kind, Role, Service
from swarm.types import Finite, PeerId, Struct

ANSWER = 3670016
"""Bytes, 3.5 MiB: a frame of mail is 4 MiB, and a private run wraps it."""

FRESH = 2.0
"""Seconds that one dump answers for: a crowd of windows costs what one costs, and none misses more than
this."""

JOINED = 1.2
"""Seconds until gossip of others arrives: GossipSub makes its mesh once a second. Whoever asks earlier has a
gap after the answer."""

PATIENCE = 5.0
"""Seconds in which somebody has to have answered: a page without a past is better than no page."""

SHARE = 1.5
"""Of them, for each but the last who is asked: a silent one leaves time for another."""

HELD = 10_000
"""Events that wait for the answer: a thousand peers say less in these seconds."""


class Past(Struct):
    """An answer of `history`."""

    age: Finite
    """Seconds since the snapshot was made: no two clocks are compared."""
    state: Annotated[bytes, Meta(max_length=FRAME_LIMIT)]


class Told(NamedTuple):
    state: State
    made: float
    """When, by the clock of whoever was told."""


class Observer:
    """Made before the host runs; `catch_up` once it runs; `kept` around all of that."""

    def __init__(self, host: Host, peer_folder: Path) -> None:
        self._host, self._file = host, peer_folder / "history"
        self._dumped: tuple[float, bytes] | None = None
        self._saved = 0
        self._full = False
        self._held: list[tuple[float, events.Event]] | None = None
        state, complaint = self._remembered()
        self.feed = Feed(state, host.now)
        host.bus.add(self._take)
        if complaint:
            self._warn(complaint)

    @property
    def state(self) -> State:
        return self.feed.state

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Saves, and answers those who come late."""
        await self._host.ports.mail.serve(Service.HISTORY, self._answer)
        async with asyncio.TaskGroup() as tasks:
            saving = tasks.create_task(self._save_forever(), name="history")
            try:
                yield
            finally:
                saving.cancel()
        await self._save()

    async def catch_up(self, sources: Sequence[PeerId]) -> bool:
        """Take over what a seed knows of the time before, unless this window knows more. False when none
        told."""
        self._held = []
        theirs = None
        try:
            async with asyncio.timeout(PATIENCE):
                await self._host.ports.clock.sleep(JOINED)
                theirs = await self._ask(sources)
        except TimeoutError:
            self._warn("no seed told what happened before: the history begins now")
        finally:
            held, self._held = self._held, None
            since = self._settle(theirs)
            for heard, event in held:
                # Of what came before the snapshot was made, it has what peers said; heartbeats have numbers
                # and count once.
                if heard > since or event.peer == self._host.ports.me or isinstance(event, events.Heard):
                    self.feed(event)
        return theirs is not None

    def _take(self, event: events.Event) -> None:
        if self._held is None:
            self.feed(event)
        elif len(self._held) < HELD:
            self._held.append((self._host.now(), event))

    def _settle(self, theirs: Told | None) -> float:
        """Choose between their State and mine. -> when the chosen one was made, by this peer's clock"""
        mine, now = self.state, self._host.now()
        # A seed that lost its own history has news and no past.
        if (
            theirs is None
            or theirs.state.last <= mine.last
            or theirs.state.head(now).trained < mine.head(now).trained
        ):
            return float("-inf")
        self.feed.state = theirs.state
        return theirs.made

    # --- what others tell -----------------------------------------------------------------------------------

    async def _ask(self, sources: Sequence[PeerId]) -> Told | None:
        host = self._host
        seeds = [peer for peer, beat in host.roster if beat.role is Role.SEED]
        asked = [peer for peer in dict.fromkeys([*sources, *seeds]) if peer != host.ports.me]
        asked.sort(key=lambda peer: peer not in host.roster)  # an invite may name peers that are gone
        for place, peer in enumerate(asked, 1):
            patience = PATIENCE if place == len(asked) else SHARE
            try:
                answer = wire.decode(
                    await host.ports.mail.send(peer, Service.HISTORY, b"", timeout=patience), Past
                )
                made = host.now() - min(max(answer.age, 0.0), FRESH)
                run, history = host.config.run, host.config.peer.history
                return Told(
                    await host.ports.work.run(
                        Kind.HISTORY, snapshot.load, answer.state, run, history, host.now()
                    ),
                    made,
                )
            except NetError as error:
                self._warn(f"{peer} did not tell what happened before: {error}")
            except (wire.WireError, snapshot.SnapshotError) as error:
                host.emit(events.Rejected, sender=peer, kind=Service.HISTORY, reason=str(error))
        return None

    async def _answer(self, sender: PeerId, _: bytes) -> bytes:
        now = self._host.now()
        if self._dumped is None or not 0 <= now - self._dumped[0] < FRESH:
            try:
                self._dumped = now, snapshot.dump(self.state, ANSWER)
            except snapshot.SnapshotError as error:
                raise Refused(str(error)) from error
        return wire.encode(Past(age=now - self._dumped[0], state=self._dumped[1]))

    # --- the disk -------------------------------------------------------------------------------------------

    def _remembered(self) -> tuple[State, str]:
        """What the file says, or a State without a past and why it is that."""
        run, history = self._host.config.run, self._host.config.peer.history
        try:
            return snapshot.load(self._file.read_bytes(), run, history, self._host.now()), ""
        except FileNotFoundError:
            why = ""
        except snapshot.SnapshotError as error:
            why = f"{self._file} cannot be read ({error}): the history begins anew"
        except OSError as error:
            why = f"{self._file} cannot be read ({error.strerror}): the history begins anew"
        return State(run, history), why

    async def _save_forever(self) -> None:
        while True:
            await self._host.ports.clock.sleep(self._host.config.peer.history.save)
            await self._save()

    async def _save(self) -> None:
        if self.state.revision == self._saved:
            return
        revision, content = self.state.revision, snapshot.dump(self.state)
        try:
            await self._host.ports.work.run(Kind.SAVE, write_durably, self._file, content)
        except OSError as error:
            if not self._full:
                self._warn(
                    f"the history is not in {error.filename}: {error.strerror}; free some space, the window"
                    " goes on"
                )
            self._full = True
            return
        self._saved, self._full = revision, False

    def _warn(self, text: str) -> None:
        self._host.emit(events.Noted, level="warning", text=text)
