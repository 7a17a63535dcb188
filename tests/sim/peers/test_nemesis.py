"""The roles that ship against faults at random: promises hold, and one that is broken is found. The thousand
seeds are in nightly/sim/test_thousand_swarms.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nemesis_trials import FULL_AND_KILLED, failed

from lab.studies.nemesis import Trial, try_plan
from peers import cli
from peers.errors import WrongUsage
from swarm.sim import nemesis
from swarm.sim.nemesis import NemesisPlan
from swarm.sim.scenario import Fault
from swarm.storage.record_log import RecordLog

CUT_OFF = ("learner-1", "sampler-1")
THE_OTHERS = ("evaluator-0", "learner-0", "sampler-0", "seed-0")


@cache
def tried(seed: int) -> Trial:
    return try_plan(nemesis.plan(seed))


BROKEN_ONCE = {
    27: "the shares of a batch left a slow learner out of rounds for which it waited with a gradient",
    134: "a step that nothing came of was taken for that of a later round of the same members",
    158: "three learners of one line, at versions 1, 2 and 7, waited for each other's votes",
    170: "peers without a vote waited for dead learners, whose place a new one had taken",
    297: "a learner trained a group of its disk again before it heard the other one, which knew of its step",
    1194: "all learners did so",
}
"""Seeds that broke a promise, and why."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [*range(3), *BROKEN_ONCE])
def test_after_any_faults_the_swarm_goes_on(seed: int) -> None:
    assert not failed(tried(seed))


def test_groups_that_a_full_disk_refused_are_trained_once() -> None:
    assert not failed(try_plan(FULL_AND_KILLED[1]))


CUT_OFF_FULL_AND_KILLED = NemesisPlan(
    seed=402,
    peers={"seed": 1, "learner": 2, "sampler": 2, "evaluator": 1},
    faults=(
        Fault(at=9.6, fault="partition", between=(CUT_OFF, THE_OTHERS)),
        Fault(at=15.9, fault="full", peer="learner-1", seconds=6.0),
        Fault(at=18.0, fault="repair", between=(CUT_OFF, THE_OTHERS)),
        Fault(at=21.0, fault="bounce", peer="learner-1", down=1.6),
    ),
)
"""A learner steps alone while no seed is in reach and its disk is full, and dies soon after it is back."""


def test_a_seed_that_was_cut_off_learns_of_steps_that_a_disk_refused() -> None:
    assert not failed(try_plan(CUT_OFF_FULL_AND_KILLED))


# --- it has teeth -------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_and_says_that_it_took_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RecordLog.append

    def lies(self: RecordLog, *records: Any) -> int:
        try:
            return real(self, *records)
        except OSError:
            return max(0, self.current)

    monkeypatch.setattr(RecordLog, "append", lies)
    assert {"lost", "doubled"} & try_plan(FULL_AND_KILLED[1]).failures.keys()


# --- the generator ------------------------------------------------------------------------------------------


def test_a_seed_is_a_plan() -> None:
    plans = [nemesis.plan(seed) for seed in range(30)]
    assert plans == [nemesis.plan(seed) for seed in range(30)]
    kinds = {fault.fault for plan in plans for fault in plan.faults}
    assert kinds >= {"bounce", "crash", "host", "damage", "partition", "oneway", "hold", "slow", "busy"}


def test_a_plan_as_text_says_what_is_not_the_default() -> None:
    cut = Fault(at=2.0, fault="partition", between=(("seed-0",), ("learner-0",)))
    plan = NemesisPlan(
        7, {"seed": 1, "learner": 1}, (Fault(at=1.0, fault="bounce", peer="learner-0", down=3.0), cut)
    )
    assert nemesis.text(plan) == (
        "NemesisPlan(\n    seed=7,\n    peers={'seed': 1, 'learner': 1},\n    faults=(\n"
        "        Fault(at=1.0, fault='bounce', peer='learner-0', down=3.0),\n"
        "        Fault(at=2.0, fault='partition', between=(('seed-0',), ('learner-0',))),\n    ),\n)"
    )


@pytest.mark.timeout(600)
def test_the_same_seed_ends_alike() -> None:
    one, other = tried(0), try_plan(nemesis.plan(0))
    assert (one.versions, one.next_version) == (other.versions, other.next_version)


def faults(count: int) -> tuple[Fault, ...]:
    return tuple(Fault(at=float(k), fault="bounce", peer="learner-0") for k in range(count))


@pytest.mark.parametrize(
    ("fails", "left"),
    [
        (lambda plan: {2.0, 7.0} <= {fault.at for fault in plan.faults}, [2.0, 7.0]),
        (lambda plan: len(plan.faults) >= 3, 3),
        (lambda plan: True, []),
    ],
)
def test_the_shortest_script_has_what_it_needs_and_no_more(
    fails: Callable[[NemesisPlan], bool], left: list[float] | int
) -> None:
    plan = NemesisPlan(1, {"seed": 1, "learner": 3, "sampler": 4, "evaluator": 1}, faults(9))
    script = nemesis.shrink(plan, fails)
    times = [fault.at for fault in script.faults]
    assert times == left or len(times) == left
    assert script.peers == {"seed": 1, "learner": 1, "sampler": 1, "evaluator": 0}


@pytest.mark.timeout(600)
def test_swarm_sim_says_what_it_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["sim", "--nemesis", "3"]) == 0
    assert "seed 3: 1 seed" in capsys.readouterr().out
    assert cli.run(["bench", "nemesis", "-n", "2"]) == 0
    assert "trials with a broken promise                         0" in capsys.readouterr().out


def test_a_folder_as_journal_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="is a folder: name the journal's file"):
        cli.run(["sim", "--nemesis", "3", "--out", str(tmp_path)])
