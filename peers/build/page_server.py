"""Serves the dashboard from a peer's own process, with an invite for people who want to join.

A StateSource and the settings of `[peer.page]` come in; the dashboard is served until the block ends, and its
address is printed on stderr. Invariant: no dashboard shows an invite that makes members of roles that the
public may not have. Not handled here: its contents (dashboard), access control (a proxy, unless it is
loopback only).
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dashboard.views import InviteView
from peers.errors import say
from swarm.membership import invite as invites
from swarm.protocol import Role
from swarm.settings.page import Page
from swarm.types import Digest

if TYPE_CHECKING:
    from dashboard.serve.source import StateSource


@asynccontextmanager
async def page(
    source: StateSource, settings: Page, invite: InviteView | None, query: str = ""
) -> AsyncIterator[str]:
    """Serve the dashboard. Yields its address, which is printed with `query`. Raises DashboardPortTaken."""
    from dashboard.serve.app import create_app  # fastapi takes half a second, and not every peer serves one
    from dashboard.serve.server import serve

    app = create_app(source, invite, settings.hosts, settings.path)
    server = await serve(app, settings.host, settings.port, settings.free)
    say(f"dashboard: {server.url}{query}")
    if not loopback(settings.host):
        say(
            f"the dashboard has no password, and any machine that reaches port {server.port} can read it:"
            " bind 127.0.0.1 (--host, or peer.page.host), or put a proxy that asks for one in front",
        )
    try:
        yield server.url
    finally:
        await server.close()


def loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def public_invite(run: Digest, addresses: Sequence[str]) -> InviteView | None:
    """An invite for samplers of a public run. It makes no members, whatever invite this peer joined with."""
    if not addresses:
        return None
    return _view(invites.make(run, addresses[: invites.ADDRESSES], Role.SAMPLER), None)


def private_invite(word: str, now: float) -> InviteView | None:
    """The invite to show, when it admits samplers only; else None."""
    try:
        invite = invites.read(word, now)
    except invites.InviteError:
        return None
    return (
        _view(word, None if invite.expires == invites.FOREVER else invite.expires)
        if invite.role is Role.SAMPLER
        else None
    )


def _view(word: str, expires: int | None) -> InviteView:
    return InviteView(role=Role.SAMPLER.value, word=word, command=f"swarm join {word}", expires=expires)
