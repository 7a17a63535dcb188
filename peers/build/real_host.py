"""A peer's Host over a real node, and how an invite leads to it: the run folder and the membership.

    Invite --folder_of--> run folder        Invite, or a renewal --membership_of--> Membership
    LocalPeer, RunFolder, Node, Averager --real_host--> Host

Not handled here: opening the node (peers.build.local_peer), the role itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from peers.build import run_folder
from peers.build.local_peer import LocalPeer
from peers.build.model import base_model
from peers.build.run_folder import DamagedSpec, RunFolder
from peers.errors import Refusal, say
from peers.fit import hardware
from peers.runtime import peer_folder
from peers.runtime.frames import Frames, MemberMail
from peers.runtime.host import Host
from peers.runtime.kernel import PeerInfo
from peers.runtime.limits import resource_limits
from peers.runtime.membership import members, revocations
from peers.runtime.membership.renewal import MembershipRenewal, granter, renewer
from peers.runtime.releases.exchange import mirrors
from swarm import events, extras
from swarm.core.membership import needs_membership
from swarm.frames.grammar import an
from swarm.frames.run_types import Membership
from swarm.journal import Thinned
from swarm.membership import invite as invites
from swarm.membership.identity import human_name
from swarm.membership.invite import Invite
from swarm.net.ports import Averager, Ports
from swarm.protocol import ROLES, Role
from swarm.settings import loading
from swarm.settings.config import Config
from swarm.types import Beat, PeerId

if TYPE_CHECKING:
    from swarm.net.libp2p.node import Node

HEARD_APART = 1.5
"""Heartbeats of another peer are journalled this far apart, in intervals between heartbeats, in a journal
that no dashboard replays. Readers count a peer as silent after three (dashboard.diagnosis.situation)."""


def folder_of(invite: Invite, folder: Path | None) -> Path:
    """The run folder of the invite's run. Raises Refusal when the folder belongs to another run."""
    path = run_folder.check_files(folder or run_folder.default_path(invite.run[:12]))
    try:
        here = run_folder.read(path)
    except DamagedSpec:
        here = None  # it is fetched again
    if here is not None and here.digest != invite.run:
        raise Refusal(
            f"{path} belongs to run {here.digest[:12]}, the invite is for {invite.run[:12]}: name another"
            " folder with --folder"
        )
    return run_folder.make_folder(path)


def membership_of(mine: Membership | None, role: Role, run: RunFolder, local: LocalPeer) -> Membership | None:
    """This peer's membership in a role: `mine`, which it presented, a renewed one, one by a kept invite, or
    one by the owner's key where the run is trusted: the samplers that `swarm up` starts are no strangers.
    Raises Refusal when the role needs one and there is none."""
    first = mine if mine is not None and mine.delegation.role is role else None
    membership = newest_membership(first, role, run, local)
    if run.revocations.why(local.keyring.me, membership) is not None:
        raise Refusal(revocations.GONE)
    if membership is None and run.trusted:
        return run.member(local.keyring, role)
    if needs_membership(role, run.settings.private) and membership is None:
        raise Refusal(
            f"this invite does not admit {an(role.value)}: ask the run's owner for one (`swarm invite --role"
            f" {role.value}`)"
        )
    return membership


def newest_membership(
    first: Membership | None, role: Role, run: RunFolder, local: LocalPeer
) -> Membership | None:
    """The membership that lasts longest: `first`, the renewed one of this peer's folder, or one by an invite
    that the run folder keeps; None when there is none."""
    me, now, found = local.keyring.me, time.time(), [first] if first is not None else []
    if (renewed := peer_folder.membership(local.folder)) is not None:
        found += [renewed] if run.trust.objection(me, role, renewed, now) is None else []
    if (given := run.given(role)) is not None:
        found.append(invites.admit(given, me))
    return max(found, key=lambda one: one.delegation.expires, default=None)


def check_settings(run: RunFolder, role: Role) -> None:
    """Report settings of the run that this program does not know and ignores. Raises Refusal where a peer of
    this role depends on one."""
    unknown = loading.unknown(run.spec.run)
    if needed := [key for key in unknown if loading.matters(key, role)]:
        raise Refusal(
            f"another version of this program began run {run.name}: its {role.value}s act by"
            f" {', '.join(needed)}, which this one does not know; if it is newer, {extras.upgrade()} brings"
            " it; if it is older, go on with it or begin a new run"
        )
    if unknown:
        said = f"the run's {', '.join(unknown)} is what this program does not know: set by another version"
        say(f"{said}, and nothing by which {role.value}s act")


