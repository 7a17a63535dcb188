"""Matchmaking of averaging: forms a group of learners that all invited each other, without the DHT.

    larger ids                         smaller id (the leader)
    ask ------- JoinRequest ---------> waits here until its peer matches for the same version, then
        <------ ACCEPTED --------------  the smallest that accepted a member is its leader
        <------ BEGIN (members) -------  when all invited are here, or the first window of the group ends

Runs in the averager process. In come versions and invited peers, out goes a GroupInfo, or None. Invariants:
requests go from larger ids to smaller ones only (and from those that only dial to all others), so that two
can never wait for each other; a member follows the smallest id that accepted it and continues to ask smaller
ones, so that the smallest takes over even when it comes late; no order of arrival and no delay below the
window separates learners that match at the same time. The invited peers are known beforehand: nothing is
looked up. All candidates are asked at once, each by one stream that stays open: a frozen or dead one delays
none of the others, and nothing is polled.

hivemind's messages are used and hivemind's Matchmaking is not: it looks for the others in the DHT (seconds on
a busy machine), asks one at a time under a lock, and orders them by expirations. Windows are
sent as remaining seconds, since clocks may differ.

Not handled: a follower that leaves in the moment when its leader begins costs all of that group the round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from hivemind.proto.averaging_pb2 import (
    ACCEPTED,
    BAD_SCHEMA_HASH,
    BEGIN_ALLREDUCE,
    GROUP_DISBANDED,
    NOT_LOOKING_FOR_GROUP,
    PROTOCOL_VIOLATION,
    JoinRequest,
    MessageFromLeader,
)

from swarm.net.averaging.announcing import Announcement, MatchError, read_announcement, tag

log = logging.getLogger(__name__)

POLL = 0.05
"""Seconds between two checks of the window's end, and before a peer that refused or did not answer is asked
again."""

LONGEST_WINDOW = 3600.0
"""Seconds for which an applicant may wait: no version takes as long, and infinity is no time."""

LONGEST_POLL = 0.4
"""Seconds up to which POLL doubles with each try: a dead peer costs a few dials in a window, one that
restarts (0.2 s) is found in it."""


def _rank(peer: PeerID) -> bytes:
    raw: bytes = peer.to_bytes()  # hivemind compares the base58 texts, which have another order
    return raw


@dataclass(eq=False, slots=True)
class Applicant:
    """A peer that asked this one to lead, while its stream is open."""

    peer: PeerID
    raw: bytes
    """Its announcement as it was sent: all members get these bytes."""
    announcement: Announcement
    until: float
    """Loop time at which its window ends."""
    accepted: bool = False
    replies: asyncio.Queue[MessageFromLeader] = field(default_factory=asyncio.Queue)

    def reply(self, code: int, **fields: Any) -> None:
        """Queue a message to the applicant."""
        self.replies.put_nowait(MessageFromLeader(code=code, **fields))

    async def next_reply(self, grace: float) -> MessageFromLeader:
        """The next queued message; NOT_LOOKING_FOR_GROUP `grace` seconds after the end of its window."""
        try:
            async with asyncio.timeout_at(self.until + grace):
                return await self.replies.get()
        except TimeoutError:
            return MessageFromLeader(code=NOT_LOOKING_FOR_GROUP)


class Matching:
    """Gathers one group at a time; requests of others wait here between and during rounds."""

    def __init__(
        self,
        me: PeerID,
        dial_only: bool,
        schema: bytes,
        window: float,
        grace: float,
        stub: Callable[[PeerID], Any],
    ):
        """`window`: seconds to find the others; `grace`: seconds beyond it in which an accepted member still
        waits to begin."""
        self.me, self.dial_only = me, dial_only
        self.invited: frozenset[PeerID] = frozenset()
        self._gone: frozenset[PeerID] = frozenset()
        """Those of them that are no longer awaited."""
        self._schema, self._window, self._grace, self._stub = schema, window, grace, stub
        self._applicants: dict[PeerID, Applicant] = {}
        self._asking: dict[PeerID, asyncio.Task[None]] = {}
        self._leader: PeerID | None = None
        self._group: asyncio.Future[GroupInfo] | None = None

    def gone(self, peers: Iterable[PeerID]) -> None:
        """These are not waited for any more by the group that forms."""
        self._gone |= self.invited & {*peers}
        self._admit()

    async def gather(
        self, announcement: Announcement, peers: frozenset[PeerID], patience: float = 0.0
    ) -> GroupInfo | None:
        """The group, as soon as all of `peers` but those that are gone are in it, or the first window of its
        members ends, of which this one's is `patience` seconds longer; None when no other member came, or
        will."""
        loop = asyncio.get_running_loop()
        self.invited, self._gone, self._announcement = peers, frozenset(), announcement
        self._raw = msgspec.msgpack.encode(self._announcement)
        self._until, self._group = loop.time() + self._window + patience, loop.create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    self._ask_all()
                    self._admit()
                    return await self._gathered(self._group)
                finally:
                    self._group = self._leader = None
                    self._stop_asking_above(None)
        finally:
            self._disband()

    async def _gathered(self, group: asyncio.Future[GroupInfo]) -> GroupInfo | None:
        loop = asyncio.get_running_loop()
        while not group.done():
            followers = self._followers()
            end = (
                min([self._until, *(one.until for one in followers)])
                if self._leader is None
                else self._until + self._grace
            )
            if (left := end - loop.time()) > 0 and not (self._leader is None and self._gone >= self.invited):
                await asyncio.wait({group}, timeout=min(left, POLL))
            elif self._leader is None and followers:
                self._begin()
            else:
                return None
        return group.result()

    # --- as a leader ----------------------------------------------------------------------------------------

    async def join(self, request: JoinRequest, peer: PeerID) -> AsyncGenerator[MessageFromLeader, None]:
        """Answer a request: a refusal at once, or ACCEPTED when the applicant fits and then BEGIN or an
        end."""
        applicant = self._read(request, peer)
        if isinstance(applicant, int):
            yield MessageFromLeader(code=applicant)
            return
        if (
            older := self._applicants.get(peer)
        ) is not None:  # its stream broke and that is not known here yet
            older.reply(GROUP_DISBANDED)
        self._applicants[peer] = applicant
        self._admit()
        try:
            while (reply := await applicant.next_reply(self._grace)).code == ACCEPTED:
                yield reply
        finally:
            if self._applicants.get(peer) is applicant:
                del self._applicants[peer]
        yield reply
        # The asker hangs up: p2pd may lose a message that is sent right before this side closes.
        await asyncio.sleep(self._grace)

    def _read(self, request: JoinRequest, peer: PeerID) -> Applicant | int:
        """An applicant, or the code of its refusal."""
        if peer not in self.invited:  # of the last round when there is none now: others ask again
            return int(PROTOCOL_VIOLATION if self._group is not None else NOT_LOOKING_FOR_GROUP)
        if request.schema_hash != self._schema:
            return int(BAD_SCHEMA_HASH)
        try:
            announcement = read_announcement(request.gather)
        except MatchError:
            return int(PROTOCOL_VIOLATION)
        if (
            self.dial_only
            or not request.expiration > 0
            or not (announcement.dial_only or _rank(peer) > _rank(self.me))
        ):
            return int(PROTOCOL_VIOLATION)
        until = asyncio.get_running_loop().time() + min(request.expiration, LONGEST_WINDOW)
        return Applicant(peer, request.gather, announcement, until)

    def _followers(self) -> list[Applicant]:
        return [one for one in self._applicants.values() if one.accepted]

    def _admit(self) -> None:
        """Accept every applicant that fits, and begin when the group is full."""
        if self._group is None or self._group.done() or self._leader is not None:
            return
        for applicant in self._applicants.values():
            if not applicant.accepted and self._fits(applicant):
                applicant.accepted = True
                applicant.reply(ACCEPTED)
        followers = {one.peer for one in self._followers()}
        if followers and followers | self._gone >= self.invited:
            self._begin()

    def _fits(self, applicant: Applicant) -> bool:
        followers = self._followers()
        return (
            applicant.announcement.v == self._announcement.v
            and applicant.announcement.weights == self._announcement.weights
            and applicant.peer in self.invited
            and applicant.until > asyncio.get_running_loop().time()
            and {tag(self.me), *(tag(one.peer) for one in followers)} <= set(applicant.announcement.invited)
            and all(tag(applicant.peer) in one.announcement.invited for one in followers)
        )

    def _begin(self) -> None:
        assert self._group is not None
        followers = self._followers()
        announced = {self.me: self._raw, **{one.peer: one.raw for one in followers}}
        group = GroupInfo(
            os.urandom(20),
            tuple(sorted(announced, key=_rank)),
            tuple(announced[peer] for peer in sorted(announced, key=_rank)),
        )
        members = [peer.to_bytes() for peer in group.peer_ids]
        for one in followers:
            one.accepted = False
            one.reply(
                BEGIN_ALLREDUCE, group_id=group.group_id, ordered_peer_ids=members, gathered=group.gathered
            )
        self._group.set_result(group)

    def _disband(self) -> None:
        for one in self._followers():
            one.accepted = False
            one.reply(GROUP_DISBANDED)

    # --- as a follower --------------------------------------------------------------------------------------

    def _ask_all(self) -> None:
        """Ask every peer that may lead me and is not asked yet."""
        for peer in self.invited:
            if (self.dial_only or _rank(peer) < _rank(self.me)) and peer not in self._asking:
                self._asking[peer] = self._tasks.create_task(self._keep_asking(peer))

    def _stop_asking_above(self, leader: PeerID | None) -> None:
        """Continue to ask those below the leader only; none at all when it is None."""
        for peer in list(self._asking):
            if leader is None or _rank(peer) > _rank(leader):
                self._asking.pop(peer).cancel()

    async def _keep_asking(self, leader: PeerID) -> None:
        pause = POLL
        while True:
            try:
                if await self._ask(leader):
                    pause = POLL
            except Exception as error:  # whatever p2pd and the other side may answer: it is asked again
                log.debug("asking %s to lead failed: %s", leader, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL)

    async def _ask(self, leader: PeerID) -> bool:
        """Ask until the leader refuses, disbands or begins. Returns whether it had accepted me."""
        left = self._until - asyncio.get_running_loop().time()
        request = JoinRequest(
            schema_hash=self._schema, expiration=left, gather=self._raw, client_mode=self.dial_only
        )
        accepted = False
        try:
            async with contextlib.aclosing(await self._stub(leader).rpc_join_group(request)) as replies:
                async for reply in replies:
                    if reply.code == BEGIN_ALLREDUCE and accepted:
                        self._take_group(reply)
                    if reply.code != ACCEPTED:
                        break
                    if not accepted:
                        accepted = True
                        self._follow(leader)
        finally:
            if self._leader == leader:
                self._leave_leader()
        return accepted

    def _follow(self, leader: PeerID) -> None:
        """Follow a leader with a smaller id than the one before; go on asking only it and those below it."""
        self._leader = leader
        self._disband()
        self._stop_asking_above(leader)

    def _leave_leader(self) -> None:
        self._leader = None
        if self._group is not None and not self._group.done():
            self._ask_all()
            self._admit()

    def _take_group(self, reply: MessageFromLeader) -> None:
        members = tuple(map(PeerID, reply.ordered_peer_ids))
        if (
            self._group is not None
            and not self._group.done()
            and self.me in members
            and len(members) == len(reply.gathered)
        ):
            self._group.set_result(GroupInfo(reply.group_id, members, tuple(reply.gathered)))
