"""`swarm dashboard`, `swarm replay` and `swarm status INVITE` over a real swarm of `swarm up`: what a late
window shows and keeps. The last test ends the swarm."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from observed_swarm import newest, training
from swarm_processes import UNHURRIED, Program, SwarmProcesses, alive, get, started_swarm, swarm

from swarm import events
from swarm.membership import invite
from swarm.protocol import Role
from swarm.types import PeerId


@pytest.fixture
def house(observed: SwarmProcesses) -> Iterator[SwarmProcesses]:
    """It trains."""
    with training(observed):
        yield observed


PEERS = ("seed", "learner-1", "sampler-1")


def everybody(house: SwarmProcesses) -> set[PeerId]:
    return {house.told(peer, events.Started)[0].peer for peer in PEERS}


def trained(house: SwarmProcesses) -> set[int]:
    """Versions."""
    return {event.version for event in house.told("learner-1", events.Trained)}


def window(house: SwarmProcesses, word: str, folder: Path, *more: str) -> Program:
    return house.run(
        "dashboard", "dashboard", word, "--port", "0", "--folder", str(folder), *more, folder=folder
    )


def page(house: SwarmProcesses, program: Program, seconds: float = 60) -> str:
    """The address that it says, once it says it."""

    def said() -> re.Match[str] | None:
        return re.search(r"dashboard: (http://[^\s?]+)", program.log.read_text())

    return house.wait_until(said, seconds, f"{program.name} served no dashboard")[1]  # type: ignore[index, no-any-return]


def rewards(state: Any) -> list[int]:
    """Versions on the curve."""
    return [point[0] for point in state["series"].get("reward", [])]


def versions(url: str) -> list[int]:
    """Versions on the whole curve, of which a view has as many points as a chart has pixels."""
    if "reward" not in get(url, "api/state")["series"]:
        return []
    return [point[0] for point in get(url, "api/series?name=reward")["points"]]


def end(program: Program) -> int:
    program.signal(signal.SIGINT)
    return program.process.wait(20)


# --- a late window ------------------------------------------------------------------------------------------


def test_a_late_window_shows_everybody_and_the_curves_of_before_it_came_without_torch_or_a_model(
    observed: SwarmProcesses, tmp_path: Path
) -> None:
    house = observed
    before = trained(house)
    late = window(house, house.invite("observer"), tmp_path / "late")
    url = page(house, late)
    state = get(url, "api/state")
    rows = {row["id"]: row for row in state["peers"]}
    assert everybody(house) <= set(rows)
    assert {rows[peer]["status"] for peer in everybody(house)} == {"alive"}
    assert before <= set(versions(url))
    assert state["head"]["version"] >= max(before)
    known = newest(house)
    with training(house):
        house.wait_until(
            lambda: get(url, "api/state")["head"]["version"] > known, 30, "the window does not go on"
        )
    mapped = {Path(region.path).name for region in psutil.Process(late.pid).memory_maps()}
    assert not [name for name in mapped if "torch" in name]
    assert not (tmp_path / "late" / "model").exists()
    assert {child.name() for child in late.tree()[1:]} == {"p2pd"}
    assert end(late) == 130


@pytest.mark.nightly
def test_a_window_that_starts_again_shows_what_it_knew(house: SwarmProcesses, tmp_path: Path) -> None:
    folder = tmp_path / "late"
    first = window(house, house.invite("observer"), folder)
    url = page(house, first)
    knew = house.wait_until(lambda: versions(url), 10, "no curve")
    house.wait_until((folder / "peers" / "observer-1" / "history").exists, 45, "nothing was saved")
    first.kill()
    again = window(house, house.invite("observer"), folder)
    assert set(knew) <= set(versions(page(house, again)))
    assert end(again) == 130


@pytest.mark.nightly
def test_a_damaged_history_does_not_stop_a_window(house: SwarmProcesses, tmp_path: Path) -> None:
    peer_folder = tmp_path / "late" / "peers" / "observer-1"
    peer_folder.mkdir(parents=True)
    (peer_folder / "history").write_bytes(b"no history")
    late = window(house, house.invite("observer"), tmp_path / "late")
    url = page(house, late)
    assert versions(url)
    assert [event for event in late.saw(events.Noted, level="warning") if "begins anew" in event.text]
    assert end(late) == 130


@pytest.mark.nightly
def test_a_windows_invite_makes_samplers_whatever_word_opened_it(
    house: SwarmProcesses, tmp_path: Path
) -> None:
    late = window(house, house.invite("learner"), tmp_path / "late")
    shown = get(page(house, late), "api/invite")
    said = invite.read(shown["word"], time.time())
    assert (said.role, said.delegate) == (Role.SAMPLER, None)
    assert said.addresses == invite.read(house.invite("learner"), time.time()).addresses
    assert end(late) == 130


@pytest.mark.nightly
def test_a_page_that_others_reach_says_that_it_has_no_password(house: SwarmProcesses, tmp_path: Path) -> None:
    late = window(house, house.invite("observer"), tmp_path / "late", "--host", "0.0.0.0")
    page(house, late)
    house.wait_until(lambda: "it has no password" in late.log.read_text(), 5, "no warning")
    assert end(late) == 130


@pytest.mark.nightly
def test_a_watchers_invite_makes_a_mirror_that_holds_what_is_released(
    house: SwarmProcesses, tmp_path: Path
) -> None:
    folder = tmp_path / "mirror"
    words = ("--serve", "mirror", "--upload", "50", "--folder", str(folder))
    mirror = house.run("mirror", "join", house.invite("observer"), *words, folder=folder)
    house.wait_until(lambda: mirror.saw(events.Started), 60, "the mirror did not start")
    known = newest(house)
    house.wait_until(
        lambda: any(e.beat.mirror > known for e in house.told("seed", events.Heard, subject=mirror.peer)),
        30,
        "the mirror holds no new version, or is not believed",
    )
    assert mirror.saw(events.Started)[0].role is Role.OBSERVER
    assert "a mirror; serving" in mirror.log.read_text()
    assert end(mirror) == 130


@pytest.mark.nightly
def test_a_private_swarm_opens_to_an_observers_invite_and_to_no_other(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed("run.private=true")
        learner = house.join("learner")
        house.wait_until(lambda: learner.saw(events.Started), 60, "the learner did not start")
        late = window(house, house.invite("observer"), tmp_path / "late")
        url = page(house, late)
        house.wait_until(
            lambda: {seed.peer, learner.peer} <= {row["id"] for row in get(url, "api/state")["peers"]},
            10,
            "not everybody",
        )
        assert get(url, "api/state")["run"]["private"]
        assert get(url, "api/invite") is None
        said = invite.read(house.invite("observer"), time.time())
        nobodys = invite.make(said.run, said.addresses, Role.OBSERVER)
        for word, why in (
            (house.invite("sampler"), "this invite does not admit an observer"),
            (nobodys, "an invite that makes members of it"),
        ):
            own = tmp_path / why[:4]  # a key that has shown one good word is a member with the next one, too
            ran = swarm("dashboard", word, "--port", "0", "--folder", str(own))
            assert ran.returncode == 5, ran.stderr
            assert why in ran.stderr and "swarm invite --role" in ran.stderr
        shown = get((house.folder / "page").read_text(), "api/invite")
        assert invite.read(shown["word"], time.time()).role is Role.SAMPLER
        assert end(late) == 130


# --- other readers of the same state ------------------------------------------------------------------------


@pytest.mark.nightly
def test_status_of_an_invite_tells_what_was_before(house: SwarmProcesses, tmp_path: Path) -> None:
    before = trained(house)
    ran = swarm("status", house.invite("observer"), "--json", "--folder", str(tmp_path / "late"))
    assert ran.returncode == 0, ran.stderr
    state = json.loads(ran.stdout)
    seen = rewards(state)
    assert min(seen) - min(before) <= 2
    assert max(seen) >= max(before) - 2
    assert everybody(house) <= {row["id"] for row in state["peers"]}


def test_status_of_a_folder_tells_the_same_as_its_page(observed: SwarmProcesses) -> None:
    house = observed
    ran = swarm("status", "--json", "--folder", str(house.folder))
    assert ran.returncode == 0, ran.stderr
    state, shown = json.loads(ran.stdout), get((house.folder / "page").read_text(), "api/state")
    assert set(state) == set(shown)
    assert {row["id"] for row in state["peers"]} <= {row["id"] for row in shown["peers"]}
    assert state["head"]["version"] <= shown["head"]["version"]


@pytest.mark.nightly
def test_a_seed_that_starts_again_has_its_history(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        first = house.seed()
        house.join("learner")
        house.join("sampler", *UNHURRIED)
        url = (house.folder / "page").read_text()
        house.wait_until(lambda: len(versions(url)) >= 3, 90, "nothing was learned")
        knew = versions(url)
        history = house.folder / "peers" / "seed" / "history"
        for _ in range(2):  # one that was under way may not have all of it
            since = time.time_ns()
            house.wait_until(
                lambda since=since: history.exists() and history.stat().st_mtime_ns > since,  # type: ignore[misc]
                45,
                "its history was not saved",
            )
        first.kill()
        house.seed()
        assert set(knew) <= set(versions((house.folder / "page").read_text()))


@pytest.mark.nightly
def test_a_runs_folder_is_replayed(house: SwarmProcesses) -> None:
    program = house.run("replay", "replay", str(house.folder), "--port", "0")
    url = page(house, program)
    state = get(url, "api/state")
    assert state["run"]["name"] == "e2e"
    assert state["replay"]["first"] < state["replay"]["last"] <= time.time()
    early = get(url, f"api/state?at={state['replay']['first']}")
    late = get(url, f"api/state?at={state['replay']['last']}")
    assert early["head"]["version"] <= 0 < late["head"]["version"]
    assert end(program) == 130


def test_ctrl_c_ends_all_of_it(house: SwarmProcesses) -> None:
    up = house.programs[0]
    family = up.tree()
    assert len(family) > 8
    up.signal(signal.SIGINT)
    try:
        assert up.process.wait(20) == 130
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it did not end\n{house.tails()}") from None
    house.wait_until(lambda: not alive(family), 5, f"left: {family}")
