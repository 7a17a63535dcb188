"""Safety: checks of every request before the dashboard answers, and security headers of every answer.

Requests are answered only under host names of this dashboard, so that another site whose name resolves to
this address cannot read it (DNS rebinding). Only GET and HEAD are allowed; nothing is shared with other
origins; an exception becomes a general sentence in the answer and a traceback in the server's log. Not
handled here: access control (bind to loopback, or put a proxy in front), connections and their deadlines
(dashboard.serve.server).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
METHODS = ("GET", "HEAD")

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.%]+)\]|(?P<name>[^:\[\]@/]+))(?::[0-9]*)?")

MISDIRECTED = (
    "this dashboard does not answer to that name: ask for it by its address, or add the name to"
    " `peer.page.hosts`"
)
READ_ONLY = "this dashboard can only be read: use GET or HEAD"
OUR_BUG = "the dashboard has a bug; the log of the peer that serves it shows where"


class Hosts:
    """Host names under which the dashboard is served. Ports are ignored: a tunnel changes them, and an
    attacker can choose them."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = {_bare(name) for name in (*LOOPBACK, *names)}
        self._addresses = False
        """Accept any IP address as host: a dashboard that listens on all addresses cannot list them, and
        rebinding needs a name."""

    def bind(self, host: str) -> None:
        """Allow `host`, on which the dashboard listens, and this machine's own names where others can reach
        it."""
        self._names.add(_bare(host))
        address = _address(host)
        self._addresses = self._addresses or (address is not None and address.is_unspecified)
        if not (address.is_loopback if address else _bare(host) in LOOPBACK):
            own = socket.gethostname().lower()
            self._names |= {own, own.partition(".")[0], own.partition(".")[0] + ".local"}

    def allow(self, header: str) -> bool:
        name = _bare(header)
        return bool(name) and (name in self._names or (self._addresses and _address(name) is not None))


def _bare(name: str) -> str:
    """`[::1]:8080`, `LocalHost.` and `localhost:80` without brackets, port, case and final dot; empty for
    anything else."""
    name = name.strip().lower()
    if name.count(":") > 1 and not name.startswith("["):
        return name
    parts = _HOST.fullmatch(name)
    return (parts["address"] or parts["name"]).rstrip(".") if parts else ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class Safety:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                # Files have an ETag, so revalidating them is cheap; figures change all the time.
                headers["Cache-Control"] = "no-cache" if "etag" in headers else "no-store"
            await send(message)

        try:
            if not self._hosts.allow(Headers(scope=scope).get("host", "")):
                await refuse(guarded, 421, MISDIRECTED)
            elif scope["method"] not in METHODS:
                await refuse(guarded, 405, READ_ONLY, allow=", ".join(METHODS))
            else:
                await self._app(scope, receive, guarded)
        except Exception:
            if not started:
                await refuse(guarded, 500, OUR_BUG)
            raise


async def refuse(send: Send, status: int, detail: str, **headers: str) -> None:
    body = msgspec.json.encode({"detail": detail})
    fields = {"content-type": "application/json", "content-length": str(len(body))} | headers
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
