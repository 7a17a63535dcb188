"""The page under a path of a proxy: takes `/swarm` off the path of a request, where the proxy has not.

A request without the prefix is answered as it is, so that both kinds of proxy work, and whoever asks the page
itself. The prefix alone leads to its folder: the page's addresses are relative to that.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class Prefix:
    """A layer of the application. `path` begins with a slash and does not end with one."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app, self._path = app, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope.get("path", "")
        if asked == self._path:
            folder = self._path.rpartition("/")[2] + "/"
            await send(
                {"type": "http.response.start", "status": 308, "headers": [(b"location", folder.encode())]}
            )
            await send({"type": "http.response.body", "body": b""})
            return
        if asked.startswith(f"{self._path}/"):
            scope = {**scope, "path": asked[len(self._path) :]}
        await self._app(scope, receive, send)
