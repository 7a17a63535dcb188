"""Builds and runs a real peer from settings or an invite, with its parts in the order that they require.

    key -> node (p2pd, DHT: forks) -> spec and model files -> averager (forks) -> model (torch) -> role
    and back: the role leaves, then the averager, then the node, each with a deadline

hivemind forks, so its parts start before torch computes anything, and the node before torch is imported; an
observer uses neither torch nor forks. The first SIGINT or SIGTERM asks the role to finish its group or step
and leave; the second ends the program at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dashboard.fold.state import starts
from dashboard.views import InviteView
from peers.build import new_run, run_folder, run_sources
from peers.build.joining import handshake, invitations, spec_transfer
from peers.build.joining.adopted_releases import take_releases
from peers.build.joining.connect_retry import ConnectRetry
from peers.build.joining.consent import check_code
from peers.build.local_peer import LocalPeer, open_local_peer, open_node
from peers.build.model import base_model, loading
from peers.build.model.engine_opening import fitting_role, imported, open_engine, samples
from peers.build.model.engine_process import EngineProcess
from peers.build.model.learner_averager import NoAverager, open_averager
from peers.build.model.task_source import open_source
from peers.build.page_server import loopback, page, private_invite, public_invite
from peers.build.real_host import (
    check_settings,
    folder_of,
    kept_up,
    membership_of,
    newest_membership,
    real_host,
    sources,
)
from peers.build.run_folder import RunFolder
from peers.build.run_in_fork import apart
from peers.errors import CannotHere, Refusal, WrongUsage, say
from peers.observer import Observer
from peers.programs import program_of
from peers.runtime import peer_folder
from peers.runtime.frames import MemberMail
from peers.runtime.host import Host
from peers.runtime.limits import resource_limits
from peers.runtime.membership import contacts
from peers.runtime.peer_folder import PeerFolder
from peers.runtime.signals import PARENT, SignalHandler, run_until_signalled
from peers.runtime.watching.narration import narrated
from peers.runtime.watching.status_line import live_line
from peers.runtime.watching.tracking import tracked
from peers.seed import Seed
from swarm import events
from swarm.core.audits.auditing import NOTHING_REPLAYED
from swarm.core.membership import Trust
from swarm.frames.run_types import Membership
from swarm.membership import invite as invites
from swarm.membership.identity import human_name
from swarm.membership.invite import Invite
from swarm.net.libp2p.listening import check_named
from swarm.protocol import JOINING, ROLES, Kind, Phase, PolicyUse, Role
from swarm.settings.config import Config
from swarm.settings.loading import LoadedConfig
from swarm.settings.page import Page
from swarm.storage.weights import Weights
from swarm.types import PeerId

if TYPE_CHECKING:
    from swarm.net.libp2p.node import Node

MEND_EVERY = 10.0
"""Seconds between two tries of a seed to have its damaged files from the peers that are connected."""


def start(loaded: LoadedConfig, folder: Path | None, paged: bool, check: Callable[[], None]) -> int:
    """`swarm start`: start a run, or resume it, as its seed, and print invites; `check` is called before a
    new one is made. Returns an exit code."""
    config = loaded.config
    resource_limits.begin(config.peer.limits)
    path = folder or run_folder.default_path(config.run.name)
    if config.run.private:
        run_folder.close(path)
    if path.exists():
        run_folder.make_folder(path)  # reports any other file of that name
    if (run := run_folder.existing_run(path, config.run)) is None:
        run = _created(path, config, check)
    else:
        run_sources.check(run, config.run)
    return run_until_signalled(
        lambda on_signal: _seed(run, config, paged, on_signal, lambda one: run.member(one.keyring, Role.SEED))
    )


def _created(path: Path, config: Config, check: Callable[[], None]) -> RunFolder:
    """A new run, made in another process: a seed needs no torch."""
    if config.run.model.name != "embedded":
        base_model.folder(config.run)  # here, where a download shows how far it is

    def make() -> None:
        check()
        settled, policy = base_model.pinned(config.run)
        new_run.create(run_folder.make_folder(path), settled, policy, config.peer.rewards.code)

    apart(make)
    made = run_folder.read(path)
    assert made is not None
    return made


def adopt(config: Config, path: Path, paged: bool) -> int:
    """`swarm start --adopt`: be a seed of the run in this folder, though another machine started it. Returns
    an exit code."""
    resource_limits.begin(config.peer.limits)
    run = run_folder.read(path)
    if run is None:
        raise Refusal(f"{path} holds no run: name the folder of one of its peers")
    if run.settings.private:
        run_folder.close(path)
    return run_until_signalled(
        lambda on_signal: _seed(run, config, paged, on_signal, lambda one: _adopted(run, one))
    )


def _adopted(run: RunFolder, local: LocalPeer) -> Membership:
    """A seed's membership in a folder of another owner's run."""
    first = run.member(local.keyring, Role.SEED) if run.is_owners else None
    if (found := newest_membership(first, Role.SEED, run, local)) is None:
        raise Refusal(
            f"{run.path} may not be a seed's: put the run's owner.key into it, or ask the owner for an invite"
            " (`swarm invite --role seed`) and keep it there with `swarm invite --renew INVITE --folder"
            f" {run.path}`"
        )
    return found


def join(
    word: str, role: Role | None, loaded: LoadedConfig, folder: Path | None, once: bool, own: bool
) -> int:
    """`swarm join`: take part in the run that the invite names; try `once` to reach it, or until that works.
    `own`: as a child of `swarm up`, which trusts the code of its run. Returns an exit code."""
    invite = invitations.usable_invite(word, folder, time.time())
    path = folder_of(invite, folder)
    chosen = role or invite.role or Role.SAMPLER
    limits = loaded.config.peer.limits
    if ROLES[chosen].policy is PolicyUse.TRAINED:
        check_named(loaded.config.peer.listen, parts=True)  # before its folder is made and torch imported
    resource_limits.begin(limits)
    return run_until_signalled(
        lambda on_signal: _join(invite, word, role, loaded.config, path, once, on_signal, own)
    )


# --- the parts ----------------------------------------------------------------------------------------------


async def _seed(
    run: RunFolder,
    config: Config,
    paged: bool,
    on_signal: SignalHandler,
    member: Callable[[LocalPeer], Membership],
) -> None:
    with (
        open_local_peer(run.peer_folder(Role.SEED)) as local,
        narrated(local.folder, local.bus, local.keyring.me),
    ):
        check_settings(run, Role.SEED)
        membership = member(local)
        retrying = ConnectRetry(run.path, once=False, has_run=True)
        async with open_node(local, run.digest, config.peer.listen, config.peer.limits, (), retrying) as node:
            await retrying.until_had(
                lambda: handshake.had_keys(run, membership, node.mail, sorted(node.peers()))
            )
            await _act_as_seed(local, run, config, node, membership, paged, on_signal)


async def _act_as_seed(
    local: LocalPeer,
    run: RunFolder,
    config: Config,
    node: Node,
    membership: Membership | None,
    paged: bool,
    on_signal: SignalHandler,
) -> None:
    take_releases(run.path, local.folder)
    host = real_host(local, run, Role.SEED, config, node, NoAverager(), membership)
    damaged = await spec_transfer.serve(node.mail, run)
    for damage in damaged.values():
        say(damage)
        host.emit(events.Noted, level="error", text=damage)
    on_signal.leave = host.leave
    beside = starts(config.peer.swarm) if PARENT in os.environ else None  # a child of `swarm up`
    observer, settings = Observer(host, local.folder, beside), config.peer.page
    async with observer.running(), kept_up(host, local, node, run), AsyncExitStack() as shown:
        await shown.enter_async_context(tracked(host, config.peer.track, run.path / run_folder.TRACKED))
        await node.reachability.settled()
        addresses = _named(run, node)
        if paged:
            await shown.enter_async_context(_page(local, run, addresses, observer, settings))
        if why := invitations.reach(addresses, node.me, node.listen, node.port, node.reachability.open):
            say(why)
        _print_invites(local, run, addresses)
        async with asyncio.TaskGroup() as tasks:
            mending = tasks.create_task(_mend(node, run, host, damaged))
            await host.run(Seed(host, _genesis(run, host)).run)
            mending.cancel()


async def _mend(node: Node, run: RunFolder, host: Host, damaged: dict[str, str]) -> None:
    """Fetch the run's damaged files from peers as soon as some have them."""
    while damaged:
        await node.clock.sleep(MEND_EVERY)
        for name in await spec_transfer.mend(host.ports.mail, run, damaged, sorted(node.peers())):
            host.emit(events.Noted, level="info", text=f"{name} is whole again: a peer had it")