def real_host(
    local: LocalPeer,
    run: RunFolder,
    role: Role,
    config: Config,
    node: Node,
    averager: Averager,
    membership: Membership | None,
) -> Host:
    """The peer's Host over real ports."""
    config = Config(run=run.settings, peer=config.peer)
    frames = Frames(run.digest, local.keyring, membership, run.keys())
    mail = MemberMail(node.mail, lambda: frames.membership) if config.run.private else node.mail
    ports = Ports(
        clock=node.clock,
        board=node.board,
        gossip=node.gossip,
        mail=mail,
        averager=averager,
        work=node.work,
        keyring=local.keyring,
        addresses=node.addresses,
        relayed=node.relayed,
        carried=node.carried,
        introduced=node.network.introduce,
    )
    who = PeerInfo(
        name=human_name(local.keyring.me),
        role=role,
        run=run.digest,
        incarnation=local.incarnation,
        hardware=hardware.describe() + resource_limits.describe(config.peer.limits),
        membership=membership,
        observes=ROLES[role].observes,
        genesis=run.spec.genesis,
        release_size=run.spec.release_size,
    )
    shelf = local.folder / "blobs" if role is not Role.OBSERVER or mirrors(config) else None

    seldom = Thinned(local.bus.emit, HEARD_APART * config.run.pace.beat)

    def met(peer: PeerId, beat: Beat) -> None:
        if not who.observes:  # its journal records heartbeats all the same: for `swarm status`, `swarm why`
            seldom(events.Heard(at=node.clock.now(), peer=local.keyring.me, subject=peer, beat=beat))
        if peer == local.keyring.me:
            return
        node.network.remember(peer, beat.addresses)
        local.contacts.met(peer, beat)

    host = Host(who, config, ports, frames, local.bus, run.trust, shelf, met)
    local.report_journal_faults(host.disk)
    node.mail.prefer(host.known_sender)
    if config.run.private:
        node.board.prefer(host.members, closed=True)
    else:
        node.board.prefer(host.posting)
    node.shun(host.gossip_limits.suspended)
    host.releases.patches.version_zero.write = base_model.version_zero(config.run)
    return host


@asynccontextmanager
async def kept_up(host: Host, local: LocalPeer, node: Node, run: RunFolder) -> AsyncIterator[None]:
    """Renew memberships, keep addresses, limits and revocations, and look for another process with this key
    while the body runs. Raises Refusal when there is a newer one or this peer was revoked, CannotHere when
    it left at a limit."""
    owner = run.owner() if run.is_owners else None
    grants = granter(owner, run.name, run.path) if owner is not None else None
    renews = renewer(owner or bytes.fromhex(run.spec.owner), run.name, run.given)
    renewal = MembershipRenewal(host, host.disk, local.folder, renews, grants)
    guest = resource_limits.ResourceLimits(host, host.pause_gate, run.path, local.folder)
    guest.look()
    await node.reachability.serve(host.ports.mail)

    def note(how: str) -> None:
        if how:
            host.emit(events.Noted, level="info" if node.reachability.relays else "warning", text=how)

    async with (
        renewal.running(),
        local.contacts.running(host, host.disk, node.network.seek),
        asyncio.TaskGroup() as tasks,
    ):
        beside = [
            tasks.create_task(host.identity.run()),
            tasks.create_task(guest.watch()),
            tasks.create_task(revocations.follow(host, host.revocations, host.disk, run.path)),
        ]
        if run.is_owners:
            beside.append(tasks.create_task(members.keep_forever(host, host.disk, local.folder)))
        if not (
            host.who.role is Role.OBSERVER and node.listen.dial_only
        ):  # an observer need not be reachable
            beside.append(tasks.create_task(node.reachability.watch(host.ports.mail, note)))
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
    host.revocations.check()
    guest.check()


def sources(node: Node, invite: Invite) -> list[PeerId]:
    """Peers to ask for the files that the run began with: connected ones, then those of the invite."""
    named = [PeerId(address.rsplit("/p2p/", 1)[1]) for address in invite.addresses]
    return list(dict.fromkeys([*sorted(node.peers()), *named]))
