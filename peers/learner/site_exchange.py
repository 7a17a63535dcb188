"""Contributions between the learners of a run in `sites` mode, and the list of those that count.

    own     --> blocks under a root, named on topic "contribution", again at every beat until a list is here
    others' --> announced, fetched, measured                                          beside the round
    close   --> entries under a root, named on topic "counted"
    take    --> the entries of a list and their bytes, from the learners that name or hold them

Invariants: a contribution that counts was announced by a member of the run as its own, and fits this model;
each learner's first one to a version counts. Those to another version, or to other weights of this one, are
ignored. Not handled here: which learner closes a list and when (swarm.core.agreement.site_lists), the outer
step (peers.learner.sites).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement import site_lists
from swarm.core.agreement.site_lists import Gathered
from swarm.core.gradient_checks.norm_screening import Usual
from swarm.frames import wire
from swarm.frames.site_types import (
    CONTRIBUTED,
    Contributed,
    Contribution,
    ContributionList,
    ListEntries,
    ListEntry,
)
from swarm.learn.learners.site_learner import CountedContribution, SiteLearner
from swarm.limits import RELEASE_LIMIT
from swarm.net.blobs.store import Blobs
from swarm.net.ports import NetError
from swarm.protocol import Kind, Role, Service, Topic
from swarm.storage.blocks import Blocks
from swarm.types import MARK_BYTES, Digest, PeerId

KEEP = 4
"""Versions whose lists and contributions are held: a late learner takes the steps that it missed."""

LARGEST_LIST = 2 << 20
"""Bytes of a list: 4096 entries of 512."""

AT_ONCE = 4
"""Contributions that are fetched at a time: more would all be late on a slow line."""

CONTRIBUTED_BYTES = 64 + MARK_BYTES * CONTRIBUTED
"""Of a contribution beside its values, at most."""

SETTLED = 8
"""Lists after which I hold others' to my usual norm: half of those that it is taken from at most, so that an
honest learner's is taken from many of the same."""

RETRY = 1.0
"""Seconds before a contribution or a list that could not be had is fetched again."""


class Taken(NamedTuple):
    """A list, and all that it names."""

    entries: tuple[ListEntry, ...]
    counted: tuple[CountedContribution, ...]
    """In the order of the entries."""
    norms: tuple[float, ...]
    marks: Mapping[PeerId, bytes]
    """Of the groups that each was trained on."""

    @property
    def members(self) -> frozenset[PeerId]:
        return frozenset(one.learner for one in self.entries)

    @property
    def groups(self) -> int:
        return sum(one.groups for one in self.entries)

    @property
    def scaled(self) -> dict[PeerId, float]:
        return {one.learner: one.share for one in self.entries if one.share < 1}