def _named(run: RunFolder, node: Node) -> list[str]:
    """Addresses for invites: this seed's, and those of members that are connected now."""
    here = [one for one in contacts.of_run(run.path) if one.peer in node.peers()]
    others = [one.addresses for one in here if one.vouched or run.settings.private]
    return [one for one in invitations.mixed([node.addresses(), *others]) if invites.can_name(one)]


def _genesis(run: RunFolder, host: Host) -> Weights | None:
    """Version 0; None when its file is damaged: the seed still serves later releases and is a bootstrap."""
    try:
        genesis = run.genesis()
    except CannotHere as error:
        say(str(error))
        host.emit(events.Noted, level="error", text=str(error))
        return None
    return None if genesis is None else Weights.of(genesis, 0)


def _print_invites(local: LocalPeer, run: RunFolder, addresses: Sequence[str]) -> None:
    """Write an invite for every role to the disk where the owner's key is, and print those for samplers and
    learners that this folder may make: to a terminal alone where they make members, since logs and journals
    have other readers."""
    say(f"run {run.name} {run.digest[:12]} in {run.path}")
    for role in Role:
        try:
            word = run.invite(role, addresses)
        except Refusal:
            continue  # this folder has no such permission; `swarm invite` says so on request
        if run.is_owners:
            otherwise = "`swarm invite` prints invites with the run's earlier addresses"
            local.keep(run.invite_path(role), word, otherwise, secret=True)
        if role not in (Role.SAMPLER, Role.LEARNER):
            continue
        if sys.stdout.isatty() or invites.read(word, 0.0).delegate is None:
            say(f"to join as a {role.value}:", sys.stdout)
            say(f"  swarm join {word}", sys.stdout)
        else:
            printed = f"swarm invite --role {role.value} --folder {run.path}"
            say(f"to join as a {role.value}: `{printed}` prints the invite, a secret", sys.stdout)


