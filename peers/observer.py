"""The observer: folds all events into the dashboard's SwarmState, saves it, and serves it to observers that
join late.

    bus -> Feed over SwarmState -> page, terminal
             ^       |
             |       +-> folder/history, every SAVE seconds and at the end
             |       +-> service `history` -> an observer that joined late
    own file, or a member's snapshot when that is newer: a seed's, if one is here

Nothing proves that a snapshot is true, and the dashboard shows it as fact, so snapshots are taken from
members alone. Where none answers the history begins now.

`catch_up` runs before anything reads the feed; events that arrive meanwhile are folded after the snapshot.
When a file or a snapshot cannot be read, a warning says so and the SwarmState begins without it; when the
disk is full, only the saved history is lost. Not handled here: how a SwarmState is folded, written and read
(dashboard).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from dashboard.fold import snapshot
from dashboard.fold.state import SwarmState
from dashboard.serve.feed import Feed
from peers.runtime.host import Host
from swarm import events
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.limits import FRAME_LIMIT
from swarm.net.ports import NetError, Refused
from swarm.protocol import Kind, Role, Service
from swarm.storage.durable import write_durably
from swarm.types import Finite, PeerId, Struct

SAVE = 30.0
"""Seconds between two saves: of a killed peer the newest events are missing on its dashboard when it
starts again."""

ANSWER_LIMIT = 3670016
"""Bytes, 3.5 MiB: a frame of mail is 4 MiB, and a private run wraps it."""

DUMP_LIFETIME = 2.0
"""Seconds for which one dump is reused: many observers that join at once cost one dump, and none misses more
than this."""

GOSSIP_DELAY = 1.2
"""Seconds until gossip of others arrives: GossipSub makes its mesh once a second. An observer that asks
earlier misses events after the answer."""

PATIENCE = 5.0
"""Seconds to wait for a snapshot: a dashboard without history is better than none."""

PATIENCE_EACH = 1.5
"""Seconds of these for each peer but the last: a silent one leaves time for another."""

HELD_EVENTS = 10_000
"""Events that are held until the answer: a thousand peers send fewer in these seconds."""


class Past(Struct):
    """The answer of service `history`."""

    age: Finite
    """Seconds since the snapshot was made: an age, because clocks of two peers differ."""
    state: Annotated[bytes, Meta(max_length=FRAME_LIMIT)]
    membership: Membership | None = None
    """Membership of the answering peer: the run's owner vouches for it."""


class ReceivedHistory(NamedTuple):
    state: SwarmState
    made: float
    """When it was made, by the receiver's clock."""