class SiteExchange:
    def __init__(self, host: Host, learner: SiteLearner, where: Callable[[], tuple[int, Digest]]) -> None:
        """`where()`: my version and its weights."""
        self._host, self._learner, self._where = host, learner, where
        self._blobs = Blobs(
            host.ports.mail, service=Service.CONTRIBUTIONS, keep=KEEP, rng=host.rng, on_bad=self._bad_holder
        )
        self._at = where()
        self._gathered = Gathered(self._at[1])
        self._lists: OrderedDict[tuple[int, Digest], ContributionList] = OrderedDict()
        """Version and its weights -> its list: the last ones received."""
        self._entries: tuple[ListEntry, ...] = ()
        """Of that list."""
        self._tried: dict[Digest, float] = {}
        """List of my version -> when it was tried first."""
        self._refused: set[Digest] = set()
        """Lists that are of no use."""
        self._mine, self._my_root = b"", Digest("")
        """My contribution, as I named it, and its bytes' root."""
        self._closed: tuple[int, bytes] = (-1, b"")
        """The version of the last list that I closed, and the list as I named it."""
        self._asked = asyncio.Event()
        """Whether a peer lacks that list."""
        self._under_way: set[Digest] = set()
        self._usual = Usual()

    # --- beside the round -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Receive contributions and lists, fetch contributions, and announce its own again, until
        cancelled."""
        await self._blobs.serve()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._host.listen(Topic.CONTRIBUTION, self._receive))
            tasks.create_task(self._host.listen(Topic.COUNTED, self._receive_list))
            tasks.create_task(self._repeat_forever())
            tasks.create_task(self._answer_forever())
            for _ in range(AT_ONCE):
                tasks.create_task(self._fetch_forever())

    def gathered(self) -> Gathered:
        """The contributions to my version that I know."""
        if (at := self._where()) != self._at:
            self._at, self._gathered, self._entries = at, Gathered(at[1]), ()
            self._mine, self._my_root = b"", Digest("")
            self._refused.clear()
            self._tried.clear()
        return self._gathered

    def _receive(self, sealed: bytes) -> None:
        opened, one = self._host.read(sealed, RELEASE_LIMIT, Contribution)
        self._check(opened, one.learner, f"contribution to version {one.version}")
        gathered = self.gathered()
        if (one.version, one.weights) != self._at or one.learner == self._host.ports.me:
            if one.version == self._closed[0]:
                self._asked.set()
            return
        most = self._largest()
        if not 0 < one.size <= most:
            raise wire.WireError(f"contribution of {one.size} bytes to version {one.version}: at most {most}")
        if why := gathered.name(one, self._host.now()):
            raise wire.WireError(f"contribution to version {one.version}: {why}")
        self._host.move()

    def _receive_list(self, sealed: bytes) -> None:
        opened, closed = self._host.read(sealed, RELEASE_LIMIT, ContributionList)
        self._check(opened, closed.leader, f"list of version {closed.version}")
        if not 0 < closed.size <= LARGEST_LIST:
            raise wire.WireError(f"list of version {closed.version} with {closed.size} bytes")
        if closed.root not in self._refused:
            self._know(closed)

    def _know(self, closed: ContributionList) -> None:
        """Remember a list, the first of each version. Those of the versions farthest from this learner's are
        dropped, whatever versions others claim."""
        self.gathered()
        self._lists.setdefault((closed.version, closed.weights), closed)
        while len(self._lists) > KEEP:
            del self._lists[max(self._lists, key=lambda at: (at != self._at, abs(at[0] - self._at[0])))]
        self._host.move()

    def _check(self, opened: wire.Opened, signer: PeerId, what: str) -> None:
        """Raise WireError unless the signer is a learner of this run and states its own."""
        why = self._host.distrust(opened, Role.LEARNER)
        if why is None and opened.sender != signer:
            why = f"it is not signed by {signer}"
        if why is not None:
            raise wire.WireError(f"{what} of {opened.sender}: {why}")

    async def _repeat_forever(self) -> None:
        """A message of gossip may be lost, and a learner at an earlier version ignored it."""
        while True:
            await self._host.ports.clock.sleep(self._host.config.run.pace.beat)
            if self.undecided and self._mine:
                await self._publish(Topic.CONTRIBUTION, self._mine)

    async def _answer_forever(self) -> None:
        """Announce my list again to learners that have not received it: at once, then at most once a beat."""
        while True:
            await self._asked.wait()
            await self._publish(Topic.COUNTED, self._closed[1])
            await self._host.ports.clock.sleep(self._host.config.run.pace.beat)
            self._asked.clear()

    async def _publish(self, topic: Topic, sealed: bytes) -> None:
        await self._host.ports.gossip.publish(self._host.topic(topic), sealed)

    async def _fetch_forever(self) -> None:
        while True:
            due = (one for one in self.gathered().missing() if one.root not in self._under_way)
            if (one := next(due, None)) is None:
                await self._host.changed(self._host.config.run.pace.beat)
                continue
            self._under_way.add(one.root)
            try:
                await self._fetch(one, self._gathered)
            finally:
                self._under_way.discard(one.root)

    async def _fetch(self, one: Contribution, gathered: Gathered) -> None:
        try:
            found = await self._fetched(one, one.learner)
        except NetError:
            await self._host.ports.clock.sleep(RETRY)
            return
        why, norm, marks = "", 0.0, b""
        try:
            norm, marks = await self._host.ports.work.run(Kind.PATCH, self._read_contributed, found.whole)
        except ValueError as error:
            why = f"contribution to version {one.version}: {error}"
        if gathered.named.get(one.learner) != one:
            return  # a list names something else by now
        if not why:
            gathered.norms[one.learner], gathered.marks[one.learner] = norm, marks
        else:
            gathered.useless.add(one.learner)
            if one.learner not in gathered.displaced:  # else a list named it, not its learner
                self._host.emit(events.Rejected, sender=one.learner, kind=Service.CONTRIBUTIONS, reason=why)
        self._host.move()

    async def _fetched(self, named: Contribution | ContributionList, first: PeerId) -> Blocks:
        """From `first`, which announced it, and all learners that are known by now. Raises NetError."""
        holders = partial(self._holders, first)
        return await self._blobs.fetch(named.version, named.root, named.size, holders(), holders)

    def _read_contributed(self, data: bytes) -> tuple[float, bytes]:
        contributed = wire.decode(data, Contributed)
        return self._learner.norm(contributed.values), contributed.groups

    def _largest(self) -> int:
        """Bytes of a contribution at most."""
        return self._learner.largest + CONTRIBUTED_BYTES

    def _holders(self, first: PeerId) -> list[PeerId]:
        """Peers that may have the contribution or list that `first` announced."""
        others = [peer for peer in self._host.roster.learners() if peer not in (first, self._host.ports.me)]
        return [first, *others]

    # --- for the round --------------------------------------------------------------------------------------

    @property
    def undecided(self) -> bool:
        """Whether no list of my version is known that may be of use."""
        self.gathered()
        return self._at not in self._lists

    async def contribute(self, groups: int, weight: float, marks: bytes) -> None:
        """Name what I trained since my version, on `groups` groups with these marks. Raises ValueError where
        it is not finite."""
        gathered, me = self.gathered(), self._host.ports.me
        blocks, norm = await self._host.ports.work.run(Kind.COPY, self._packed, marks)
        one = Contribution(
            version=self._at[0],
            weights=self._at[1],
            learner=me,
            root=blocks.root,
            size=blocks.size,
            groups=groups,
            weight=weight,
        )
        self._blobs.hold(one.version, blocks)
        gathered.name(one, self._host.now())
        gathered.norms[me], gathered.marks[me] = norm, marks[: MARK_BYTES * CONTRIBUTED]
        self._mine, self._my_root = self._host.seal(one, RELEASE_LIMIT), one.root
        await self._publish(Topic.CONTRIBUTION, self._mine)

    def _packed(self, marks: bytes) -> tuple[Blocks, float]:
        values = self._learner.contribution()
        contributed = Contributed(groups=marks[: MARK_BYTES * CONTRIBUTED], values=values)
        return Blocks.of(wire.encode(contributed)), self._learner.norm(values)

    @property
    def _groups(self) -> int:
        """Groups of a version over all learners."""
        run = self._host.config.run
        return run.batch.groups * run.averaging.local_steps

    async def close(self) -> None:
        """Sign the list of the contributions that are here."""
        listed = site_lists.entries(self.gathered(), self._usual.norm(), self._groups)
        blocks = Blocks.of(wire.encode(listed))
        version, weights = self._at
        self._blobs.hold(version, blocks)
        closed = ContributionList(
            version=version, weights=weights, leader=self._host.ports.me, root=blocks.root, size=blocks.size
        )
        self._know(closed)
        self._closed = (version, self._host.seal(closed, RELEASE_LIMIT))
        await self._publish(Topic.COUNTED, self._closed[1])

    async def take(self) -> Taken | None:
        """The list of my version with all that it names; None while there is none, or something is
        missing."""
        gathered = self.gathered()
        closed = self._lists.get(self._at)
        if closed is None:
            return None
        self._tried.setdefault(closed.root, self._host.now())
        if not (entries := await self._read(closed)):
            return None
        if gathered.must_have(entries, self._at[0], self._host.now()):
            self._host.move()
        for one in entries:
            if one.learner in gathered.useless:
                self.refuse(f"what it names of {one.learner} is no contribution")
                return None
        here = {one.learner: self._blobs.blocks(one.root) for one in entries}
        for learner in (learner for learner, blocks in here.items() if blocks is None):
            gathered.norms.pop(learner, None)
        if not here.keys() <= gathered.norms.keys():
            return None
        norms = tuple(gathered.norms[learner] for learner in here)
        usual = self._usual.norm() if self._usual.rounds >= SETTLED else 0.0
        if why := site_lists.overreach(entries, norms, usual, self._groups):
            self.refuse(why)
            return None
        found = {
            learner: wire.decode(blocks.whole, Contributed)
            for learner, blocks in here.items()
            if blocks is not None
        }
        factors = site_lists.factors(entries)
        return Taken(
            entries,
            tuple(
                CountedContribution(one.values, factor)
                for one, factor in zip(found.values(), factors, strict=True)
            ),
            norms,
            {learner: one.groups for learner, one in found.items()},
        )

    async def _read(self, closed: ContributionList) -> tuple[ListEntry, ...]:
        """The entries of a list; none while they cannot be had, or are of no use."""
        if self._entries:
            return self._entries
        try:
            found = await self._fetched(closed, closed.leader)
            entries = wire.decode(found.whole, ListEntries)
        except NetError:
            return ()
        except wire.WireError as error:
            self.refuse(str(error))
            return ()
        if why := site_lists.objection(entries, self._largest()):
            self.refuse(why)
            return ()
        if self._lists.get(self._at) == closed:
            self._entries = entries
        return entries

    def give_up(self) -> None:
        """Forget the list of this version where no peer served it, or its contributions, in time: another
        list may come, also one of this learner."""
        gathered, now = self.gathered(), self._host.now()
        closed = self._lists.get(self._at)
        if closed is None or now < self._tried.get(closed.root, now) + site_lists.PATIENCE:
            return
        if self._entries and gathered.awaited(now):
            return
        lacks = ", ".join(one.learner for one in gathered.missing()) or closed.leader
        what = f"what the list of version {closed.version} is made of ({lacks})"
        text = f"no peer gives {what}: going on without it"
        self._host.emit(events.Noted, level="warning", text=text)
        self._forget(closed)

    def _forget(self, closed: ContributionList) -> None:
        del self._lists[self._at]
        self._entries = ()
        self._refused.add(closed.root)
        self._gathered.list_gone()
        self._host.move()

    def refuse(self, why: str) -> None:
        """The list of my version is of no use: another one may come, or the release of the next version."""
        closed = self._lists[self._at]
        self._forget(closed)
        reason = f"list of version {closed.version}: {why}"
        self._host.emit(events.Rejected, sender=closed.leader, kind=Topic.COUNTED, reason=reason)

    def mine(self, taken: Taken) -> bool:
        """Whether my contribution, as I named it last, is in this list."""
        me = self._host.ports.me
        return any((one.learner, one.root) == (me, self._my_root) for one in taken.entries)

    def used(self, taken: Taken) -> None:
        """A version was made of this list: its norms are usual."""
        self._usual.add(taken.norms)

    def _bad_holder(self, holder: PeerId, reason: str) -> None:
        self._host.emit(events.Rejected, sender=holder, kind=Service.CONTRIBUTIONS, reason=reason)
