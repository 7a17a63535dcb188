"""The blocks of peers, network, samples, events, invite and replay in a real browser, by keyboard wherever a
person has one."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from dashboard_story import HOSTILE, LEARNERS, SAMPLERS, heard, story, who
from dashboards import INVITE, Play, census, listen, look, past
from drawers import DRAWER, NAME, ROWS, opened, row
from playwright.async_api import Browser, Page, expect

from dashboard.serve.app import create_app
from dashboard.serve.replay import JournalReplay
from dashboard.serve.server import serve
from swarm import events as happened
from swarm.membership.identity import human_name, peer_id
from swarm.types import Link, PeerId

HELD = "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
"""The body has the focus while the keyboard is on the browser's own controls."""

CROWD = 500
JOURNAL = 1_700_000_000.0
"""When the replayed run began."""


@asynccontextmanager
async def replayed(
    chromium: Browser, events: list[happened.AnyEvent], query: str = "?speed=1"
) -> AsyncIterator[Page]:
    server = await serve(create_app(JournalReplay(events), INVITE), "127.0.0.1", 0, free=False)
    try:
        page = await chromium.new_page(viewport={"width": 1280, "height": 900})
        complaints = listen(page)
        await page.goto(server.url + query)
        await expect(page.locator("#replay")).to_be_visible()
        yield page
        # a seek leaves its stream
        assert [complaint for complaint in complaints if "ERR_ABORTED" not in complaint] == []
    finally:
        await server.close()


def shown(number: int, completions: tuple[str, ...] = ("12345", "12346")) -> happened.Shown:
    return happened.Shown(
        at=time.time(),
        peer=LEARNERS[0],
        group=f"{number:032x}",
        sampler=SAMPLERS[0],
        version=3,
        prompt=f"{number}=",
        answer="12345",
        completions=completions,
        rewards=(1.0, 0.0),
        advantages=(0.5, -0.5),
        weights=(1.25, 0.0),
    )


def transferred(receiver: PeerId, sender: PeerId, relayed: bool = False) -> happened.Transferred:
    link = Link(received={"weights": 500_000}, rtt=0.043, relayed=relayed)
    return happened.Transferred(
        at=time.time(),
        peer=receiver,
        seconds=5.0,
        sent={},
        received={"weights": 500_000},
        links={sender: link},
    )


def test_the_keyboard_sorts_by_a_column_both_ways(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, _):
            heading = page.locator("#peers thead th").filter(has_text="Admitted")
            await heading.locator("button").focus()
            await page.keyboard.press("Enter")
            await expect(heading).to_have_attribute("aria-sort", "descending")
            await expect(page.locator(ROWS).first).to_contain_text(NAME[SAMPLERS[0]])
            await page.keyboard.press("Enter")
            await expect(heading).to_have_attribute("aria-sort", "ascending")
            await expect(page.locator(ROWS).nth(len(SAMPLERS) - 1)).to_contain_text(NAME[SAMPLERS[0]])

    play(scene)


@pytest.mark.nightly
def test_a_row_keeps_its_place_while_it_has_the_focus(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, feed):
            await page.locator("#peers thead th").filter(has_text="Behind").get_by_role("button").click()
            link = page.locator(f"{ROWS} .peer-link").first
            await link.focus()
            peer = PeerId(str(await link.get_attribute("title")))
            feed(heard(peer, 45, time.time(), name="zzz", start=time.time()))
            await expect(page.locator(ROWS).first).to_contain_text("zzz")
            await page.wait_for_timeout(1200)
            await expect(link).to_be_focused()
            await expect(page.locator(ROWS).first).to_contain_text("zzz")
            await page.locator("#peer-filter").focus()
            await expect(page.locator(ROWS).first).not_to_contain_text("zzz")

    play(scene)