@asynccontextmanager
async def _page(
    local: LocalPeer, run: RunFolder, addresses: Sequence[str], observer: Observer, settings: Page
) -> AsyncIterator[None]:
    """Serve the dashboard in the seed's own process, and write its address to the run folder."""
    async with page(observer.feed, settings, _invite_shown(run, addresses, settings)) as url:
        local.keep(run.path / "page", url, f"the dashboard is at {url}")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a disk that fails must not hide why the seed ends
                (run.path / "page").unlink(missing_ok=True)


def _invite_shown(run: RunFolder, addresses: Sequence[str], settings: Page) -> InviteView | None:
    """The invite that the dashboard shows; in a private run, where it makes members, only on a loopback
    address."""
    if not settings.invite:
        return None
    if not run.settings.private:
        return public_invite(run.digest, addresses)
    alone = loopback(settings.host) and not settings.hosts
    return private_invite(run.invite(Role.SAMPLER, addresses), time.time()) if alone else None


async def _join(
    invite: Invite,
    word: str,
    asked: Role | None,
    config: Config,
    path: Path,
    once: bool,
    on_signal: SignalHandler,
    own: bool,
) -> None:
    """Join as the requested role, else the invite's, else the role and precision that fit this machine. `own`
    as in `join`."""
    umask = run_folder.close_unless_public(path)
    role, limits = asked or invite.role or Role.SAMPLER, config.peer.limits
    fitted = role in JOINING and (asked is None or limits.memory > 0 or limits.gpu_memory < 1)
    mine = (
        PeerFolder(path / "peers" / role) if role is Role.SEED else peer_folder.free_peer_folder(path, role)
    )
    process = EngineProcess(config.peer.engine) if fitted and samples(role) else None
    with (
        nullcontext() if process is None else contextlib.closing(process),
        open_local_peer(mine) as local,
        narrated(local.folder, local.bus, local.keyring.me),
    ):
        line = config.peer.listen, limits
        retrying = ConnectRetry(path, once, spec_transfer.is_complete(path, invite.run))
        if invite.addresses:
            say(f"dialling the invite's addresses, {len(invite.addresses)} at once (10 s at most)")
        async with open_node(local, invite.run, *line, invite.addresses, retrying) as node:
            model = None if config.run.model.name == "embedded" else Path(config.run.model.name)
            given = await handshake.shown(
                invite, role, path, local, node.mail, sources(node, invite), retrying
            )
            mail = MemberMail(node.mail, lambda: given)
            run = await retrying.until_had(
                lambda: spec_transfer.fetch(mail, sources(node, invite), invite.run, path, model)
            )
            run_folder.open_if_public(run, umask)
            if fitted:
                allowed = [asked] if asked is not None else invite.roles(run.settings.private)
                config = Config(run=run.settings, peer=config.peer)
                role, config = await fitting_role(
                    node.work, process, run.model, config, asked or invite.role, allowed
                )
            check_settings(run, role)
            if own:
                run = run.as_owners()
            check_code(run, role, config.peer.rewards.code)
            membership = membership_of(given, role, run, local)
            await retrying.until_had(
                lambda: handshake.had_keys(run, membership, node.mail, sources(node, invite))
            )
            invitations.keep(run, invite, word)
            if role is Role.SEED:
                return await _act_as_seed(local, run, config, node, membership, True, on_signal)
            node.mail.guard(partial(_refused, run.trust, node))
            await spec_transfer.serve(node.mail, run)
            _print_joined(run, role, local, path)
            await _act(local, run, role, config, node, membership, on_signal, process)


