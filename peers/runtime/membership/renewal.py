"""Renews a peer's membership before it ends, and answers members that ask for theirs.

    member -- "renew": its membership --> a peer with the owner's key (the seed where the run was started), or
                                          with an invite that makes such members (a delegation)
           <-- a new one, for invite.LIFETIME from now, or until that invite ends --
                                                                       -> frames, folder/membership

A newcomer by an invite with a number of uses asks for its first membership in the same way: where the owner's
key is, one is made for as many peers as the invite says (peers.runtime.membership.invite_quota).

A member asks itself, seeds and then others every CHECK seconds, from RENEW seconds before the end on. It
keeps the answer in its folder, so that it can rejoin with its first invite after that has expired. A
membership that the owner made final (`swarm invite --expires`) is not renewed, nor is one that has ended.
From WARN seconds before the end on, the dashboard and the terminal say so. A membership names the invites by
which its peer came, in their order, so that revoking any of them reaches it; one with LINKS of them is
renewed by the owner alone. Not handled here: revoking (peers.runtime.membership.revocations).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from peers.runtime.faults import DiskFaults, FaultReport
from peers.runtime.kernel import Kernel
from peers.runtime.membership import invite_quota
from peers.runtime.peer_folder import MEMBERSHIP
from swarm import events
from swarm.core.membership import needs_membership
from swarm.core.revocation import LINKS, carried, link
from swarm.frames import wire
from swarm.frames.grammar import an, some
from swarm.frames.run_types import Membership
from swarm.membership import invite as invites
from swarm.membership.identity import Keyring
from swarm.membership.invite import Delegate
from swarm.net.ports import NetError, Refused, read_question
from swarm.protocol import ROLES, Kind, Part, Role, Service
from swarm.storage.durable import write_durably
from swarm.types import PeerId

DAY = 86400.0
RENEW = 10 * DAY
WARN = 7 * DAY
"""Seconds before the end: a seed that is away for three days causes no warning, and a week is enough to find
its owner."""

CHECK = 3600.0
"""Seconds between two checks, and between two tries while more than four times as long is left."""

SOONEST = 5.0
"""Fewest seconds between two tries: a quarter of the remaining time passes between them."""

ASKED = 8
"""Peers beside the seeds that are asked at a check: the right ones are found within a day."""

Renews = Callable[[PeerId, Membership, float], Membership]
"""(member, its valid membership, now) -> a new one. Raises Refused."""


def granter(owner: Keyring, run_name: str, run_folder: Path) -> Renews:
    """The function that makes memberships of claims to an invite's uses, with the owner's key, and counts
    them."""

    def grant(peer: PeerId, claim: Membership, now: float) -> Membership:
        one = claim.delegation
        invite_quota.take(run_folder, one, peer, now)
        until = one.expires if one.final else int(now + invites.LIFETIME)
        return invites.renewed(owner, run_name, one.role, peer, until, origin=link(one.key), final=one.final)

    return grant


Given = Callable[[Role], Delegate | None]
"""The valid permission of this peer to make members of a role, if any."""


def renewer(owner: Keyring | bytes, run_name: str, given: Given = lambda _: None) -> Renews:
    """The function that renews memberships with the owner's key, or, where only its public half is here, with
    the permission in `given`."""
    public = owner if isinstance(owner, bytes) else owner.public

    def renew(peer: PeerId, old: Membership, now: float) -> Membership:
        role, until = old.delegation.role, int(now + invites.LIFETIME)
        if old.delegation.final:
            raise Refused("the run's owner gave this membership an end of its own")
        if not isinstance(owner, bytes):
            way = carried(old, public, public)
            assert way is not None  # a membership names no more links than the owner carries
            return invites.renewed(owner, run_name, role, peer, until, origin=way)
        delegate = given(role)
        if delegate is None or delegate.delegation.final:
            raise Refused(f"this peer has neither the owner's key nor an invite for {role.value}s")
        if delegate.delegation.expires <= old.delegation.expires:
            raise Refused("the invite that this peer has ends no later")
        if (way := carried(old, public, delegate.delegation.key)) is None:
            raise Refused(f"it came by {LINKS} invites: the machine with the run's owner.key alone renews it")
        return invites.admit(delegate, peer, way)

    return renew


class MembershipRenewal:
    """Renews one peer's membership, and those of others where `renews` is given and may; `grants` makes some
    of claims, where the owner's key is."""

    def __init__(
        self,
        kernel: Kernel,
        disk: DiskFaults,
        peer_folder: Path,
        renews: Renews | None = None,
        grants: Renews | None = None,
    ) -> None:
        self._kernel, self._disk, self._file = kernel, disk, peer_folder / MEMBERSHIP
        self._renews, self._grants = renews, grants
        self._fault = FaultReport(kernel, Part.MEMBERSHIP)
        self._unsaved: Membership | None = None
        """A renewed membership that the disk has not accepted yet."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Renew this peer's membership and answer others while the body runs."""
        if self._renews is not None:
            await self._kernel.ports.mail.serve(Service.RENEW, self._answer)
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(self._renew_forever())
            try:
                yield
            finally:
                renewing.cancel()

    async def _renew_forever(self) -> None:
        kernel = self._kernel
        while kernel.frames.membership is not None:
            if kernel.frames.membership.delegation.expires - kernel.now() < RENEW:
                await self._renew(kernel.frames.membership)
            if self._unsaved is not None:
                await self._save(self._unsaved)
            await kernel.ports.clock.sleep(self._pause(kernel.frames.membership))

    def _pause(self, mine: Membership) -> float:
        """Seconds until the next check."""
        usual = CHECK * self._kernel.rng.uniform(0.75, 1.25)
        left = mine.delegation.expires - self._kernel.now()
        return min(usual, max(SOONEST, left / 4)) if left > 0 else usual

    async def _renew(self, old: Membership) -> None:
        kernel = self._kernel
        try:
            new = await self._ask(old)
        except (NetError, wire.WireError) as error:
            if (left := old.delegation.expires - kernel.now()) < WARN:
                self._fault.failed(f"{_end(left)}: {error}")
            return
        kernel.frames.membership = self._unsaved = new
        self._fault.recovered()
        kernel.emit(
            events.Noted, level="info", text=f"the membership of this {kernel.who.role.value} is renewed"
        )

    async def _save(self, new: Membership) -> None:
        lost, content = "the new membership is not on the disk", wire.encode(new)
        if await self._disk.write("membership", lost, Kind.SAVE, write_durably, self._file, content):
            self._unsaved = None

    async def _ask(self, old: Membership) -> Membership:
        """Ask for a valid membership that ends later. Raises NetError or WireError when there is none."""
        kernel = self._kernel
        if self._renews is not None:
            with contextlib.suppress(Refused):
                return self._renews(kernel.ports.me, old, kernel.now())
        why = "no peer that could renew it is connected"
        for peer in self._asked():
            try:
                new = wire.decode(
                    await kernel.ports.mail.send(peer, Service.RENEW, wire.encode(old)), Membership
                )
            except NetError as error:
                why = f"{peer} did not renew it: {error}"
                continue
            objection = kernel.trust.objection(kernel.ports.me, kernel.who.role, new, kernel.now())
            if objection is None and new.delegation.expires > old.delegation.expires:
                return new
            why = f"the one that {peer} sent is no better: {objection or 'it ends no later'}"
        raise Refused(why)

    def _asked(self) -> list[PeerId]:
        """Seeds, then some of the other peers that may hold an invite."""
        kernel = self._kernel
        seeds = [peer for peer, beat in kernel.roster if beat.role is Role.SEED]
        others = [peer for peer, beat in kernel.roster if ROLES[beat.role].posts and peer not in seeds]
        return [*seeds, *kernel.rng.sample(others, min(ASKED, len(others)))]

    async def _answer(self, sender: PeerId, message: bytes) -> bytes:
        kernel = self._kernel
        assert self._renews is not None
        old = read_question(message, Membership)
        role = old.delegation.role
        # the role is checked first: signatures cost time, and such a membership is never needed
        if not needs_membership(role, kernel.config.run.private):
            raise Refused(f"{an(role.value)} needs no membership in this run")
        if old.delegation.uses:
            return wire.encode(await self._granted(sender, old))
        if (why := kernel.trust.objection(sender, role, old, kernel.now())) is not None:
            raise Refused(why)
        return wire.encode(self._renews(sender, old, kernel.now()))

    async def _granted(self, sender: PeerId, claim: Membership) -> Membership:
        kernel = self._kernel
        if self._grants is None:
            raise Refused("this peer does not count the uses of invites: one with the run's owner.key does")
        if (why := kernel.trust.claim_objection(sender, claim, kernel.now())) is not None:
            raise Refused(why)
        try:
            return await kernel.ports.work.run(Kind.KEEP, self._grants, sender, claim, kernel.now())
        except OSError as error:
            raise Refused(f"a use of the invite cannot be counted now: {error.strerror}") from error


def ending(membership: Membership | None, now: float) -> str:
    """A warning for the status line in a membership's last week; empty before."""
    if membership is None or membership.delegation.expires - now >= WARN:
        return ""
    return (
        f"its membership {_end(membership.delegation.expires - now)}: start the run's seed, or keep a"
        " longer invite in this folder (`swarm invite --renew INVITE`)"
    )


def _end(left: float) -> str:
    if left < 0:
        return "has ended"
    days, hours = some(round(left / DAY), "day"), some(round(left / 3600), "hour")
    return f"ends in {days if left >= 2 * DAY else hours}"
