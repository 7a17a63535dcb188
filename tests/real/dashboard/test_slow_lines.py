"""What a window says where lines are slow: a first policy that takes minutes is on its way and nothing is
wrong, who limits its line says so, and a version's patch is told beside its size."""

from __future__ import annotations

import re
import time

import msgspec
from dashboard_happenings import folded
from dashboard_story import LEARNERS, SAMPLERS, SEED, beat, digest, heard, released, story
from dashboards import Play, past
from drawers import DRAWER, opened, row
from made_up_swarm import Swarm
from playwright.async_api import Browser, expect

from dashboard.diagnosis import diagnose
from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from swarm import events as happened
from swarm.protocol import Phase, Role
from swarm.types import Fetching, Patch, PeerId

JOINER = PeerId("12D3KooWJoiner")
SIZE = 185_308_664


def joining(at: float, seq: int, held: int | None, **how: object) -> happened.Heard:
    """A heartbeat of a sampler without a policy, of whose first one `held` bytes are there."""
    fetching = None if held is None else Fetching(version=9, held=held, size=SIZE)
    told = msgspec.structs.replace(
        beat(JOINER, -1, at, seq=seq, role=Role.SAMPLER),
        phase=Phase.NO_POLICY,
        state="waiting for a policy",
        fetching=fetching,
        done=0,
        **how,
    )
    return happened.Heard(at=at, peer=SEED, subject=JOINER, beat=told)


def test_a_peer_without_a_policy_is_at_no_version_and_behind_nothing() -> None:
    state = folded(*story(9, start=0.0), joining(5.4, 1, SIZE // 4))
    told = state.row(JOINER, now=5.4)
    assert told is not None and (told.version, told.lag, told.released) == (None, None, None)
    assert told.claims.fetching is not None and told.claims.fetching.held == SIZE // 4
    assert JOINER not in state.heat.view().rows
    newest = state.release_views(5.4)[-1]
    assert newest.have == newest.of - 1 - 2, "all but the joiner, and the two that the story leaves behind"


def test_who_came_after_a_release_is_timed_from_its_start() -> None:
    state = folded(*story(9, start=0.0), joining(5.4, 1, 0))
    fold(state, happened.Started(at=500.0, peer=JOINER, name="", role=Role.SAMPLER, version=-1, hardware=""))
    adopted = happened.Adopted(
        at=582.0, peer=JOINER, version=9, weights=digest(9), fetch=80.0, load=1.0, age=582.0 - 5.4
    )
    fold(state, adopted)
    assert state.release_views(582.0)[-1].last == 82.0


def test_a_first_policy_is_no_version_behind() -> None:
    state = folded(*story(9, start=0.0), happened.CaughtUp(at=9.0, peer=LEARNERS[0], version=0, behind=1))
    assert state.events()[-1].text.endswith("has its first policy, version 0.")


def test_a_releases_patch_is_told_beside_its_size() -> None:
    patch = Patch(base=digest(9), root=digest(99), size=1_400_000)
    release = msgspec.structs.replace(released(10, 6.0), size=SIZE, patches=(patch,))
    state = folded(*story(9, start=0.0), happened.Released(at=6.0, peer=LEARNERS[0], release=release))
    views = state.release_views(6.0)
    assert (views[-1].size, views[-1].patch, views[-2].patch) == (SIZE, 1_400_000, None)


def waiting(seconds: int, moves: bool) -> SwarmState:
    """Samplers whose first policy takes so long, while its bytes arrive or do not."""
    swarm = Swarm()
    swarm.run(10.0)
    for second in range(seconds):
        swarm.run(1.0)
        fold(swarm.state, joining(swarm.now, second + 1, 1_000_000 * (second if moves else 1)))
    return swarm.state


def test_a_first_policy_that_takes_minutes_is_no_problem_while_its_bytes_arrive() -> None:
    state = waiting(180, moves=True)
    assert [problem.key for problem in diagnose(state, state.last)] == []


def test_a_first_policy_of_which_nothing_arrives_is_one() -> None:
    state = waiting(60, moves=False)
    assert [problem.key for problem in diagnose(state, state.last)] == ["no policy"]


def test_a_learner_that_fetches_for_minutes_is_no_problem_while_bytes_arrive() -> None:
    for moves in (True, False):
        swarm = Swarm()
        swarm.run(40.0)
        late = LEARNERS[1]
        swarm.phases[late] = Phase.CATCHING_UP
        swarm.emit(happened.Moved, late, state=str(Phase.CATCHING_UP), version=1, cause="ahead seen")
        for second in range(90):
            swarm.fetching[late] = Fetching(version=80, held=1_000_000 * (second if moves else 1), size=SIZE)
            swarm.run(1.0)
        assert (f"waits {late}" in swarm.problems()) is not moves


def test_first_groups_that_take_minutes_are_no_fault_of_the_network() -> None:
    swarm = Swarm()
    swarm.training = False
    swarm.idle.update(SAMPLERS)
    swarm.phases.update(dict.fromkeys(LEARNERS, Phase.GATHERING))
    assert swarm.run(240.0, lambda problems: any(key.startswith("waits") for key in problems)) is None
    assert swarm.run(120.0, lambda problems: any(key.startswith("waits") for key in problems)) is not None


def test_the_page_says_how_much_of_a_first_policy_is_there(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        async with opened(chromium, [*past(45), joining(time.time(), 1, 43_000_000)]) as (page, _):
            joiner = page.locator("#peer-rows tr").filter(has_text="waiting for a policy")
            await expect(joiner.locator(".fetched")).to_have_text("43.0 MB of 185 MB (claimed)")
            await joiner.get_by_role("button").click()
            await expect(page.locator(DRAWER)).to_contain_text("Fetches version 9")

    play(scene)


def test_the_page_says_what_a_peer_gives_of_its_line(play: Play) -> None:
    async def scene(chromium: Browser) -> None:
        now = time.time()
        limited = heard(SAMPLERS[0], 45, now, seq=99, start=now)
        limited = msgspec.structs.replace(
            limited, beat=msgspec.structs.replace(limited.beat, upload=15.0, download=80.0)
        )
        async with opened(chromium, [*past(45), limited]) as (page, _):
            await page.set_viewport_size({"width": 1900, "height": 900})
            await expect(row(page, SAMPLERS[0])).to_contain_text("15 Mbit/s up, 80 Mbit/s down")
            await row(page, SAMPLERS[0]).get_by_role("button").click()
            await expect(page.locator(DRAWER)).to_contain_text(
                "It gives releases and rounds 15 Mbit/s up and 80 Mbit/s down of its line; groups go first."
            )
            await expect(page.locator(DRAWER)).to_be_visible()  # its text is there before it opens
            await page.keyboard.press("Escape")
            await row(page, SAMPLERS[2]).get_by_role("button").click()
            await expect(page.locator(DRAWER)).to_contain_text(re.compile("It sets no limit"))

    play(scene)