def test_a_list_keeps_its_order_while_the_focus_is_in_it(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, feed):
            names = page.locator("#causes .lag-row .peer-link")
            await expect(names.nth(1)).to_be_visible()
            before = await names.all_inner_texts()
            await names.last.focus()
            slow = next(peer for peer in SAMPLERS if NAME[peer] == before[-1])
            late = heard(slow, 45, time.time(), start=time.time())
            lag = msgspec.structs.replace(late.beat.lag, generation=900.0)
            feed(msgspec.structs.replace(late, beat=msgspec.structs.replace(late.beat, lag=lag)))
            await expect(page.locator("#causes .lag-row").last).to_contain_text("15 min")
            await expect(names.last).to_be_focused()
            await page.locator("#peer-filter").focus()
            feed(heard(LEARNERS[0], 46, time.time(), start=time.time()))
            await expect(names.first).to_have_text(before[-1])

    play(scene)


def test_a_filter_leaves_the_peers_that_fit_and_says_how_many(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, _):
            await expect(page.locator(ROWS)).to_have_count(7)
            await page.locator("#peer-filter").fill(NAME[SAMPLERS[2]].upper())
            await expect(page.locator(ROWS)).to_have_count(1)
            await expect(page.locator("#peers-shown")).to_have_text("1 of 7 peers")
            await page.locator("#peer-filter").fill("")
            await page.get_by_label("Role", exact=True).select_option("sampler")
            await page.get_by_label("State", exact=True).select_option("lost")
            await expect(page.locator(ROWS)).to_have_count(1)
            await expect(page.locator(ROWS)).to_contain_text(NAME[SAMPLERS[1]])

    play(scene)


def test_the_drawer_keeps_the_focus_closes_with_escape_and_gives_the_focus_back(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, _):
            name = row(page, SAMPLERS[0]).get_by_role("button")
            await name.focus()
            await page.keyboard.press("Enter")
            await expect(page.locator(f"{DRAWER} h2")).to_have_text(NAME[SAMPLERS[0]])
            for _ in range(30):
                await page.keyboard.press("Tab")
                assert await page.evaluate(HELD)
            # from wherever the keyboard was back into the dialog
            await page.locator(f"{DRAWER} .drawer-close").press("Tab")
            assert page.url.endswith(f"#peer={SAMPLERS[0]}")
            await look(page, "drawer")
            await page.keyboard.press("Escape")
            await expect(page.locator(DRAWER)).to_be_hidden()
            await expect(name).to_be_focused()
            await expect(page).not_to_have_url(re.compile("#peer"))

    play(scene)


def test_a_link_to_a_peer_opens_its_drawer_with_its_events_and_why_it_is_idle(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45), anchor=f"#peer={SAMPLERS[1]}") as (page, feed):
            drawer = page.locator(DRAWER)
            await expect(drawer).to_contain_text(SAMPLERS[1])
            await expect(drawer.locator(".doing")).to_contain_text("lost")
            await expect(drawer.locator(".event").first).to_contain_text(NAME[SAMPLERS[1]])
            feed(happened.Left(at=time.time(), peer=SAMPLERS[1], name="", reason="a signal"))
            await expect(drawer.locator(".doing")).to_contain_text("left in good order")
            await expect(drawer.locator(".event").first).to_contain_text("left")

    play(scene)


def test_what_only_the_peer_says_is_marked_and_what_others_counted_is_not(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, _):
            await expect(page.locator(ROWS)).to_have_count(7)
            cells = row(page, SAMPLERS[0]).locator("td")
            claimed = await cells.evaluate_all(
                "cells => cells.map((cell) => cell.querySelector('.claimed') !== null)"
            )
            heads = await page.locator("#peers thead th").all_inner_texts()
            marked = {head.strip("▴▾") for head, mark in zip(heads[1:], claimed, strict=True) if mark}
            assert marked == {"State", "Tokens/s", "Hardware", "Since"}
            await row(page, SAMPLERS[0]).get_by_role("button").click()
            own = page.locator(f"{DRAWER} section").filter(has_text="Claimed by itself")
            await expect(own.locator("dd")).not_to_have_count(0)  # the drawer is filled
            counted = page.locator(f"{DRAWER} section").filter(has_text="Counted and timed by others")
            await expect(counted.locator(".claimed")).to_have_count(0)
            assert await own.locator("dd .claimed").count() == await own.locator("dd").count()

    play(scene)


