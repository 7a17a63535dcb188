"""A dashboard behind a proxy."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from dashboard_story import LEARNERS, SEED, still
from dashboards import INVITE, listen, past
from nouns import release
from playwright.async_api import BrowserContext, expect

from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.serve.server import serve
from swarm import events as happened

USER, PASSWORD = "lab", "sesame"


LINKED = "a[href], img[src]"


class Served(NamedTuple):
    port: int
    feed: Feed


@asynccontextmanager
async def served(path: str = "", hosts: Sequence[str] = ()) -> AsyncIterator[Served]:
    """A dashboard of a run at version 120."""
    feed = still()
    for event in past():
        feed(event)
    page = await serve(create_app(feed, INVITE, hosts, path), "127.0.0.1", 0, free=False)
    try:
        yield Served(page.port, feed)
    finally:
        await page.close()


async def works_in_whole(context: BrowserContext, url: str, feed: Feed) -> None:
    """Look at all of the dashboard at `url`; a version that is released meanwhile appears."""
    page = await context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    complaints = listen(page)
    await page.goto(url)
    await expect(page.locator("#version")).to_have_text("120")
    await expect(page.locator("#staleness .readout")).to_contain_text("with a policy")
    await expect(page.locator("#join-command")).to_have_text(INVITE.command)
    await page.evaluate("location.hash = 'peers'")
    await page.locator("#peer-rows .peer-link").first.click()
    await expect(page.locator("dialog.drawer")).to_contain_text(str(SEED)[:8])
    now, publisher = time.time(), LEARNERS[0]
    made = release(version=121, publisher=publisher, released=now)
    feed(happened.Released(at=now, peer=publisher, release=made))
    await expect(page.locator("#version")).to_have_text("121")
    links = await page.eval_on_selector_all(LINKED, "all => all.map(one => one.href || one.src)")
    there = {link for link in links if "#" not in link and "?name=" not in link}
    assert len(there) >= 8 and all(link.startswith(url) for link in (*there, *asked))
    for link in there:
        assert await page.evaluate("link => fetch(link).then((answer) => answer.status)", link) == 200, link
    assert complaints == []
