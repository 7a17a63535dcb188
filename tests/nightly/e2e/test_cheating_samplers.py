"""A public run of processes in which one of three samplers cheats, one after another in each of five ways: it
is suspended, its own terminal says so, the evidence holds elsewhere, and training goes on."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest
from cheating_peer import OFFERED
from places import SUPPORT
from swarm_processes import SETTINGS, UNHURRIED, Program, SwarmProcesses, get, started_swarm, swarm, version

from swarm import events
from swarm.core.audits.auditing import Finding
from swarm.membership.identity import human_name
from swarm.types import Verdict

CALM = (
    SETTINGS
    + """
[run.optimizer]
lr = 3e-4

[run.objective.options]
kl = 0.01
"""
)
"""It learns for a thousand versions of such small batches."""

PEER = SUPPORT / "cheating_peer.py"


class Scene(NamedTuple):
    house: SwarmProcesses
    url: str
    """Of the dashboard."""
    learner: Program
    honest: list[Program]


class Caught(NamedTuple):
    """A cheat that was suspended."""

    program: Program
    audited: events.Audited
    evidence: Path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("cheats")
    with started_swarm(folder, CALM) as house:
        seed = house.seed()
        url = house.wait_until(
            lambda: re.findall(r"http://\S+", seed.log.read_text()), 30, "the seed served no dashboard"
        )[0]
        learner = house.join("learner", folder=folder / "learner")
        honest = [house.join("sampler", *UNHURRIED, folder=folder / name) for name in ("ada", "bob")]
        house.wait_until(lambda: version(learner) >= 3, 90, "the swarm did not train")
        yield Scene(house, url, learner, honest)


def caught(scene: Scene, cheat: str) -> Caught:
    """A sampler that begins to cheat now, once it is suspended."""
    house, learner, folder = scene.house, scene.learner, scene.house.home / cheat.replace(" ", "-")
    words = ["join", house.invite("sampler"), "--as", "sampler", "--folder", str(folder)]
    words += [word for one in UNHURRIED for word in ("--set", one)]
    peer = house.run("cheat", *words, folder=folder, program=(sys.executable, str(PEER), cheat))
    house.wait_until(lambda: peer.saw(events.Started), 60, f"{cheat}: it did not start")
    (audited, *_) = house.wait_until(
        lambda: [one for one in learner.saw(events.Audited, sampler=peer.peer) if one.until > 0],
        120,
        f"{cheat}: it was not named",
    )
    name = f"peers/*/evidence/{audited.group}.evidence"
    (kept,) = house.wait_until(lambda: [*learner.folder.glob(name)], 30, f"{cheat}: no evidence")
    return Caught(peer, audited, kept)


def verified(evidence: Path, elsewhere: Path, run: Path) -> tuple[int, str]:
    """By `swarm verify`, of a copy, with another peer's folder."""
    for file in evidence.parent.glob(f"{evidence.stem}.*"):
        shutil.copy(file, elsewhere)
    ran = swarm("verify", str(elsewhere / evidence.name), "--folder", str(run))
    return ran.returncode, ran.stdout


@pytest.mark.parametrize("cheat", OFFERED)
def test_who_cheats_is_suspended_and_told_why_and_others_can_check_it(
    scene: Scene, cheat: str, tmp_path: Path
) -> None:
    house, learner, url = scene.house, scene.learner, scene.url
    program, audited, evidence = caught(scene, cheat)
    said = re.compile(rf"\(unverified\): suspended for another .*: {re.escape(audited.why)}")
    me = program.peer
    house.wait_until(lambda: said.search(program.log.read_text()), 30, "its own terminal does not say so")
    # a first group is replayed while it is still on its way to the disk
    judged = [one.at for one in learner.saw(events.Judged, sampler=me) if one.at <= audited.at]
    took = audited.at - min(judged, default=audited.at)
    print(f"\n{cheat}: {len(judged)} groups, {took:.1f} s, {audited.why}")

    (problem, *_) = house.wait_until(
        lambda: [one for one in get(url, "api/problems") if me in one["peers"] and "suspends" in one["text"]],
        30,
        "the dashboard is silent",
    )
    assert f"suspends sampler {human_name(me)} for another 60 min" in problem["text"]
    assert audited.why in problem["cause"].lower() and evidence.name in problem["todo"]

    # What added up over several groups may show in the last one, or not; and one token of each of two groups
    # may be within the tolerance of another replay.
    alone = audited.finding != Finding.DRIFTED or "it claims" in audited.why
    alone = alone and "shortly before" not in audited.why
    code, out = verified(evidence, tmp_path, house.home / "bob")
    holds = "the evidence holds" in out
    assert code == (0 if holds else 5) and (holds or not alone), out

    before, since = version(learner), time.time()
    house.wait_until(lambda: version(learner) > before + 3, 60, "it trains no more")
    later = {one.verdict for one in learner.saw(events.Judged, since=since, sampler=me)}
    assert later <= {Verdict.UNVERIFIED}
    program.kill()


def test_nobody_honest_was_suspended_and_training_went_on(scene: Scene) -> None:
    learner, honest = scene.learner, {one.peer for one in scene.honest}
    audits = [one for one in learner.saw(events.Audited) if one.sampler in honest]
    assert len(audits) > 100 and {one.finding for one in audits} <= {Finding.HONEST, Finding.UNDECIDED}
    whose = {one.group: one.sampler for one in learner.saw(events.Judged)}
    trained = [whose[group] for step in learner.saw(events.Stepped) for group in step.groups]
    rewards = [one.metrics["reward"] for one in learner.saw(events.Trained)]
    poison = fmean(sampler not in honest for sampler in trained)
    print(f"\n{poison:.1%} of {len(trained)} groups; {fmean(rewards[:20]):.2f} to {fmean(rewards[-20:]):.2f}")
    assert poison < 0.1 and fmean(rewards[-20:]) > fmean(rewards[:20]) + 0.1
