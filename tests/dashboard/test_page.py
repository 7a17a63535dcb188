"""The page in a real browser: rows and curves appear through the stream, names stay text, the console stays clean."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dashboard_story import HOSTILE, LEARNERS, SAMPLERS, heard, story, who
from playwright.async_api import Browser, Page, async_playwright, expect

from dashboard.app import create_app, serve
from dashboard.feed import Feed
from dashboard.state import State
from swarm import events as happened

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("this test drives a real browser and there is none: `make chromium` installs it", pytrace=False)
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield chromium
        finally:
            await chromium.close()


def listen(page: Page) -> list[str]:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}"))
    return complaints


async def look(page: Page, name: str) -> None:
    folder = os.environ.get("SWARM_SHOTS")
    if folder:
        await page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def test_a_swarm_appears_on_the_page_and_a_hostile_name_stays_text() -> None:
    async def scene() -> None:
        feed = Feed(State())
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        async with browser() as chromium:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            complaints = listen(page)
            await page.goto(server.url)
            await expect(page.locator("#no-peers")).to_be_visible()
            for event in story(300, start=time.time() - 180):
                feed(event)
            await expect(page.locator("#peers tr")).to_have_count(7)
            await expect(page.locator("#version")).to_have_text("300")
            await expect(page.locator("#link-text")).to_have_text("live")
            await expect(page.locator("#curves .curve")).to_have_count(6)
            await expect(page.locator("#bars .bar")).not_to_have_count(0)
            await expect(page.locator("#peers tr.lost")).to_contain_text("lost")
            await look(page, "desktop-light")
            before = await page.locator("*").count()
            feed(heard(who(9), 300, time.time(), name=HOSTILE))
            feed(happened.Noted(at=time.time(), peer=who(9), level="info", text=HOSTILE))
            await expect(page.locator("#peers tr")).to_have_count(8)
            assert await page.locator("td img, td script, li img, li script").count() == 0
            assert await page.evaluate("window.hacked") is None
            row = await page.locator("#peers tr").first.locator("*").count() + 1
            lines = await page.locator("#events li").first.locator("*").count() + 1
            grown = await page.locator("*").count() - before
            assert grown == row + 2 * lines, "one row and two lines, nothing else"
            assert complaints == []
        await server.close()

    asyncio.run(scene())


def test_a_phone_and_the_dark_scroll_only_downwards() -> None:
    async def scene() -> None:
        feed = Feed(State())
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        for event in story(120, start=time.time() - 72):
            feed(event)
        async with browser() as chromium:
            for name, width, scheme in (("desktop-dark", 1280, "dark"), ("phone", 390, "light"), ("phone-dark", 390, "dark")):
                page = await chromium.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
                complaints = listen(page)
                await page.goto(server.url)
                await expect(page.locator("#peers tr")).to_have_count(7)
                await look(page, name)
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
                assert complaints == []
        await server.close()

    asyncio.run(scene())


def test_a_page_that_hears_nothing_says_so_and_recovers() -> None:
    async def scene() -> None:
        late = 0.0
        feed = Feed(State(), clock=lambda: time.time() + late)
        feed(heard(LEARNERS[0], 3, time.time()))
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        async with browser() as chromium:
            page = await chromium.new_page()
            await page.goto(server.url)
            await expect(page.locator("#link-text")).to_have_text("live")
            late = 15.0
            await expect(page.locator("#link-text")).to_contain_text("the swarm is silent")
            await expect(page.locator("#peers tr.lost")).to_have_count(1)
            feed(heard(SAMPLERS[0], 3, time.time() + late))
            await expect(page.locator("#link-text")).to_have_text("live")
        await server.close()

    asyncio.run(scene())
