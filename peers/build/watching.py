"""Joins a run as an observer, for as long as a program looks at it: without torch, without forks.

Not handled here: the views (peers.commands.journals.dashboard, peers.commands.runs.status).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from peers.build import real_host, run_folder
from peers.build.joining import handshake, invitations, spec_transfer
from peers.build.joining.connect_retry import ConnectRetry
from peers.build.local_peer import open_local_peer, open_node
from peers.build.model.learner_averager import NoAverager
from peers.errors import CannotHere
from peers.observer import Observer
from peers.runtime import peer_folder
from peers.runtime.frames import MemberMail
from peers.runtime.signals import SignalHandler, run_until_signalled
from peers.runtime.watching.tracking import tracked
from swarm import extras
from swarm.membership.invite import Invite
from swarm.protocol import Phase, Role
from swarm.settings.config import Config, Listen, Run


@dataclass(frozen=True)
class WatchedSwarm:
    """What `observe` passes to a program that watches a swarm."""

    observer: Observer
    invite: Invite
    run: Run
    has_history: bool
    """A seed's history snapshot was received."""
    leaving: asyncio.Event
    """Set by a signal only: a complete run is still watched."""


def observe(
    word: str,
    folder: Path | None,
    config: Config,
    once: bool,
    look: Callable[[WatchedSwarm], Awaitable[None]],
) -> int:
    """Join as an observer, without torch, for as long as `look` runs; try `once` to reach the swarm, or until
    that works. Returns an exit code. Raises CannotHere without hivemind."""
    invite = invitations.usable_invite(word, folder, time.time())
    if find_spec("hivemind") is None:
        line = extras.install_to_watch()
        raise CannotHere(f"to watch a swarm takes hivemind, which is not installed here: {line}")
    path = real_host.folder_of(invite, folder)
    umask = run_folder.close_unless_public(path)

    async def program(on_signal: SignalHandler) -> None:
        retrying = ConnectRetry(path, once, has_run=False, quiet=True)
        with open_local_peer(peer_folder.free_peer_folder(path, Role.OBSERVER)) as local:
            async with open_node(
                local,
                invite.run,
                Listen(dial_only=True),
                config.peer.limits,
                invite.addresses,
                retrying,
                watches=True,
            ) as node:
                sources = partial(real_host.sources, node, invite)
                mine = await handshake.shown(
                    invite, Role.OBSERVER, path, local, node.mail, sources(), retrying
                )
                mail = MemberMail(node.mail, lambda: mine)
                run = await retrying.until_had(
                    lambda: spec_transfer.fetch_spec(mail, sources(), invite.run, path)
                )
                run_folder.open_if_public(run, umask)
                real_host.check_settings(run, Role.OBSERVER)
                membership = real_host.membership_of(mine, Role.OBSERVER, run, local)
                await retrying.until_had(lambda: handshake.had_keys(run, membership, node.mail, sources()))
                host = real_host.real_host(local, run, Role.OBSERVER, config, node, NoAverager(), membership)
                observer, leaving = Observer(host, local.folder), asyncio.Event()
                on_signal.leave, host.status.phase = leaving.set, Phase.WATCHING

                async def role() -> None:
                    named = {address.rsplit("/p2p/", 1)[1] for address in invite.addresses}
                    has_history = await observer.catch_up(sorted(sources(), key=lambda one: one not in named))
                    await look(WatchedSwarm(observer, invite, host.config.run, has_history, leaving))

                kept = tracked(host, config.peer.track, path / run_folder.TRACKED)
                async with observer.running(), real_host.kept_up(host, local, node, run), kept:
                    await host.run(role)

    return run_until_signalled(program)
