"""Drives a headless Chromium, for the row `dashboard` and the tests on real swarms.

    with chromium() as browser:
        page = browser.new_page()  ...  watch(page) before goto, then page.evaluate("bench")

`watch` makes the page record its long tasks, its frames, and when each policy version was painted. Not
handled here: what the page should show.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lab.figures.table import Unmeasured

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
WATCH = """
window.bench = {long: [], frames: [], shown: []};
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) bench.long.push([task.startTime, task.duration]);
}).observe({type: "longtask", buffered: true});
let last = null;
const frame = (at) => {
  if (last !== null) bench.frames.push([at, at - last]);
  last = at;
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
addEventListener("DOMContentLoaded", () => {
  let known = "";
  const painted = new MessageChannel();
  const waiting = [];
  // A message posted in a frame's callback arrives after that frame was painted.
  painted.port1.onmessage = () =>
    bench.shown.push([waiting.shift(), performance.timeOrigin + performance.now()]);
  new MutationObserver(() => {
    const text = document.querySelector("#version")?.textContent.replace(/\\D/g, "") ?? "";
    if (text === known) return;
    known = text;
    requestAnimationFrame(() => { waiting.push(Number(text)); painted.port2.postMessage(0); });
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
});
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium. Raises Unmeasured, with what to do, when there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise Unmeasured("playwright is not installed: `make bench-dashboard` installs it") from None
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise Unmeasured("there is no chromium to look at the page: `make chromium` installs it")
    own = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS), env=dict(own))
        try:
            yield browser
        finally:
            browser.close()


def watch(page: Page) -> None:
    """Record long tasks, frames and painted versions. Call it before the page is opened."""
    page.add_init_script(WATCH)


def complaints(page: Page) -> list[str]:
    """A list that collects the page's console messages from now on; there should be none."""
    said: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(f"{request.url}: {request.failure}"))
    return said
