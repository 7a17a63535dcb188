"""A dashboard that Chromium opens, with a journal of a swarm behind it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dashboard_story import story
from playwright.async_api import Browser, Page, async_playwright, expect

from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.serve.server import serve
from dashboard.views import InviteView
from swarm import events as happened

UNSEEN = (
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "SpareRendererForSitePerProcess",
)
"""What Chromium starts with each page of a test: two pages of the address bar, which cost more than the page
itself, and a process for a page that does not come."""


PLAYWRIGHTS = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
)
"""Features that Playwright disables: Chromium obeys the last such list alone."""


FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=" + ",".join((*PLAYWRIGHTS, *UNSEEN)),
]


PATIENCE = 20_000
"""Milliseconds that something may take to appear where other programs use the machine too."""


INVITE = InviteView(role="sampler", word="swarm1qqqq", command="swarm join swarm1qqqq", expires=2e9)


Scene = Callable[[Browser], Awaitable[None]]


Play = Callable[[Scene], None]


@pytest.fixture(scope="package")
def play() -> Iterator[Play]:
    """Runs a scene with the browser, which starts once a folder: a start takes longer than most scenes."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail(
            "this test drives a real browser and there is none: `make chromium` installs it", pytrace=False
        )
    expect.set_options(timeout=PATIENCE)
    loop = asyncio.new_event_loop()
    playwright = loop.run_until_complete(async_playwright().start())
    chromium = loop.run_until_complete(playwright.chromium.launch(executable_path=program, args=FLAGS))

    async def whole(scene: Scene) -> None:
        try:
            await scene(chromium)
        finally:
            for context in chromium.contexts:
                await context.close()

    yield lambda scene: loop.run_until_complete(whole(scene))
    loop.run_until_complete(chromium.close())
    loop.run_until_complete(playwright.stop())
    loop.close()


@asynccontextmanager
async def served(feed: Feed, events: Iterable[happened.AnyEvent] = ()) -> AsyncIterator[str]:
    for event in events:
        feed(event)
    server = await serve(create_app(feed, INVITE), "127.0.0.1", 0, free=False)
    try:
        yield server.url
    finally:
        await server.close()


def past(versions: int = 120) -> list[happened.AnyEvent]:
    """A run that ends now."""
    return list(story(versions, start=time.time() - 0.6 * versions))


def listen(page: Page) -> list[str]:
    complaints: list[str] = []
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}"))
    return complaints


async def look(page: Page, name: str) -> None:
    folder = os.environ.get("SWARM_SHOTS")
    if folder:
        await page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


async def census(page: Page) -> dict[str, int]:
    """How many elements there are of each kind that the hostile name tries to make, and with a handler in
    their markup."""
    kinds = ["img", "script", "td", "tr", "a", "[onerror]"]
    return {kind: await page.locator(kind).count() for kind in kinds}