def test_hostile_names_and_texts_make_no_element_in_any_block(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        stranger = who(9)
        async with opened(chromium, [*past(45), shown(1)]) as (page, feed):
            await expect(page.locator("#samples .sample")).to_have_count(1)
            await expect(page.locator("#invite img")).to_have_count(1)
            before = await census(page)
            feed(heard(stranger, 120, time.time(), name=HOSTILE))
            feed(transferred(stranger, LEARNERS[0]))
            feed(happened.Noted(at=time.time(), peer=stranger, level="error", text=HOSTILE))
            feed(shown(1, completions=(HOSTILE, HOSTILE)))
            await expect(page.locator("#samples .sample").first).to_contain_text("onerror")
            await page.locator(ROWS).filter(has_text="onerror").get_by_role("button").click()
            await expect(page.locator("#drawer-name")).to_have_text(human_name(stranger))
            await expect(page.locator(DRAWER)).to_contain_text("onerror")
            after = await census(page)
            assert {kind: after[kind] for kind in ("img", "script", "[onerror]")} == {
                kind: before[kind] for kind in ("img", "script", "[onerror]")
            }
            assert await page.evaluate("window.hacked") is None

    play(scene)


@pytest.mark.nightly
def test_five_hundred_peers_are_at_most_a_hundred_rows_and_each_is_in_reach(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        crowd = [peer_id(number.to_bytes(32, "big")) for number in range(1, CROWD + 1)]
        async with opened(chromium, [heard(peer, 3, time.time()) for peer in crowd]) as (page, _):
            await expect(page.locator("#peers-shown")).to_have_text(f"{CROWD} peers")
            seen: set[str] = set()
            while True:
                names = await page.locator(f"{ROWS} .peer-link").evaluate_all(
                    "links => links.map((link) => link.title)"
                )
                assert 0 < len(names) <= 100
                seen |= set(names)
                following = page.get_by_role("button", name="Next page")
                if await following.is_disabled():
                    break
                await following.click()
            assert seen == set(crowd)

    play(scene)


def test_copying_falls_back_to_selecting_where_the_browser_has_no_clipboard(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(10)) as (page, _):
            await page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
            await page.get_by_role("button", name="Copy command").click()
            assert await page.evaluate("getSelection().toString()") == INVITE.command
            await expect(page.locator("#invite .copy-done")).to_contain_text("Selected")
            assert await page.locator("#invite img").evaluate("image => image.naturalWidth > 0"), (
                "the QR code is drawn"
            )

    play(scene)


def test_samples_show_reward_advantage_and_weight_of_each_completion(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, [*past(10), shown(7)]) as (page, _):
            rows = page.locator("#samples .sample tbody tr")
            await expect(rows).to_have_count(2)
            cells = [cell.strip() for cell in await rows.locator("td").all_inner_texts()]
            assert cells == ["12345", "1.00", "+0.50", "1.25", "12346", "0.00", "\N{MINUS SIGN}0.50", "0.00"]
            bars = await rows.locator("rect.fill").evaluate_all(
                "bars => bars.map((bar) => Number(bar.getAttribute('width')))"
            )
            assert bars == [62.5, 0]

    play(scene)


@pytest.mark.nightly
def test_samples_wait_while_somebody_reads(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, [*past(10), shown(7)]) as (page, feed):
            prompt = page.locator("#samples .sample-task dd").first
            await expect(prompt).to_have_text("7=")
            await page.get_by_role("button", name="Pause", exact=True).press("Enter")
            feed(shown(8))
            await expect(page.locator("#samples-wait")).to_contain_text("1 newer group")
            await expect(prompt).to_have_text("7=")
            await page.get_by_role("button", name="Go on").press("Enter")
            await expect(prompt).to_have_text("8=")

    play(scene)


def test_events_are_filtered_by_level_and_lead_to_their_peer(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, _):
            await page.locator("#events").get_by_text("Errors", exact=True).click()
            lines = page.locator("#events .event")
            await expect(lines.locator("visible=true").first).to_contain_text("error")
            assert set(await lines.evaluate_all("lines => lines.map((line) => line.className)")) == {
                "event error"
            }
            await page.locator("#events").get_by_text("All", exact=True).click()
            link = lines.get_by_role("button", name=NAME[SAMPLERS[1]]).first
            await link.press("Enter")
            await expect(page.locator("#drawer-name")).to_have_text(NAME[SAMPLERS[1]])

    play(scene)


def test_the_ring_tells_a_peer_and_its_flows_to_the_keyboard_and_relayed_ones_in_words(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, past(45)) as (page, feed):
            feed(transferred(SAMPLERS[2], LEARNERS[0], relayed=True))
            flow = page.locator(".flows tbody tr").filter(has_text=NAME[SAMPLERS[2]])
            await expect(flow).to_contain_text("100 kB/s")
            await expect(flow).to_contain_text("relayed")
            await expect(row(page, LEARNERS[0])).to_contain_text("43 ms")
            await page.locator(".ring").focus()
            words = page.locator("#ring-words")
            for _ in range(7):
                await page.keyboard.press("ArrowRight")
                if NAME[SAMPLERS[2]] in await words.inner_text():
                    break
            await expect(words).to_contain_text("Receives weights 100 kB/s (relayed)")
            await page.keyboard.press("Enter")
            await expect(page.locator("#drawer-name")).to_have_text(NAME[SAMPLERS[2]])

    play(scene)


@pytest.mark.nightly
def test_flows_stand_still_for_those_who_want_no_motion(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, [*past(45), transferred(SAMPLERS[2], LEARNERS[0])]) as (page, _):
            await expect(page.locator(".flows tbody tr").first).to_be_visible()
            ring = page.locator(".ring .above")
            await ring.scroll_into_view_if_needed()
            for motion, moves in (("reduce", False), ("no-preference", True)):
                await page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
                await page.wait_for_timeout(300)
                pictures = []
                for _ in range(4):
                    pictures.append(await ring.evaluate("canvas => canvas.toDataURL()"))
                    await page.wait_for_timeout(120)
                assert (len(set(pictures)) > 1) is moves

    play(scene)


@pytest.mark.nightly
def test_the_replays_slider_moves_the_version_and_pause_holds_it(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with replayed(chromium, list(story(200, JOURNAL))) as page:
            await page.locator("#replay").get_by_role("button", name="Pause").press("Enter")
            slider, version = page.locator("#replay-at"), page.locator("#version")
            await slider.fill(str(JOURNAL + 60))
            await expect(version).to_have_text("100")
            await slider.press("ArrowRight")
            await slider.press("ArrowRight")
            await expect(version).to_have_text("101")
            await page.wait_for_timeout(700)
            await expect(version).to_have_text("101")
            await look(page, "replay")

    play(scene)


@pytest.mark.nightly
def test_a_replay_plays_as_fast_as_asked_and_stands_at_its_end(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with replayed(chromium, list(story(200, JOURNAL))) as page:
            await page.locator("#replay").get_by_text("300×").click()
            await expect(page.locator("#version")).to_have_text("200", timeout=20_000)
            await expect(page.get_by_role("button", name="From the start")).to_be_visible()

    play(scene)


def test_a_replay_opens_on_the_whole_run_and_plays_it_from_the_start(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with replayed(chromium, list(story(200, JOURNAL)), query="") as page:
            await expect(page.locator("#version")).to_have_text("200")
            await page.locator("#replay").get_by_role("button", name="From the start").press("Enter")
            await expect(page.locator("#version")).to_have_text(re.compile(r"^\d?\d$"))

    play(scene)


def test_a_replay_leads_to_the_next_warning(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with replayed(chromium, list(story(200, JOURNAL))) as page:
            following = page.get_by_role("button", name="Next Event")
            await expect(following).to_be_enabled()
            await following.press("Enter")
            await expect(page.locator("#version")).to_have_text("200")

    play(scene)
