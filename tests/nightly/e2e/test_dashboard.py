"""The dashboard of a real swarm in a real browser: it names what is wrong soon, stops when it is over, and
believes no name.

The tests share one swarm and one browser and run in order. `SWARM_SHOTS=folder` keeps what the browser shows:
the README's pictures come from there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from playwright.sync_api import Browser, Page, expect, sync_playwright
from strangers import EVERY
from swarm_processes import (
    ROOT,
    SETTINGS,
    UNHURRIED,
    Program,
    SwarmProcesses,
    environment,
    get,
    started_swarm,
    version,
)

from peers.build.run_folder import read
from swarm import events
from swarm.membership import invite
from swarm.membership.identity import human_name, open_key
from swarm.protocol import Role

CALM = (
    SETTINGS.replace("e2e", "night-shift")
    + """
[run.optimizer]
lr = 3e-4

[run.objective.options]
kl = 0.01
"""
)
"""Batches as small as those of SETTINGS for hundreds of versions: the pictures are of a model that learns."""

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

SOON = 10.0
"""Seconds until a fault is named; the promise of the dashboard."""

AGAIN = 60.0
"""Seconds until a peer that is started again is heard, on a busy machine."""

BEHIND = 200
SIZES = {"desktop": (1280, 900, "light"), "dark": (1280, 900, "dark"), "phone": (390, 844, "light")}
HOSTILE = (
    '<img src=x onerror="window.hacked={0}">',
    "</td></tr></table><script>window.hacked={0}</script>",
    "<b>{0}</b>",
    "\u202e\u2066{0} txt.exe\u2069",
    "\x1b]0;{0}\x07\x1b[31mred",
    "javascript:window.hacked={0}",
    "' onfocus=window.hacked={0} '",
    "{0}" + "a" * 300,
    "${{window.hacked={0}}}",
    "\u0000\ufeff\u200b{0}\u2028",
    "<svg/onload=window.hacked={0}>",
    "{0}\U0001f600" * 20,
)


@dataclass
class Scene:
    """A swarm and the dashboard that its seed serves."""

    house: SwarmProcesses
    url: str
    browser: Browser
    page: Page
    said: list[str]
    """By the dashboard's console."""
    stranger: Stranger
    learners: list[Program] = field(default_factory=list)
    samplers: list[Program] = field(default_factory=list)

    def problems(self) -> list[str]:
        return [problem["text"] for problem in self.ask("api/problems")]

    def ask(self, path: str) -> Any:
        return get(self.url, path)

    def named(self, name: str) -> Any:
        """The problems on the dashboard that tell of this peer."""
        return self.page.locator("#problems li[data-key]").filter(has_text=name)

    def well(self, seconds: float) -> None:
        """Nothing is wrong, on the dashboard and over JSON, before `seconds` are over and for two heartbeats
        more."""
        expect(self.page.locator("#problems li[data-key]")).to_have_count(0, timeout=1000 * seconds)
        self.page.wait_for_timeout(2000 * EVERY)
        assert self.problems() == []

    def shoot(self, what: str) -> None:
        """What each kind of screen shows now, when somebody wants to see it."""
        folder = os.environ.get("SWARM_SHOTS")
        if not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        for kind, (width, height, scheme) in SIZES.items():
            page = self.browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(self.url)
            expect(page.locator("#version")).to_have_text(re.compile(r"\d"))
            expect(page.locator("#staleness canvas").first).to_be_visible()
            if kind == "phone" and self.problems():
                page.locator("#wrong").evaluate("(one) => one.scrollIntoView()")
            page.wait_for_timeout(1500)
            page.screenshot(path=str(Path(folder) / f"{what}-{kind}.png"))
            page.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.fail(
            "there is no chromium to look at the dashboard: `make chromium` installs it", pytrace=False
        )
    own = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
    with sync_playwright() as playwright:
        it = playwright.chromium.launch(executable_path=program, args=FLAGS, env=dict(own))
        yield it
        it.close()


def complaints(page: Page) -> list[str]:
    """A list that collects the dashboard's console messages from now on; there should be none."""
    said: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(f"{request.url}: {request.failure}"))
    return said


def member_word(house: SwarmProcesses) -> str:
    """A sampler's word that makes a member: what others claim who delivered nothing is in their own row
    alone."""
    run, known = read(house.folder), invite.read(house.invite("sampler"), time.time())
    assert run is not None
    until = int(time.time()) + 3600
    made = invite.delegate(run.owner(), run.name, Role.SAMPLER, until)
    return invite.make(run.digest, known.addresses, Role.SAMPLER, until, made)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("dashboard")
    with started_swarm(folder, CALM) as house:
        seed = house.seed()
        with Stranger(member_word(house), folder) as stranger:
            url = house.wait_until(
                lambda: re.findall(r"http://\S+", seed.log.read_text()), 30, "the seed served no dashboard"
            )[0]
            page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            it = Scene(house, url, browser, page, complaints(page), stranger)
            page.goto(url)
            it.learners = [house.join("learner"), house.join("learner")]
            it.samplers = [house.join("sampler", *UNHURRIED), house.join("sampler", *UNHURRIED)]
            house.join("evaluator")
            house.wait_until(
                lambda: all(version(one) >= 3 for one in it.learners), 90, "the swarm did not train"
            )
            yield it
            page.close()


