"""The dashboard's table of peers and the drawer of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dashboard_story import LEARNERS, SAMPLERS, still
from dashboards import listen, served
from playwright.async_api import Browser, Locator, Page, expect

from dashboard.serve.feed import Feed
from swarm import events as happened
from swarm.membership.identity import human_name
from swarm.types import PeerId

NAME = {peer: human_name(peer) for peer in (*LEARNERS, *SAMPLERS)}


ROWS = "#peer-rows tr"


DRAWER = "dialog.drawer"


@asynccontextmanager
async def opened(
    chromium: Browser, events: list[happened.AnyEvent], anchor: str = "", **how: object
) -> AsyncIterator[tuple[Page, Feed]]:
    """A dashboard on a swarm of these events, at a moment that lasts. Its console must stay clean."""
    feed = still()
    async with served(feed, events) as url:
        page = await chromium.new_page(viewport={"width": 1280, "height": 900}, **how)  # type: ignore[arg-type]
        complaints = listen(page)
        await page.goto(url + anchor)
        await expect(page.locator("#link-text")).to_have_text("live")
        yield page, feed
        assert complaints == []


def row(page: Page, peer: PeerId) -> Locator:
    return page.locator(ROWS).filter(has_text=NAME[peer])
