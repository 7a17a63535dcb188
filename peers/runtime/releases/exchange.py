"""Releases between this peer and the swarm: the one way by which a policy leaves a role and reaches one.

    a learner's step                  other peers' policies
         |                                 ^
      pack      its bytes, cut and held    | obtain   the best available release, and its bytes
         |                                 |
      prepare   patches, by its publisher  |
         |                                 |
      announce  topic "release"  ------> hear    topic "release", services "newest" and "release", board, disk
                                           |
                                         fetch   blocks from holders and the publisher  (swarm.net.blobs)
                                           |
                                         hold --> serve: blocks, the newest one held, one that is sought

`publish` is all three in one. Which release counts and which one is worth a try is decided in
swarm.core.agreement.releases. Invariants: others learn only of releases whose bytes are here; a release
counts only with its publisher's signature, as a member whose role may publish. A peer without a source looks
for holders among samplers too, whose heartbeats otherwise only observers receive. Not handled here: the
content of the bytes (swarm.learn.files.weights), how blocks travel (swarm.net.blobs.store).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from peers.runtime.faults import DiskFaults
from peers.runtime.kernel import Kernel
from peers.runtime.notifier import Notifier
from peers.runtime.peer_folder import RELEASES
from peers.runtime.releases.agreement import Agreement
from peers.runtime.releases.announcements import Announcements
from peers.runtime.releases.lines import ReleaseLines
from peers.runtime.releases.missed import MissedReleases
from peers.runtime.releases.patch_ladder import PatchLadder
from swarm import events
from swarm.core.agreement.releases import PUBLISHERS, rank
from swarm.core.roster import CLOCK
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT, remember
from swarm.net.blobs.store import Blobs
from swarm.net.ports import NetError
from swarm.protocol import Kind, Role, Service, Topic
from swarm.settings.config import Config
from swarm.storage.image import Draft
from swarm.storage.weights import Weights
from swarm.types import Beat, Digest, Fetching, Patch, PeerId, Release

STORE_EVERY = 10.0
"""Seconds between two retries of refused writes."""

KEPT = 2
"""Newest versions whose bytes are held, except by seeds and mirrors: of two releases of a version, each is a
patch from the version before."""


def mirrors(config: Config) -> bool:
    """Whether a peer with these settings is a mirror (peers.runtime.releases.mirror)."""
    return config.peer.serve == "mirror"


class ReleaseExchange:
    """Announces, receives, fetches, holds and serves the releases of one run as one peer."""

    def __init__(self, kernel: Kernel, disk: DiskFaults, folder: Path | None) -> None:
        """Releases' bytes are held in `folder`, and what their publishers signed beside it; or in memory."""
        run, lasting = kernel.config.run, kernel.who.role is Role.SEED
        self._kernel, self._disk = kernel, disk
        self.lines = ReleaseLines(kernel)
        self.agreement = Agreement(kernel, self.lines, self._took)
        self.candidates = self.agreement.candidates
        self._on_disk = folder is not None
        self.blobs = Blobs(
            kernel.ports.mail,
            folder=folder,
            keep=run.release.keep if lasting or mirrors(kernel.config) else min(run.release.keep, KEPT),
            on_bad=self._bad_holder,
            rng=kernel.rng,
            on_damage=disk.damaged,
            reach=kernel.ports.reach,
        )
        self.blobs.lasting, self.blobs.on_disk = lasting, partial(disk.report, "releases")
        self._announcements = Announcements(
            None if folder is None else folder.with_name(RELEASES), partial(disk.report, "announcements")
        )
        self.patches = PatchLadder(kernel, disk, self.blobs, None if folder is None else folder / "patches")
        self._missed = MissedReleases(kernel, self.candidates, self.patches.bases, self.remember)
        self._mistimed = OrderedDict[PeerId, None]()
        """Publishers whose last release had a time that disagrees with its arrival."""
        self.lacks = False
        """A release that I wait for could not be had at once."""
        self._changes = Notifier()
        self._under_way = WeakValueDictionary[Digest, asyncio.Lock]()
        """Weights -> held while they are fetched: a role and a mirror want the same ones."""

    # --- out ------------------------------------------------------------------------------------------------

    def draft(self, size: int) -> Draft:
        """Where a release of mine is written, before it is packed."""
        return self.blobs.draft(size)

    async def pack(self, packed: Callable[[], Weights]) -> Weights:
        """Cut and hold my weights, beside the loop and the model: a large one's bytes take seconds to
        hash."""
        weights = await self._kernel.ports.work.run(Kind.PACK, packed)
        blocks = await self.blobs.take(weights.version, weights.blocks, made_here=True)
        return Weights(weights.version, blocks)

    async def prepare(self, weights: Weights, *, parent: Digest, learners: int, groups: int) -> Release:
        """The release of my weights, which are held, that I would announce. Its patches are made and held."""
        patches = await self.patches.make(weights, parent)
        return self._release(weights, parent, learners, groups, patches)

    async def publish(
        self,
        weights: Weights,
        *,
        parent: Digest | None = None,
        learners: int = 0,
        groups: int = 0,
    ) -> Release:
        """Hold these weights and announce them. A release without a parent is its own."""
        await self.blobs.take(weights.version, weights.blocks, made_here=True)
        release = self._release(weights, parent, learners, groups)
        await self.announce(release)
        return release

    def _release(
        self,
        weights: Weights,
        parent: Digest | None,
        learners: int,
        groups: int,
        patches: tuple[Patch, ...] = (),
    ) -> Release:
        return Release(
            version=weights.version,
            weights=weights.digest,
            size=weights.blocks.size,
            parent=weights.digest if parent is None else parent,
            publisher=self._kernel.ports.me,
            learners=learners,
            groups=groups,
            released=self._kernel.now(),
            patches=patches,
        )

    async def announce(self, release: Release) -> None:
        """Announce a release of this peer, with the votes for it."""
        release = msgspec.structs.replace(release, ballots=self.agreement.ballots(release))
        sealed = self._kernel.seal(release, RELEASE_LIMIT)
        await self._kernel.ports.gossip.publish(self._kernel.topic(Topic.RELEASE), sealed)
        # not before: an unannounced version is not released
        self._keep(release, sealed)

    # --- in -------------------------------------------------------------------------------------------------

    def receive(self, sealed: bytes, vouched: bool = False, from_disk: bool = False) -> bool:
        """Accept an announcement. True when it is news. Raises WireError for one without trust, also of a
        publisher that was revoked since, unless another peer `vouched` for its age. `from_disk`: it was
        announced in an earlier life, and its publisher's time is all that is left of that."""
        kernel = self._kernel
        opened, release = kernel.read(sealed, RELEASE_LIMIT, Release)
        role = Role.SEED if release.version == 0 else Role.LEARNER
        why = kernel.distrust(opened, role, said=release.released if vouched else None)
        if why is not None or release.publisher != opened.sender:
            raise wire.WireError(f"release {release.version}: {why or 'not signed by its publisher'}")
        if release.version == 0 and kernel.who.genesis not in (None, release.weights):
            raise wire.WireError(
                f"release 0 has the weights {release.weights}, the run began with {kernel.who.genesis}"
            )
        if (size := kernel.who.release_size) not in (None, release.size):
            raise wire.WireError(
                f"release {release.version} has {release.size} bytes, those of this run have {size}"
            )
        return self._keep(release, sealed, max(0.0, kernel.now() - release.released) if from_disk else 0.0)

    def _keep(self, release: Release, sealed: bytes, age: float = 0.0) -> bool:
        """True when it is news. `age`: seconds since it was first announced here."""
        kernel = self._kernel
        self.agreement.note_ballots(release)
        news = self.candidates.receive(release, sealed, kernel.steady() - age)
        if not self.lines.lineage.knows((release.version, release.weights)):
            self.lines.lineage.receive(release)
        if self._is_here(release):
            self.hold(release)
        if news:
            self.agreement.hear(release)
        if news and (kernel.is_of_author or release.publisher == kernel.ports.me):
            self._compare_time(release)
        self.move()
        return news

    def _took(self, release: Release) -> None:
        """A release counts: it was made from the one that it names, whatever others say."""
        self.lines.lineage.receive(release)
        if release.publisher == self._kernel.ports.me or self._kernel.who.observes:
            self._kernel.emit(events.Released, release=release)
        self.move()

    def _compare_time(self, release: Release) -> None:
        """Report, once, a publisher whose releases have another time than its heartbeats."""
        kernel, publisher = self._kernel, release.publisher
        apart = kernel.now() - release.released + kernel.roster.ahead(publisher)
        if abs(apart) <= CLOCK or publisher not in kernel.roster:
            self._mistimed.pop(publisher, None)
        elif publisher not in self._mistimed:
            remember(self._mistimed, publisher, None, PUBLISHERS)
            when = f"{abs(apart):.0f} s {'ago' if apart > 0 else 'from now'}"
            self._warn(
                f"{publisher} says that version {release.version}, which it released now, is of {when}: ages"
                " are counted from when its releases are heard"
            )

    def remember(self, sealed: bytes, by: PeerId | None = None) -> bool:
        """Take a sealed release that a peer (or the disk) kept. False: no news, or, with an event, none."""
        try:
            vouched = by is None or self._kernel.trust.vouches(by, self._kernel.now())
            return self.receive(sealed, vouched, from_disk=by is None)
        except wire.WireError as error:
            self._kernel.emit(
                events.Rejected, sender=self._kernel.ports.me, kind=Topic.RELEASE, reason=str(error)
            )
            return False

    def restore(self) -> None:
        """Load the releases that this peer's disk holds; a damaged announcement is reported and deleted."""
        for path, sealed in self._announcements.read():
            if not self.remember(sealed):
                self._warn(
                    f"{path} is damaged: its release is left out until a peer that holds it announces it"
                )
                path.unlink(missing_ok=True)
        for release in self.announced():
            if self._is_here(release):  # it was believed when it was kept
                self.hold(release)

    async def obtain(self, above: tuple[Any, ...]) -> tuple[Release, Weights] | None:
        """The best available release that ranks above `above`, and its weights. None when none is available
        now.

        One try: `retry_after` tells when the next one is due.
        """
        kernel = self._kernel
        self._note_given_up()
        self.lacks = self.candidates.lacking(above, kernel.steady())
        wanted = self.candidates.wanted(above, kernel.steady())
        if wanted is None:
            return None
        try:
            weights = await self.fetch(wanted)
        except NetError as error:
            self.candidates.failed(wanted, kernel.steady())
            self.lacks = self.candidates.lacking(above, kernel.steady())
            if self.lacks or self.candidates.held is None:
                self._warn(f"release {wanted.version} could not be fetched: {error}")
            self.move()
            return None
        self.hold(wanted)
        return wanted, weights

    def _note_given_up(self) -> None:
        for release in self.candidates.given_up(self._kernel.steady()):
            seconds = self._kernel.config.run.pace.patience
            self._warn(
                f"no peer gave release {release.version} of {release.publisher} for {seconds:g} s: going on"
                " without it, it is tried again now and then"
            )

    def retry_after(self, above: tuple[Any, ...]) -> float:
        """Seconds until `obtain` has something to try, as far as the clock alone decides."""
        pause = self.candidates.pause(above, self._kernel.steady())
        return min(pause, self._kernel.config.run.pace.patience)

    async def fetch(self, release: Release) -> Weights:
        """A release's weights, from here or from any holder. Raises NetError with each source's failure."""
        async with self._under_way.setdefault(release.weights, asyncio.Lock()):
            return await self._fetch(release)

    async def _fetch(self, release: Release) -> Weights:
        holders, later = self._holders(release), partial(self._holders, release)
        if not self.blobs.is_whole(release.weights):
            await self._missed.ask(release, self._beating_holders(release) or holders)
            blocks = await self.patches.fetch(release, self.candidates.by_weights(), holders, later)
        else:
            blocks = self.blobs.blocks(release.weights)
        if blocks is None:
            blocks = await self.blobs.fetch(release.version, release.weights, release.size, holders, later)
        return Weights(release.version, blocks)

    async def take_patches(self, release: Release) -> None:
        """Hold all patches that a release names. Raises NetError."""
        await self.patches.take(release, self._holders(release), partial(self._holders, release))

    def _holders(self, release: Release) -> list[PeerId]:
        others = {release.publisher} - {self._kernel.ports.me}
        return list(dict.fromkeys([*self._beating_holders(release), *others]))

    def _beating_holders(self, release: Release) -> list[PeerId]:
        return [
            peer for peer in self._kernel.roster.holders(release.version) if peer != self._kernel.ports.me
        ]

    # --- what is known --------------------------------------------------------------------------------------

    def found(self, version: int, weights: Digest, holder: PeerId | None) -> None:
        """A peer, `holder` where it is a member, claims that it holds these weights: a release that was
        unavailable, or not trusted, is tried again at once."""
        if self.candidates.found(version, weights, holder) or self.candidates.doubted:
            self.candidates.doubted = False
            self._changes.wake()

    def move(self) -> None:
        """Wake whoever waits for a release, and whoever waits for anything."""
        self._changes.wake()
        self._kernel.move()

    async def changed(self, timeout: float) -> None:
        """Wait until `obtain` may find something that it did not before, at most `timeout` seconds.
        Heartbeats, most of a kernel's messages, do not change that."""
        await self._changes.wait(timeout)

    @property
    def held(self) -> Release | None:
        """The best release whose bytes are here: the one that others learn of."""
        return self.candidates.held

    def awaited(self, above: tuple[Any, ...]) -> Release | None:
        """The best release above `above` that is here or worth waiting for."""
        return self.candidates.awaited(above, self._kernel.steady())

    def named(self, version: int, weights: Digest) -> Release | None:
        """The best announcement of these weights."""
        return self.candidates.named(version, weights)

    def announced(self) -> list[Release]:
        """All releases that are remembered, by version."""
        every = (release for same in self.candidates.by_weights().values() for release in same)
        return sorted(every, key=lambda release: release.version)

    def known(self, version: int, weights: Digest) -> list[Release]:
        """All announcements of these weights."""
        return self.candidates.known(version, weights)

    def released_here(self, release: Release) -> float:
        """When its weights were first announced to this peer, in unix seconds by its clock: the publisher's
        time makes no group older or younger."""
        received = self.candidates.received(release.version, release.weights)
        if received is None:
            return release.released
        return self._kernel.now() - (self._kernel.steady() - received)

    def was_announced(self, beat: Beat) -> bool:
        """Was the release that this heartbeat names announced to me?"""
        return bool(self.known(beat.version, beat.weights))

    def sealed(self, release: Release) -> bytes:
        """As its publisher signed it; empty when it is not known."""
        return self.candidates.sealed(release)

    def sealed_newest(self) -> bytes:
        """The newest release that is held here, as its publisher signed it; empty when there is none. That of
        this peer's own version is one though it does not count: the others vote for it, or do not."""
        while (held := self.held) is not None and not self._is_here(held):
            self.candidates.lose(held)
        mine = self.named(self._kernel.status.version, Digest(self._kernel.status.weights))
        here = [one for one in (held, mine) if one is not None and self._is_here(one)]
        return self.sealed(max(here, key=rank)) if here else b""

    def coming(self) -> Fetching | None:
        """The current download; None without one."""
        return self.blobs.coming() or self.patches.files.coming()

    def has(self, weights: Digest) -> bool:
        """Are the blocks of these weights held here?"""
        return self.blobs.is_whole(weights)

    def _is_here(self, release: Release) -> bool:
        return self.blobs.holds(release.weights, release.size)

    def hold(self, release: Release) -> None:
        """Its bytes are here."""
        if self.candidates.hold(release):
            self._announcements.keep(release.weights, self.sealed(release), self.has)

    async def lose(self, weights: Digest) -> None:
        """Reading these weights has failed: damaged blocks are fetched again when they are needed."""
        await self.blobs.check(weights)
        for release in self.candidates.by_weights().get(weights, ()):
            if not self._is_here(release):
                self.candidates.lose(release)
        self.move()

    def refuse(self, release: Release) -> None:
        """Its bytes are of no use: it is not held, and not wanted again."""
        self.candidates.refuse(release)
        self.move()

    async def run(self) -> None:
        """While the disk refuses something, retry now and then."""
        while self._on_disk:
            await self._kernel.ports.clock.sleep(STORE_EVERY)
            if self._disk.refuses:
                await self.blobs.store()
                await self.patches.files.store()
                if (held := self.held) is not None:
                    self._announcements.keep(held.weights, self.sealed(held), self.has)

    # --- answering others -----------------------------------------------------------------------------------

    async def serve(self) -> None:
        await self.blobs.serve()
        await self.patches.serve()
        await self._missed.serve()
        await self.lines.serve()

    def handlers(self) -> dict[Topic, Callable[[bytes], object]]:
        return {Topic.RELEASE: self.receive}

    def _bad_holder(self, holder: PeerId, reason: str) -> None:
        self._kernel.emit(events.Rejected, sender=holder, kind=Service.BLOBS, reason=reason)

    def _warn(self, text: str) -> None:
        self._kernel.emit(events.Noted, level="warning", text=text)