def _print_joined(run: RunFolder, role: Role, local: LocalPeer, path: Path) -> None:
    who = f"{role.value} {human_name(local.keyring.me)}"
    what = f"run {run.name} {run.digest[:12]}"
    say(f"joined {what} as {who}, in {local.folder} (Ctrl-C leaves)")
    say(f"`swarm status --folder {path}` shows the run, `swarm why --folder {path}` says why a peer is idle")


def _refused(trust: Trust, node: Node, peer: PeerId, service: str) -> str | None:
    """Why a peer is not answered before this one's role begins."""
    return trust.refusal(peer, service, node.clock.now())


async def _act(
    local: LocalPeer,
    run: RunFolder,
    role: Role,
    config: Config,
    node: Node,
    membership: Membership | None,
    on_signal: SignalHandler,
    process: EngineProcess | None,
) -> None:
    """Build the role's engine or learner, and run it."""
    if ROLES[role].policy is PolicyUse.UNUSED:  # a mirror needs neither
        host = real_host(local, run, role, config, node, NoAverager(), membership)
        on_signal.leave, host.status.phase = host.leave, Phase.SERVING
        async with live_line(host), kept_up(host, local, node, run):
            return await host.run(host.stop.wait)
    program = program_of(role, run.settings)
    if ROLES[role].policy is PolicyUse.TRAINED:
        await imported(node.work)
        from peers.build.model import factory

        butterfly = run.settings.averaging.mode == "butterfly"
        async with open_averager(local, run, node) if butterfly else nullcontext(NoAverager()) as averager:
            host = real_host(local, run, role, config, node, averager, membership)
            on_signal.leave = host.leave
            learner, tokens = await loading.said(
                "the model", node.work.run(Kind.LOAD, factory.learner, run.model, host.config)
            )
            replay = partial(factory.replay, run.model, host.config)
            async with open_source(run, host, node, tokens.render_all) as source:
                async with live_line(host), kept_up(host, local, node, run):
                    folder = local.folder / "checkpoint"
                    await host.run(program(host, learner, source, tokens, folder, replay).run)
        return None
    host = real_host(local, run, role, config, node, NoAverager(), membership)
    on_signal.leave = host.leave
    if ROLES[role].policy is PolicyUse.REPLAYED:
        return await _audit(local, run, node, host)
    await _use_engine(local, run, node, host, process)


async def _use_engine(
    local: LocalPeer, run: RunFolder, node: Node, host: Host, process: EngineProcess | None
) -> None:
    """Run a role that samples or evaluates."""
    role = host.who.role
    began = host.now()
    engine, tokens, why = await loading.said(
        "the engine", open_engine(node.work, process, run.model, host.config)
    )
    say(f"{why} (loaded in {host.now() - began:.1f} s)")
    opened = partial(open_source, run, host, node, tokens.render_all, tokens is engine)
    with contextlib.closing(engine):
        async with contextlib.AsyncExitStack() as stack:
            source = await stack.enter_async_context(opened())
            if ROLES[role].policy is PolicyUse.SAMPLED:
                given: object = local.folder / "outbox"
            else:
                names = run.settings.evaluation.sets
                given = {name: await stack.enter_async_context(opened(of=name)) for name in names}
            async with live_line(host), kept_up(host, local, node, run):
                await host.run(program_of(role, run.settings)(host, engine, source, given).run)


def check_that_groups_are_audited(config: Config) -> None:
    """Raises WrongUsage where an auditor has nothing to do."""
    if config.run.sampling.quantized:
        raise WrongUsage(
            f"this run has no work for an auditor: {NOTHING_REPLAYED}; ask its owner for an invite of another"
            " role"
        )


async def _audit(local: LocalPeer, run: RunFolder, node: Node, host: Host) -> None:
    """Run an auditor; its policy is made for its first replay."""
    check_that_groups_are_audited(host.config)
    await imported(node.work)
    from peers.build.model import factory
    from swarm.learn.models import tokenization

    tokens = await node.work.run(Kind.LOAD, tokenization.of_run, run.model, run.settings)
    replay = partial(factory.replay, run.model, host.config)
    program = program_of(host.who.role, run.settings)
    async with open_source(run, host, node, tokens.render_all) as source:
        async with live_line(host), kept_up(host, local, node, run):
            await host.run(program(host, source, tokens.vocabulary, replay).run)