class Observer:
    """Construct it before the host runs; enter `running`; call `catch_up` once the host runs."""

    def __init__(self, host: Host, peer_folder: Path, starts: Mapping[Role, int] | None = None) -> None:
        """`starts` as of a SwarmState."""
        self._host, self._file = host, peer_folder / "history"
        self._dumped: tuple[float, bytes] | None = None
        self._saved = 0
        self._held: list[tuple[float, events.Event]] | None = None
        state, complaint = self._load_file()
        state.starts = self._starts = starts or {}
        self.feed = Feed(state, host.now, host.ports.me)
        host.bus.add(self._on_event)
        if complaint:
            self._warn(complaint)

    @property
    def state(self) -> SwarmState:
        return self.feed.state

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Save the SwarmState and answer service `history` while the body runs."""
        await self._host.ports.mail.serve(Service.HISTORY, self._answer)
        async with asyncio.TaskGroup() as tasks:
            saving = tasks.create_task(self._save_forever(), name="history")
            try:
                yield
            finally:
                saving.cancel()
        await self._save()

    async def catch_up(self, sources: Sequence[PeerId]) -> bool:
        """Take over a member's SwarmState, unless this one is newer. False when no member answered."""
        self._held = []
        theirs = None
        try:
            async with asyncio.timeout(PATIENCE):
                await self._host.ports.clock.sleep(GOSSIP_DELAY)
                theirs = await self._ask(sources)
        except TimeoutError:
            self._warn("no member of the run sent the history: it begins now")
        finally:
            held, self._held = self._held, None
            since = self._choose_state(theirs)
            for heard, event in held:
                # The snapshot has what other peers sent before it was made, but not this peer's own events;
                # a heartbeat has a number, and folding it twice counts it once.
                if heard > since or event.peer == self._host.ports.me or isinstance(event, events.Heard):
                    self.feed(event)
        return theirs is not None

    def _on_event(self, event: events.Event) -> None:
        if self._held is None:
            self.feed(event)
        elif len(self._held) < HELD_EVENTS:
            self._held.append((self._host.now(), event))

    def _choose_state(self, theirs: ReceivedHistory | None) -> float:
        """Choose between a seed's SwarmState and mine. Returns when the chosen one was made, by this peer's
        clock."""
        mine = self.state
        # A seed that lost its own history has recent events only.
        if (
            theirs is None
            or theirs.state.last <= mine.last
            or theirs.state.tally.trained < mine.tally.trained
        ):
            return float("-inf")
        theirs.state.starts = self._starts
        self.feed.state = theirs.state
        return theirs.made

    # --- service `history` ----------------------------------------------------------------------------------

    async def _ask(self, sources: Sequence[PeerId]) -> ReceivedHistory | None:
        host, members = self._host, set(self._host.members())
        seeds = [peer for peer, beat in host.roster if beat.role is Role.SEED]
        asked = [peer for peer in dict.fromkeys([*seeds, *sources]) if peer != host.ports.me]
        # any number of strangers may be connected, and an invite may name peers that are gone
        asked.sort(key=lambda peer: (peer not in members, peer not in host.roster))
        for place, peer in enumerate(asked, 1):
            patience = PATIENCE if place == len(asked) else PATIENCE_EACH
            try:
                answer = wire.decode(
                    await host.ports.mail.send(peer, Service.HISTORY, b"", timeout=patience), Past
                )
                self._check_stranger(peer, answer)
                made = host.now() - min(max(answer.age, 0.0), DUMP_LIFETIME)
                return ReceivedHistory(
                    await host.ports.work.run(
                        Kind.HISTORY, snapshot.load, answer.state, host.config.run, host.now()
                    ),
                    made,
                )
            except NetError as error:
                self._warn(f"{peer} did not send the history: {error}")
            except (wire.WireError, snapshot.SnapshotError) as error:
                host.emit(events.Rejected, sender=peer, kind=Service.HISTORY, reason=str(error))
        return None

    def _check_stranger(self, peer: PeerId, answer: Past) -> None:
        """Raises WireError where the answering peer has no membership."""
        host, shown = self._host, answer.membership
        if shown is not None:
            host.trust.lack(peer, shown.delegation.role, shown, host.now())
        if peer not in host.members():
            raise wire.WireError("its sender has no membership: a history is taken from members alone")

    async def _answer(self, sender: PeerId, _: bytes) -> bytes:
        now = self._host.now()
        if self._dumped is None or not 0 <= now - self._dumped[0] < DUMP_LIFETIME:
            try:
                self._dumped = now, snapshot.dump(self.state, ANSWER_LIMIT)
            except snapshot.SnapshotError as error:
                raise Refused(str(error)) from error
        shown = self._host.frames.membership
        return wire.encode(Past(age=now - self._dumped[0], state=self._dumped[1], membership=shown))

    # --- the disk -------------------------------------------------------------------------------------------

    def _load_file(self) -> tuple[SwarmState, str]:
        """The saved SwarmState, or an empty one and the reason for it."""
        run = self._host.config.run
        try:
            return snapshot.load(self._file.read_bytes(), run, self._host.now()), ""
        except FileNotFoundError:
            why = ""
        except snapshot.SnapshotError as error:
            why = f"{self._file} cannot be read ({error}): the history begins anew"
        except OSError as error:
            why = f"{self._file} cannot be read ({error.strerror}): the history begins anew"
        return SwarmState(run), why

    async def _save_forever(self) -> None:
        while True:
            await self._host.ports.clock.sleep(SAVE)
            await self._save()

    async def _save(self) -> None:
        if self.state.revision == self._saved:
            return
        revision, content = self.state.revision, snapshot.dump(self.state)
        try:
            await self._host.ports.work.run(Kind.SAVE, write_durably, self._file, content)
        except OSError as error:
            self._host.disk.report(
                "history",
                f"the history is not in {error.filename}: {error.strerror}; the window goes on",
            )
            return
        self._host.disk.report("history", "")
        self._saved = revision

    def _warn(self, text: str) -> None:
        self._host.emit(events.Noted, level="warning", text=text)
