"""The dashboard in a real browser: what the stream says is on it, what peers wrote stays text, the console
stays clean."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import cache
from typing import Literal

import pytest
from dashboard_story import EVALUATOR, HOSTILE, LEARNERS, SAMPLERS, SEED, heard, released, still, story, who
from dashboards import INVITE, PATIENCE, Play, census, listen, look, past, served
from made_up_swarm import START, Swarm
from msgspec.structs import replace
from playwright.async_api import Browser, Page, Response, Route, ViewportSize, expect

from dashboard.fold.state import SwarmState
from dashboard.serve.app import STATIC, create_app
from dashboard.serve.feed import Feed
from dashboard.serve.replay import JournalReplay
from dashboard.serve.server import serve
from swarm import events as happened
from swarm.membership.identity import human_name
from swarm.protocol import Role
from swarm.settings.config import Run, Stop
from swarm.types import Estimate, Lag, PeerId, StageProgress

SECTIONS = ("now", "wrong", "staleness", "learning", "network", "peers", "samples", "events", "invite")
CURVES = 12
PURPOSES = ("rollouts", "weights", "gradients", "other")
WIDE = """width => document.documentElement.scrollWidth <= width ? []
    : [...document.querySelectorAll("section *")]
    .filter((element) => element.getBoundingClientRect().right > width)
    .map((element) => element.outerHTML.slice(0, 90))"""
THERE = "element => element.scrollIntoView({behavior: 'instant'})"
BRIGHT = """canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    .reduce((sum, value, place) => place % 4 < 3 ? sum + value : sum, 0)"""
"""Sum over all pixels: other words or cells change it too, but while the swarm is silent only the theme
does."""

ALOUD = """window.said = {};
document.querySelectorAll("[role=status], [role=alert], [aria-live=polite]").forEach((node, place) => {
    const [words, key] = [[], `${place} ${node.id || node.className}`];
    let last = node.textContent;
    said[key] = words;
    new MutationObserver(() => node.textContent !== last && words.push(last = node.textContent))
        .observe(node, {subtree: true, childList: true, characterData: true});
})"""
"""What a screen reader says from now on."""

PHONE: ViewportSize = {"width": 390, "height": 844}
NARROW = 320
"""CSS pixels at which WCAG 2.2 (1.4.10) asks for no scrolling in two directions."""

CUT = "all => all.filter((name) => name.scrollWidth > name.clientWidth + 1).map((name) => name.textContent)"
SIZES: tuple[ViewportSize, ...] = (
    {"width": NARROW, "height": 568},
    PHONE,
    {"width": 1280, "height": 800},
)
WIDTHS = "all => all.map((part) => part.getBoundingClientRect().width)"
LEFT = "slider => slider.max - slider.value"
WRITTEN = """window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (word, ...rest) {
    window.written.push(word);
    write.call(this, word, ...rest);
}"""
FIRST = """[...document.querySelectorAll("main p, main h1, main h2, main h3, main dl, main section")]
    .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)[0].id"""
SMALL = """[...document.querySelectorAll("a, button, select, input, label")]
    .filter((element) => element.offsetParent)
    .filter((element) => !element.matches(".sr, .skip") && element.getBoundingClientRect().height < 40)
    .map((element) => element.outerHTML.slice(0, 90))"""
SHIFTS = """window.shifted = 0;
new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.shifted += entry.value))
    .observe({type: "layout-shift", buffered: true})"""
STILL = 0.05
"""Of the browser's measure of what moved; up to 0.1 counts as good on the web, and the dashboard needs a
tenth of that."""

TABS = 400
"""Key presses until somebody who only has a keyboard has passed every control of a dashboard with eight
peers."""


SEEN = """window.away = false;
Object.defineProperty(document, "hidden", {get: () => window.away});
window.leave = (away) => {
    window.away = away;
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A browser without a screen shows all of its tabs: `leave(true)` hides this one."""


async def frozen(page: Page) -> None:
    """Stops an installed clock until `resume`: what is to be seen early must not depend on how fast the
    machine is."""
    soon = 2  # seconds from now: a moment that is past by when the browser hears of it is an error
    await page.clock.pause_at(await page.evaluate("Date.now()") / 1000 + soon)


def test_the_accuracys_interval_and_sampled_answers_are_on_the_page(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        judged = happened.Evaluated(
            at=time.time(),
            peer=EVALUATOR,
            version=400,
            accuracy=0.5,
            tasks=256,
            sampled={
                name: Estimate(value=value, low=0.1, high=0.9)
                for name, value in (("mean@4", 0.25), ("pass@2", 0.31), ("pass@4", 0.75))
            },
            sets={"two-digits": happened.SetResult(accuracy=0.125, tasks=64)},
        )
        async with served(still(), [*past(300), judged]) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            complaints = listen(page)
            await page.goto(url)
            note = "95 %: 43.9–56.1%; from 35.2% at version 0; mean@4 25.0%; pass@4 75.0%"
            await expect(page.locator("#now")).to_contain_text(note)
            for title in ("mean@4", "pass@2", "pass@4"):
                await expect(page.locator("#curves")).to_contain_text(f"Held out, {title}")
            await expect(page.locator("#curves")).to_contain_text("two-digits")
            await look(page, "sampled")
            assert complaints == []

    play(scene)


def test_a_swarm_appears_on_the_page(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            complaints = listen(page)
            await page.goto(url)
            await expect(page.locator("#version")).to_have_text("0")
            for event in past(300):
                feed(event)
            await expect(page.locator("#version")).to_have_text("300")
            await expect(page.locator("#link-text")).to_have_text("live")
            await expect(page.locator("#accuracy")).to_contain_text("%")
            await expect(page.locator("#alive")).to_contain_text("6 of 7")
            await expect(page.locator("#peer-rows tr")).to_have_count(7)
            await expect(page.locator("#staleness .bar-mark")).not_to_have_count(0)
            await expect(page.locator("#staleness canvas.heat-canvas")).to_have_count(1)
            await expect(page.locator("#causes .lag-row")).to_have_count(2)
            for section in SECTIONS:
                await expect(page.locator(f"section#{section}")).to_have_count(1)
            await look(page, "desktop-light")
            assert complaints == []

    play(scene)


@pytest.mark.nightly
def far(second: int, **progress: object) -> happened.Heard:
    """A learner's heartbeat; second 0 is now."""
    said = heard(LEARNERS[0], 3, time.time(), seq=10_000 + second)
    progressed = StageProgress(**{"total": 8, "left": 40.0, **progress})  # type: ignore[arg-type]
    return replace(said, beat=replace(said.beat, progress=progressed))


@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_takes_long_says_how_far_it_is_and_when_it_ends(
    play: Play, size: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    async def scene(chromium: Browser) -> None:
        feed = Feed(SwarmState(Run(stop=Stop(versions=60, accuracy=0.9))))
        async with served(feed) as url:
            page = await chromium.new_page(viewport=size, color_scheme=scheme)
            complaints = listen(page)
            await page.goto(url)
            await expect(page.locator("#version")).to_have_text("0 of 60")
            feed(far(0, stage="batch", done=5, reward=0.375))
            rows = page.locator(".progress-row")
            await expect(rows.nth(1)).to_have_text(re.compile(r"batch.*5 of 8 groups, about (40|3\d) s left"))
            await expect(page.locator("#reward")).to_contain_text("0.38")
            for version, ago in ((1, 400.0), (2, 220.0), (3, 40.0)):
                new = released(version, time.time() - ago)
                feed(happened.Released(at=new.released, peer=new.publisher, release=new))
            feed(far(1, stage="gradient", done=2, total=16))
            await expect(rows.nth(0)).to_have_text(re.compile(r"versions3 of 60, until about .*\d\d:\d\d$"))
            await expect(rows.nth(1)).to_have_text("batch–")
            await expect(rows.nth(2)).to_contain_text("gradient2 of 16 groups")
            forecast = "At this pace 60 versions take 3 h, or less where the accuracy reaches 90%."
            await expect(page.locator("#forecast")).to_contain_text(forecast)
            await expect(page.locator("#peer-rows tr").first).to_contain_text("2 of 16")
            assert await page.evaluate(WIDE, size["width"]) == []
            await look(page, f"progress-{scheme}-{size['width']}")
            assert complaints == []

    play(scene)


def test_the_curves_are_drawn_and_can_be_taken_home(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            complaints = listen(page)
            await page.goto(url)
            await page.locator("#learning").evaluate(THERE)
            await expect(page.locator("#curves .plot canvas")).to_have_count(CURVES)
            reward = page.locator("[data-curve=reward]")
            await expect(reward.locator(".plot")).to_have_attribute(
                "aria-label", re.compile("at version 120.* over 120 points")
            )
            await expect(reward.locator(".value")).to_have_text(re.compile(r"^0\.\d\d$"))
            await reward.locator(".plot").focus()
            await page.keyboard.press("ArrowLeft")
            await expect(reward).to_contain_text("version 120")
            await expect(page.locator("[data-curve=kl]")).to_contain_text("version 120", use_inner_text=True)
            await page.get_by_text("by time").click()
            await page.get_by_text("15 min").click()
            for word, name in (("PNG", "reward.png"), ("CSV", "swarm-curves.csv")):
                async with page.expect_download() as saved:
                    await reward.get_by_text(word).click()
                download = await saved.value
                assert (await download.path()).stat().st_size > 1000, name
            assert complaints == []

    play(scene)


def test_a_hostile_name_adds_no_element_that_a_plain_one_would_not(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        counts = []
        start = time.time()
        for name in ("plain", HOSTILE):
            events = [
                *past(30),
                heard(who(9), 30, time.time(), name=name),
                happened.Noted(at=start, peer=who(9), level="info", text=name),
                happened.Shown(
                    at=start,
                    peer=LEARNERS[0],
                    group="g",
                    sampler=who(9),
                    version=29,
                    prompt=name,
                    answer=name,
                    completions=(name, name),
                    rewards=(0.0, 1.0),
                ),
            ]
            async with served(still(), events) as url:
                page = await chromium.new_page(viewport={"width": 1280, "height": 900})
                complaints = listen(page)
                await page.goto(url)
                await expect(page.locator("#peer-rows tr")).to_have_count(8)
                await expect(page.locator("#events")).to_contain_text(
                    "plain" if name == "plain" else "<script>"
                )
                await page.locator("#learning").evaluate(THERE)
                await expect(page.locator("#curves .plot canvas")).to_have_count(CURVES)
                await expect(page.locator("canvas.heat-canvas")).to_have_count(1)
                await expect(page.locator(".releases tbody tr")).not_to_have_count(0)
                await expect(page.locator("#samples tbody tr")).to_have_count(2)
                await expect(page.locator("footer")).to_have_count(1)
                counts.append(await census(page))
                assert await page.evaluate("window.hacked") is None
                assert complaints == []
                await page.close()
        assert counts[0] == counts[1]

    play(scene)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size['width']} px")
def test_the_first_line_of_the_page_is_the_worst_sentence(play: Play, size: ViewportSize) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed, past()) as url:
            page = await chromium.new_page(viewport=size)
            await page.goto(url)
            verdict = page.locator("#verdict")
            await expect(verdict).to_contain_text(f"Sampler {human_name(SAMPLERS[1])} has been silent")
            await expect(verdict).to_be_in_viewport(ratio=1)
            assert await page.evaluate(FIRST) == "verdict"
            await expect(page.locator("#problems .problem-text").first).to_be_attached()
            await expect(page.locator("#problems .problem-since")).to_have_count(0)  # one age, not two
            await expect(
                page.locator("nav").get_by_role("link", name="What is wrong (1 problem)")
            ).to_have_count(1)
            await look(page, f"verdict-{size['width']}")
            feed(heard(SAMPLERS[1], 120, time.time()))
            await expect(verdict).to_have_text(re.compile("✓ ?All is well: 6 peers are here."))
            await expect(page.locator("#well")).to_have_text(re.compile("✓ ?Nothing is wrong now."))
            await expect(page.locator("#note")).to_contain_text("Two learners train")

    play(scene)


def test_what_was_wrong_in_the_night_can_be_read_in_the_morning(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        swarm = Swarm()
        swarm.run(40.0)
        swarm.dead.add(LEARNERS[0])
        swarm.run(20.0)
        swarm.dead.clear()
        swarm.run(20.0)
        async with served(Feed(swarm.state, clock=lambda: swarm.now)) as url:
            page = await chromium.new_page(viewport=PHONE)
            complaints = listen(page)
            await page.goto(url)
            await expect(page.locator("#verdict")).to_contain_text("All is well")
            await page.locator("#incidents summary").click()
            away = page.locator(".incident").filter(has_text=human_name(LEARNERS[0])).first
            await expect(away).to_contain_text("Cause: It said no goodbye")
            await expect(away).to_contain_text(re.compile(r"\d\d:\d\d:\d\d to .*, \d\d s"))
            await look(page, "incidents")
            assert complaints == []

    play(scene)


def test_a_lone_seed_says_that_nobody_trains_yet_and_shows_the_word_to_send(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), [heard(SEED, 0, time.time())]) as url:
            page = await chromium.new_page(viewport=PHONE)
            await page.goto(url)
            await expect(page.locator("#verdict")).to_contain_text("No training yet")
            await expect(page.locator("#wrong .copy-box")).to_contain_text(INVITE.command)
            await expect(page).not_to_have_title(re.compile(r"^\("))
            await look(page, "lone-seed")

    play(scene)


def test_a_page_that_never_heard_anybody_says_that_and_nothing_else(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        late = 0.0
        feed = Feed(SwarmState(), clock=lambda: time.time() + late)
        async with served(feed) as url:
            late = 540.0
            page = await chromium.new_page()
            await page.goto(url)
            await expect(page.locator("#verdict")).to_contain_text("No peer was heard yet. This window has")
            await expect(page.locator("#wrong")).not_to_contain_text("all was well")

    play(scene)


@pytest.mark.nightly
def test_a_phone_scrolls_only_downwards(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        long = heard(SAMPLERS[0], 120, time.time(), seq=10**6, start=time.time(), name="N" * 40)
        long = replace(long, beat=replace(long.beat, hardware="H" * 60))
        async with served(still(), [*past(), long]) as url:
            page = await chromium.new_page(viewport=PHONE, color_scheme="light")
            complaints = listen(page)
            await page.goto(url)
            await expect(page.locator("#peer-rows tr")).to_have_count(7)
            await expect(page.locator("#invite")).to_have_count(1)
            await look(page, "phone")
            for width in (1280, 1190, 900, 834, 768, 720, PHONE["width"], NARROW):
                await page.set_viewport_size({"width": width, "height": PHONE["height"]})
                # canvases are drawn anew after the width has changed
                await page.wait_for_function(f"width => ({WIDE})(width).length === 0", arg=width)
                cut = await page.locator("#peers .peer-link, #network .peer-link").evaluate_all(CUT)
                assert cut == [] or width > PHONE["width"], "names are whole"
            await page.emulate_media(color_scheme="dark")
            await look(page, "phone-dark")
            assert complaints == []

    play(scene)


def test_a_print_has_every_curve_and_a_reader_aloud_hears_what_is_claimed(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport=PHONE)
            await page.goto(url)
            await expect(page.locator("footer")).to_have_count(1)
            drawn = page.locator("#curves .plot canvas")
            assert await drawn.count() == 0, "nobody scrolled there"
            await expect(page.locator(".heat .readout")).to_contain_text("with a policy")
            await page.pdf()
            await expect(drawn).to_have_count(CURVES)
            assert await drawn.first.evaluate(BRIGHT) > 0
            await expect(page.locator("#tokens")).to_contain_text("(claimed)")
            await expect(page.locator("#version")).not_to_contain_text("(claimed)")
            bar = page.locator("#causes .lag-bar").first
            assert "claimed by the sampler" in str(await bar.get_attribute("aria-label"))

    play(scene)


def test_a_finger_hits_every_control_of_a_phone(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport=PHONE, has_touch=True, is_mobile=True)
            await page.goto(url)
            await expect(page.locator("#peer-rows tr")).to_have_count(7)
            await expect(page.locator("footer")).to_have_count(1)
            assert await page.evaluate(SMALL) == []

    play(scene)


def test_nothing_jumps_while_the_page_fills(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.add_init_script(SHIFTS)
            await page.goto(url)
            await expect(page.locator("#staleness .readout")).to_contain_text("with a policy")
            await expect(page.locator("footer")).to_have_count(1)
            assert await page.evaluate("window.shifted") < STILL

    play(scene)


def counted(sampler: PeerId, verdicts: dict[str, int]) -> happened.Counted:
    samplers = {str(sampler): verdicts}
    return happened.Counted(
        at=time.time(), peer=LEARNERS[0], verdicts=verdicts, versions={}, seconds={}, samplers=samplers
    )


def test_strangers_move_no_members_bars_and_shares_and_verdicts_follow_the_totals(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed, now, (one, other) = still(), time.time(), SAMPLERS[:2]
        events: list[happened.AnyEvent] = [heard(peer, 1, now) for peer in (SEED, *LEARNERS, one, other)]
        for number in range(60, 75):
            event = heard(who(number), 1, now, role=Role.SAMPLER)
            loud = replace(event.beat, lag=Lag(generation=1e18))
            events.append(replace(event, beat=loud, invited=False))
        async with served(feed, [*events, counted(one, {"admit": 100})]) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            complaints = listen(page)
            await page.goto(f"{url}#peer=%")
            await expect(page.locator("#drawer-name")).to_have_text("An unknown peer")
            await page.keyboard.press("Escape")
            await expect(page.locator("#causes .lag-row")).to_have_count(2)
            widths = await page.locator("#causes .part-generation").evaluate_all(WIDTHS)
            assert min(widths[1:]) > 50, "after the legend's"
            row = page.locator("#peer-rows tr").filter(has_text=human_name(one))
            await expect(row).to_contain_text("100%")
            feed(happened.Left(at=time.time(), peer=one, name="", reason="done"))
            feed(counted(other, {"admit": 300, "stale": 100, "expired": 300}))
            await expect(row).to_contain_text("25%")
            await expect(page.locator("#staleness")).to_contain_text("80.0% admitted")
            assert complaints == []

    play(scene)


def test_large_figures_are_short_and_a_curve_without_points_has_no_file(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed, [heard(LEARNERS[0], 1, time.time())]) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.add_init_script(WRITTEN)
            await page.goto(url)
            await page.locator("#learning").evaluate(THERE)
            await expect(page.locator("#curves .plot canvas")).to_have_count(CURVES)
            await expect(page.locator("#curves a")).to_have_count(0)
            spent = {"gather": 0.1, "learn": 0.1, "average": 0.1, "step": 0.1}
            trained = happened.Trained(
                at=time.time(), peer=LEARNERS[0], version=1, groups=1, members=1, metrics={}, **spent
            )
            for version in (1, 2):
                feed(replace(trained, version=version, metrics={"grad_norm": version * 3.2e9}))
            loud = heard(LEARNERS[0], 2, time.time(), seq=10**6, start=time.time())
            feed(replace(loud, beat=replace(loud.beat, tokens=1e300)))
            norm = page.locator("[data-curve=grad_norm]")
            await expect(norm.locator(".value")).to_have_text("6.4e+9")
            await expect(norm.locator("a")).to_have_count(1)
            await page.wait_for_function("window.written.some((word) => /e\\+9$/.test(word))")
            assert not await page.evaluate("window.written.filter((word) => /^\\d{6,}|\\dk$/.test(word))")
            await expect(page.locator("#peer-rows")).to_contain_text("9.0e+15")

    play(scene)


def test_the_slider_of_a_replay_reaches_its_end(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        replay = JournalReplay(list(story(30, start=1_750_000_000.123, seconds=3600.777)))
        async with AsyncExitStack() as stack:
            server = await serve(create_app(replay), "127.0.0.1", 0, free=False)
            stack.push_async_callback(server.close)
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(f"{server.url}?speed=0")
            slider, button = page.locator("#replay-at"), page.locator(".replay-play")
            await slider.press("End")
            await expect(page.locator("#version")).to_have_text("30")
            await expect(button).to_contain_text("From the start")
            assert abs(await slider.evaluate(LEFT)) < 0.001
            await slider.press("ArrowLeft")
            await expect(button).to_contain_text("Play")
            assert 100 < await slider.evaluate(LEFT) < 120

    play(scene)


@cache
def of_some_minutes() -> JournalReplay:
    """Made once: reading a journal takes longer than the dashboard needs to open."""
    return JournalReplay(list(story(300, start=1e9)))


@pytest.mark.parametrize(
    ("query", "chosen"),
    [("?speed=60", "60"), ("?speed=7", "7"), ("?speed=5000", "1000"), ("?speed=fast", "1")],
)
def test_a_replay_opens_at_the_speed_of_its_address_and_keeps_to_it(
    play: Play, query: str, chosen: str
) -> None:
    async def scene(chromium: Browser) -> None:
        server = await serve(create_app(of_some_minutes()), "127.0.0.1", 0, free=False)
        page = await chromium.new_page()
        await page.goto(server.url + query)
        await expect(page.locator("#link-text")).to_have_text("replay")
        await expect(page.locator(".replay-tools input:checked")).to_have_value(chosen)
        await server.close()

    play(scene)


def test_a_page_goes_on_with_what_its_port_serves_next(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        server = await serve(
            create_app(JournalReplay(list(story(30, start=1e9)))), "127.0.0.1", 0, free=False
        )
        page, port = await chromium.new_page(), server.port
        await page.goto(server.url + "?speed=5")
        await expect(page.locator("#link-text")).to_have_text("replay")
        await server.close()
        for run in ("first", "second"):
            feed = still(SwarmState(Run(name=run)))
            for event in past(30):
                feed(event)
            invite = replace(INVITE, command=f"swarm join {run}")
            server = await serve(create_app(feed, invite), "127.0.0.1", port, free=False)
            await expect(page.locator("#run")).to_have_text(run)
            await expect(page.locator("#link-text")).to_have_text("live")
            await expect(page.locator("#join-command")).to_have_text(f"swarm join {run}")
            await server.close()

    play(scene)


def test_a_silence_is_said_aloud_once(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        moment, late = time.time(), 0.0
        feed = Feed(SwarmState(), clock=lambda: moment + late)
        async with served(feed, past(30)) as url:
            page = await chromium.new_page()
            await page.clock.install()
            await page.goto(url)
            await expect(page.locator("footer")).to_be_attached()
            await frozen(page)
            await page.evaluate(ALOUD)
            for late in (11.0, 13.0, 15.0):
                await expect(page.locator("#link-text")).to_contain_text(f"nothing heard for {late:.0f} s")
            said = await page.evaluate("said")
            assert max(map(len, said.values())) <= 2, said
            assert ["the swarm is silent"] in said.values()

    play(scene)


def test_a_button_without_a_further_page_keeps_the_focus(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        many = [heard(who(number), 30, time.time(), role=Role.SAMPLER) for number in range(20, 80)]
        async with served(still(), [*past(30), *many]) as url:
            page = await chromium.new_page()
            await page.goto(url)
            following = page.get_by_role("button", name="Next page")
            await following.focus()
            for _ in range(2):
                await page.keyboard.press("Enter")
                await expect(page.locator(".pager")).to_contain_text("page 2 of 2")
                await expect(following).to_be_focused()
        told = list(story(30, start=1e9))
        middle = told[len(told) // 2].at
        told.insert(len(told) // 2, happened.Noted(at=middle, peer=SEED, level="error", text="a fault"))
        server = await serve(create_app(JournalReplay(told)), "127.0.0.1", 0, free=False)
        await page.goto(server.url)
        before = page.get_by_role("button", name="Event before")
        await expect(before).to_be_enabled()
        await before.focus()
        await page.keyboard.press("Enter")
        await expect(before).to_be_disabled()
        await expect(before).to_be_focused()
        await server.close()

    play(scene)


def test_what_happened_on_another_day_says_which(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        noted = [
            happened.Noted(at=at, peer=LEARNERS[0], level="info", text=text)
            for at, text in ((START - 3 * 86400, "long ago"), (START, "just now"))
        ]
        feed = Feed(SwarmState(), clock=lambda: START)
        async with served(feed, [heard(SEED, 0, START - 3 * 86400), *noted]) as url:
            page = await chromium.new_page(timezone_id="UTC")
            await page.goto(url)
            when = page.locator("#events li").filter(has_text="long ago").locator("time")
            await expect(when).to_have_text(re.compile(r"^12 Jun, \d\d:\d\d:\d\d$"))
            when = page.locator("#events li").filter(has_text="just now").locator("time")
            await expect(when).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))

    play(scene)


def test_the_end_of_a_replay_has_its_last_event(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        end = happened.Noted(at=1e9 + 40.0004, peer=SEED, level="error", text="the very last word")
        replay = JournalReplay([*story(30, start=1e9), end])
        server = await serve(create_app(replay), "127.0.0.1", 0, free=False)
        page = await chromium.new_page()
        await page.goto(f"{server.url}#peer={SEED}")
        await expect(page.locator("dialog")).to_contain_text("the very last word")
        await server.close()

    play(scene)


@pytest.mark.nightly
def test_what_has_left_the_page_leaves_its_memory(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed, nodes = still(), list[int]()
        async with served(feed, past(30)) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(url)
            await page.locator("#network").evaluate(THERE)
            browser = await page.context.new_cdp_session(page)
            for version in range(31, 55):
                feed(
                    happened.Released(
                        at=time.time(), peer=LEARNERS[0], release=released(version, time.time())
                    )
                )
                for peer in (*LEARNERS, *SAMPLERS):
                    feed(heard(peer, version - 1, time.time(), seq=version))
                await expect(page.locator(".releases tbody th").first).to_have_text(str(version))
                await page.wait_for_timeout(1000)  # the table is drawn once a second
                if version % 8 == 6:
                    await browser.send("HeapProfiler.collectGarbage")
                    nodes.append((await browser.send("Memory.getDOMCounters"))["nodes"])
            assert nodes[-1] - nodes[0] < 100, nodes

    play(scene)


@pytest.mark.nightly
def test_an_address_that_ends_in_a_section_begins_there(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(f"{url}#peers")
            await expect(page.locator("#peers h2")).to_be_in_viewport()

    play(scene)


def test_a_page_that_hears_nothing_says_so_and_recovers(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        moment, late = time.time(), 0.0
        feed = Feed(SwarmState(), clock=lambda: moment + late)
        async with served(feed, [heard(LEARNERS[0], 3, moment)]) as url:
            page = await chromium.new_page()
            await page.goto(url)
            await expect(page.locator("#link-text")).to_have_text("live")
            late = 15.0
            await expect(page.locator("#link-text")).to_contain_text("the swarm is silent")
            await expect(page.locator("#peer-rows tr")).to_contain_text("lost")
            feed(heard(SAMPLERS[0], 3, moment + late))
            await expect(page.locator("#link-text")).to_have_text("live")

    play(scene)


def test_a_page_without_its_server_says_that_it_has_lost_its_peer(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        page = await chromium.new_page()
        await page.clock.install()
        async with served(still(), past(9)) as url:
            await page.goto(url)
            await expect(page.locator("#link-text")).to_have_text("live")
        await page.clock.fast_forward(12_000)
        await expect(page.locator("#link-text")).to_contain_text("this dashboard has lost its peer")
        await expect(page.locator("#verdict")).to_contain_text("This dashboard has lost its peer")

    play(scene)


def refused(answer: Response) -> bool:
    """An EventSource does not say why: the dashboard asks once more with fetch."""
    return answer.status == 503 and answer.request.resource_type == "fetch"


class Mute(Feed):
    """Its first stream says nothing after its first view, as one whose path died without a word."""

    streams = 0

    async def updates(self, at: float | None = None, speed: float = 1.0) -> AsyncIterator[str]:
        self.streams += 1
        mute = self.streams == 1
        async for view in super().updates(at, speed):
            yield view
            if mute:
                await asyncio.Event().wait()


def test_a_stream_that_fell_silent_without_an_error_is_asked_for_anew(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        moment = time.time()
        feed = Mute(SwarmState(), clock=lambda: moment)
        async with served(feed, past(9)) as url:
            page = await chromium.new_page()
            await page.clock.install()
            await page.goto(url)
            await expect(page.locator("#version")).to_have_text("9")
            await frozen(page)
            for event in past(12):
                feed(event)
            await page.clock.fast_forward(3_000)
            assert feed.streams == 1, "it may be silent for a while"
            await page.clock.resume()
            await page.clock.fast_forward(9_000)
            await expect(page.locator("#version")).to_have_text("12")
            await expect(page.locator("#link-text")).to_have_text("live")
            assert feed.streams == 2

    play(scene)


def test_a_page_that_loses_its_seat_says_how_old_it_is_and_a_proxys_refusal_is_no_full_house(
    play: Play,
) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed, past(9)) as url:
            page = await chromium.new_page()
            await page.clock.install()
            await page.goto(url)
            await expect(page.locator("#link-text")).to_have_text("live")
            await expect(page.locator("#peer-rows tr")).to_have_count(7)
            await frozen(page)
            async with page.expect_response(refused) as refusal:
                feed.readers = 1_000_000
                feed.close()
            await (await refusal.value).finished()
            await page.clock.run_for(3_000)
            await expect(page.locator("#link-text")).to_contain_text("too many dashboards are open")
            await expect(page.locator("#verdict")).not_to_contain_text("what it shows is")
            await page.clock.resume()
            await page.clock.fast_forward(30_000)
            await expect(page.locator("#verdict")).to_contain_text(
                re.compile(r"no room for this dashboard: what it shows is \d\d s old")
            )
            await expect(page.locator("#peer-rows .is-alive")).to_have_count(6)  # as they were last heard
            await page.route("**/stream", lambda route: route.fulfill(status=503, body="no upstream"))
            await page.clock.fast_forward(6_000)
            await expect(page.locator("#link-text")).to_contain_text("this dashboard has lost its peer")

    play(scene)


@pytest.mark.nightly
def test_a_page_too_many_says_so(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed) as url:
            feed.readers = 1_000_000
            page = await chromium.new_page()
            await page.goto(url)
            await expect(page.locator("#link-text")).to_contain_text("too many dashboards are open")

    play(scene)


def test_a_problem_appears_with_cause_and_next_step_and_clears(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed, past()) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(url)
            problem = page.locator(f"#problems li[data-key='lost {SAMPLERS[1]}']")
            await expect(problem).to_contain_text("Cause")
            await expect(problem).to_contain_text("Next step")
            await expect(problem.locator(".mark-word")).to_have_text(re.compile("[▲✕] ?(warning|broken)"))
            await expect(page.locator("#wrong [role=status]")).to_contain_text("problem")
            await expect(page).to_have_title(re.compile(r"^\(\d\) "))
            await look(page, "problem")
            feed(heard(SAMPLERS[1], 120, time.time()))
            await expect(problem).to_have_count(0)

    play(scene)


def test_the_keyboard_reaches_the_skip_link_and_the_controls_of_every_section(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(url)
            await expect(page.locator("#invite button").first).to_be_visible()
            await page.keyboard.press("Tab")
            await expect(page.locator(".skip")).to_be_focused()
            await expect(page.locator(".skip")).to_be_in_viewport()
            await page.keyboard.press("Enter")
            reached = set()
            for _ in range(TABS):
                await page.keyboard.press("Tab")
                reached.add(await page.evaluate("document.activeElement.closest('section')?.id"))
                if "invite" in reached:
                    break
            assert reached >= set(SECTIONS) - {"wrong"}, "without a problem there is nothing to press there"

    play(scene)


def test_the_arrow_keys_read_the_cells_of_the_heat_map(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(url)
            readout = page.locator("#staleness .readout")
            await expect(readout).to_contain_text("with a policy")
            await page.locator(".heat-box").focus()
            await page.keyboard.press("Home")
            await expect(readout).to_have_text(
                re.compile(r"the .* after: (nothing heard|\d+ versions? behind)")
            )
            await page.locator(".heat-box").blur()
            await expect(readout).to_contain_text("with a policy")

    play(scene)


@pytest.mark.nightly
def test_canvases_follow_the_theme(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with served(still(), past()) as url:
            page = await chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            await page.goto(url)
            for place, canvas in (
                ("#staleness", ".heat-canvas"),
                ("#learning", "[data-curve=reward] canvas"),
            ):
                await page.emulate_media(color_scheme="light")
                await page.locator(place).evaluate(THERE)
                light = await page.locator(canvas).evaluate(BRIGHT)
                await page.emulate_media(color_scheme="dark")
                await page.wait_for_function(
                    f"light => ({BRIGHT})(document.querySelector('{canvas}')) != light", arg=light
                )
            await look(page, "desktop-dark")

    play(scene)


def test_colours_contrast_in_both_themes() -> None:
    light, dark = (
        palette(block)
        for block in re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(), re.DOTALL)[:2]
    )
    for theme in (light, light | dark):
        for ground in ("paper", "card"):
            for ink in ("ink", "muted", "accent", "warning", "error", "ok"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
            for mark in (name for name in theme if name.startswith("cause-") or name in PURPOSES):
                assert contrast(theme[mark], theme[ground]) >= 3, (mark, ground)
        for level in ("warning", "error"):
            assert contrast(theme[level], theme[f"{level}-soft"]) >= 4.5, level


def palette(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9-]+): #([0-9a-f]{6});", block))


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it: 1 for the same colour, 21 for black on white."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE / 1000):
        while not holds():
            await asyncio.sleep(0.02)


def test_a_tab_that_nobody_sees_holds_no_stream_and_its_title_follows(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        alive = heard(SAMPLERS[1], 120, time.time())
        async with served(feed, [*past(), alive]) as url:
            page = await chromium.new_page()
            await page.add_init_script(SEEN)
            await page.clock.install()
            await page.goto(url)
            await expect(page).to_have_title(re.compile("version 120 "))
            await frozen(page)
            await page.evaluate("leave(true)")
            await page.clock.fast_forward(5_000)
            assert feed.readers == 1, "somebody looks elsewhere for a moment"
            await page.clock.resume()
            await page.clock.fast_forward(11_000)
            await until(lambda: feed.readers == 0)
            now, publisher = time.time(), LEARNERS[0]
            feed(happened.Released(at=now, peer=publisher, release=released(121, now)))
            feed(happened.Noted(at=now, peer=publisher, level="info", text="said to nobody"))
            await page.clock.fast_forward(31_000)
            await expect(page).to_have_title(re.compile("version 121 "))
            assert feed.readers == 0
            feed(happened.Released(at=now, peer=publisher, release=released(122, now)))
            await frozen(page)
            await page.evaluate(ALOUD)
            await page.clock.fast_forward(20_000)
            await page.evaluate("leave(false)")
            await expect(page.locator("#version")).to_have_text("122")
            await page.clock.resume()
            await expect(page.locator("#link-text")).to_have_text("live")
            await expect(page.locator("#events")).to_contain_text("said to nobody")
            assert "lost its peer" not in str(await page.evaluate("said"))
            assert feed.readers == 1

    play(scene)


def test_a_film_that_opens_unseen_begins_when_it_is_seen_and_goes_on_when_it_is_not(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        replay = JournalReplay(list(story(300, start=1e9)))
        server = await serve(create_app(replay), "127.0.0.1", 0, free=False)
        page = await chromium.new_page()
        await page.add_init_script(f"{SEEN}; window.away = true")
        await page.clock.install()
        await page.goto(f"{server.url}?speed=3")
        await expect(page).to_have_title(re.compile("version 300 "))
        assert replay.readers == 0
        await page.evaluate("leave(false)")
        await expect(page.locator(".replay-tools input:checked")).to_have_value("3")
        slider = page.locator("#replay-at")
        await expect(page.locator("#link-text")).to_have_text("replay")
        assert await slider.evaluate(LEFT) > 0, "it began at the start"
        await page.evaluate("leave(true)")
        await page.clock.fast_forward(16_000)
        await until(lambda: replay.readers == 0)
        await page.clock.fast_forward(20_000)
        await page.evaluate("leave(false)")
        await until(lambda: replay.readers == 1)
        await expect(page.locator("#link-text")).to_have_text("replay")
        assert replay.span.last - replay.span.first - await slider.evaluate(LEFT) > 36 * 3
        await server.close()

    play(scene)


def test_a_page_that_was_left_and_may_be_shown_again_holds_no_stream(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed, past(9)) as url:
            page = await chromium.new_page()
            await page.goto(url)
            await expect(page.locator("#link-text")).to_have_text("live")
            await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', {persisted: true}))")
            await until(lambda: feed.readers == 0)
            now = time.time()
            feed(happened.Released(at=now, peer=LEARNERS[0], release=released(10, now)))
            await page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
            await expect(page.locator("#version")).to_have_text("10")
            assert feed.readers == 1

    play(scene)


@pytest.mark.nightly
def test_a_seventh_tab_of_a_browser_opens(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        feed = still()
        async with served(feed, past(9)) as url:
            context = await chromium.new_context()
            await context.add_init_script(SEEN)
            await context.clock.install()
            for _ in range(6):
                page = await context.new_page()
                await page.goto(url)
                await expect(page.locator("#link-text")).to_have_text("live")
                await page.evaluate("leave(true)")
                await page.clock.fast_forward(16_000)
            page = await context.new_page()
            await page.goto(url, timeout=PATIENCE)
            await expect(page.locator("#link-text")).to_have_text("live")
            await until(lambda: feed.readers == 1)

    play(scene)


def test_what_gets_no_answer_is_asked_once_at_a_time_and_says_what_may_be_in_its_way(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        held, asked = list[Route](), Counter[str]()

        def never(route: Route) -> None:
            held.append(route)
            asked[route.request.url.split("/")[4]] += 1

        async with served(still(), past(9)) as url:
            page = await chromium.new_page()
            await page.route(re.compile("/api/(peers|incidents|heat)"), never)
            await page.clock.install()
            await page.goto(f"{url}#peer={LEARNERS[0]}")
            events = page.locator("dialog section").filter(has_text="Events")
            await expect(events).to_contain_text("…")
            await until(lambda: len(asked) == 3)
            await frozen(page)
            await page.clock.fast_forward(6_000)
            await expect(events).to_contain_text("No answer yet. A browser has six connections")
            for _ in range(9):
                await page.clock.fast_forward(5_000)
            assert max(asked.values()) == 1
            for _ in range(6):
                await page.clock.fast_forward(15_000)
            await until(lambda: min(asked.values()) == 2)  # a question ends after a minute
            for route in held:
                await route.abort()

    play(scene)


def test_a_page_to_which_nothing_comes_says_so(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        held = list[Route]()

        def never(route: Route) -> None:
            held.append(route)

        async with served(still(), past(9)) as url:
            page = await chromium.new_page()
            await page.route("**/stream", never)
            await page.clock.install()
            await page.goto(url)
            await frozen(page)
            await expect(page.locator("#link-text")).to_have_text("connecting")
            await page.clock.fast_forward(11_000)
            await expect(page.locator("#link-text")).to_contain_text("a proxy holds the updates back")
            for route in held:
                await route.abort()

    play(scene)


def test_what_was_drawn_for_a_dark_screen_is_printed_on_a_dark_ground(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        light, dark = (
            palette(block)
            for block in re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(), re.DOTALL)[:2]
        )
        async with served(still(), past(9)) as url:
            page = await chromium.new_page(color_scheme="dark")
            await page.goto(url)
            heat = page.locator(".heat-box")
            await page.locator("#network").evaluate(THERE)
            await page.locator("#learning").evaluate(THERE)
            ground, none = "background-color", "rgba(0, 0, 0, 0)"
            await expect(page.locator("footer")).to_have_count(1)
            await expect(heat).to_have_css(ground, none)
            await page.emulate_media(media="print", color_scheme="dark")
            inked = "rgb({}, {}, {})".format(*bytes.fromhex(dark["card"]))
            for drawn in (heat, page.locator(".ring"), page.locator("#curves .plot").first):
                await expect(drawn).to_have_css(ground, inked)
            await page.emulate_media(media="print", color_scheme="light")
            await expect(heat).to_have_css(ground, none)
            assert contrast(dark["ink"], light["paper"]) < 2, "or it needs no ground"

    play(scene)