@pytest.fixture
def stranger(scene: Scene) -> Iterator[Stranger]:
    yield scene.stranger
    scene.stranger.says(None)


class Stranger:
    """See strangers.py. The node starts while the swarm does."""

    def __init__(self, word: str, folder: Path) -> None:
        words = [sys.executable, str(SUPPORT / "strangers.py"), word, str(folder)]
        self.key = folder / "stranger"
        self.log = open(folder / "strangers.log", "w+")  # noqa: SIM115 (as long as the process)
        self.process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment(PYTHONPATH=str(ROOT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)
        self.log.close()

    def says(self, who: dict[str, Any] | None) -> None:
        """It is this one from now on."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(who) + "\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline():
            self.log.seek(0)
            raise AssertionError(f"the stranger ended early: {self.log.read()[-2000:]}")


def test_a_healthy_swarm_has_nothing_wrong(scene: Scene) -> None:
    scene.well(30)
    names = [program.saw(events.Started)[0].name for program in (*scene.learners, *scene.samplers)]
    for name in names:
        expect(scene.page.locator("#peers")).to_contain_text(name)
    assert {row["name"] for row in scene.ask("api/peers")} >= set(names)
    scene.shoot("healthy")
    assert scene.said == []


def test_a_sampler_200_versions_behind_is_named_until_it_is_not(scene: Scene, stranger: Stranger) -> None:
    scene.house.wait_until(
        lambda: version(scene.learners[0]) > BEHIND + 5, 200, f"{BEHIND} versions were not trained"
    )
    newest, began = version(scene.learners[0]), time.monotonic()
    stranger.says({"name": "snail", "version": newest - BEHIND, "download": 120.0})
    name = human_name(open_key(stranger.key).me)  # whatever it calls itself
    expect(scene.named(name)).not_to_have_count(0, timeout=1000 * SOON)
    print(f"a sampler {BEHIND} versions behind was named after {time.monotonic() - began:.1f} s")
    assert name in " ".join(scene.problems())
    scene.shoot("behind")
    stranger.says({"name": "snail", "version": version(scene.learners[0])})
    expect(scene.named(name)).to_have_count(0, timeout=1000 * SOON)
    assert scene.said == []


def test_a_killed_learner_is_named(scene: Scene) -> None:
    kill(scene)
    scene.shoot("killed")
    assert scene.said == []


def test_a_killed_learner_is_no_problem_once_it_is_back(scene: Scene) -> None:
    victim = scene.learners[1]
    if victim.process.poll() is None:
        kill(scene)
    name = victim.saw(events.Started)[0].name
    scene.learners[1] = scene.house.join("learner")
    expect(scene.named(name)).to_have_count(0, timeout=1000 * AGAIN)
    scene.well(AGAIN)
    assert scene.said == []


def kill(scene: Scene) -> None:
    victim = scene.learners[1]
    name = victim.saw(events.Started)[0].name
    victim.kill()
    began = time.monotonic()
    expect(scene.named(name)).not_to_have_count(0, timeout=1000 * SOON)
    print(f"a killed learner was named after {time.monotonic() - began:.1f} s")
    assert name in " ".join(scene.problems())


def test_hostile_names_of_real_peers_stay_text(scene: Scene, stranger: Stranger) -> None:
    page = scene.page
    kinds, known = elements(page), labels(scene)
    for k, name in enumerate(HOSTILE):
        stranger.says({"name": name.format(k), "version": 0})
        scene.house.wait_until(lambda: labels(scene) - known, 30, "the stranger was not heard")  # noqa: B023
        known |= labels(scene)
        if name == "<b>{0}</b>":
            expect(page.locator("#peers")).to_contain_text("<b>", timeout=1000 * SOON)
        assert elements(page) <= kinds
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")  # it still draws
    assert page.evaluate("window.hacked") is None
    assert not re.search(r"[\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069]", "".join(known))
    assert max(map(len, known)) <= 64
    assert scene.said == []


def labels(scene: Scene) -> set[str]:
    """What peers call themselves, where that is not the name of their key."""
    return {row["claims"]["label"] for row in scene.ask("api/peers")}


def elements(page: Page) -> set[str]:
    """Kinds of elements on the dashboard, with the names of their attributes that could act."""
    return set(
        page.evaluate("""[...document.querySelectorAll("*")].map((one) =>
        [one.tagName, ...one.getAttributeNames().filter((name) => /^on|^style$|^srcdoc$/.test(name)),
         /^javascript:/i.test(one.getAttribute("href") ?? "") ? "script" : ""].join(" "))""")
    )
