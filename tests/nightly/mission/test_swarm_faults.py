"""One real swarm through everything that happens to a swarm: newcomers, kill -9 of each kind of process,
signals.

The tests share it and run in order; each leaves a swarm that trains. What a person is promised stands in the
names.
"""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from swarm_processes import (
    UNHURRIED,
    Program,
    SwarmProcesses,
    admitted,
    alive,
    averaged,
    differing,
    get,
    released,
    started_swarm,
    version,
)

from swarm import events
from swarm.learn.models import template_limits
from swarm.protocol import Role

BACK = 15.0
"""Seconds until everybody who lives is in a correct round again; the promise of the project."""


@dataclass
class Swarm:
    house: SwarmProcesses
    seed: Program
    learners: list[Program] = field(default_factory=list)
    samplers: list[Program] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What the seed's page says is wrong."""
        page = (self.house.folder / "page").read_text()
        return [problem["text"] for problem in get(page, "api/problems")]

    def goes_on(self, seconds: float, why: str) -> None:
        """Three more versions at a learner that lives."""
        learner = self.learners[0]
        goal = version(learner) + 3
        self.house.wait_until(lambda: version(learner) >= goal, seconds, why)

    def all_in_a_round(self, seconds: float, why: str) -> float:
        """A round of all learners that live, and of nobody else; how long that took."""
        since = time.time()
        self.house.wait_until(
            lambda: all(averaged(one, self.learners, since) for one in self.learners), seconds, why
        )
        return time.time() - since


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with started_swarm(tmp_path_factory.mktemp("faults")) as house:
        it = Swarm(house, house.seed())
        it.learners = [house.join("learner"), house.join("learner")]
        it.samplers = [house.join("sampler", *UNHURRIED), house.join("sampler", *UNHURRIED)]
        evaluator = house.join("evaluator")
        everybody = [*it.learners, *it.samplers, evaluator]
        house.wait_until(
            lambda: all(one.saw(events.Started) for one in everybody), 90, "not everybody started"
        )
        yield it


def has_torch(process: psutil.Process) -> bool:
    return any("libtorch" in region.path for region in process.memory_maps())


def test_both_learners_train_in_rounds_together(swarm: Swarm) -> None:
    swarm.goes_on(60, "no versions came")
    swarm.all_in_a_round(30, "the learners were not in a round together")


def test_the_weights_of_each_version_are_the_same_everywhere(swarm: Swarm) -> None:
    swarm.goes_on(30, "no versions came")
    told = {
        (event.subject, event.beat.version)
        for event in swarm.seed.saw(events.Heard)
        if event.beat.role is Role.LEARNER
    }
    truth = released(swarm.seed)
    assert len({peer for peer, number in told if number in truth}) == 2
    assert differing(swarm.seed) == []


def test_a_learner_from_a_fresh_folder_gets_into_a_round_of_three(swarm: Swarm, tmp_path: Path) -> None:
    newcomer = swarm.house.join("learner", folder=tmp_path / "third")
    swarm.house.wait_until(lambda: newcomer.saw(events.Started), 60, "the third learner did not start")
    swarm.learners.append(newcomer)
    swarm.all_in_a_round(30, "there was no round of three")
    assert (tmp_path / "third" / "model" / "tokenizer.json").exists()


def test_groups_of_a_sampler_from_a_fresh_folder_are_admitted(swarm: Swarm, tmp_path: Path) -> None:
    newcomer = swarm.house.join("sampler", *UNHURRIED, folder=tmp_path / "third")
    swarm.house.wait_until(lambda: newcomer.saw(events.Started), 60, "the third sampler did not start")
    swarm.samplers.append(newcomer)
    swarm.house.wait_until(
        lambda: sum(admitted(learner, newcomer.peer) for learner in swarm.learners) > 3,
        30,
        "its groups were not admitted",
    )


def test_a_sampler_has_torch_in_its_engines_process_and_a_seed_nowhere(swarm: Swarm) -> None:
    assert all(has_torch(process) for process in swarm.learners[0].tree()[:1])
    assert not any(has_torch(process) for process in swarm.seed.tree())
    sampler = swarm.samplers[0]
    found = [process for process in sampler.tree() if has_torch(process)]
    assert [one for one in found if one.name() != template_limits.NAME] == [sampler.child("engine_worker")]


def test_a_sampler_goes_on_after_its_engine_was_killed(swarm: Swarm) -> None:
    sampler, since = swarm.samplers[0], time.time()
    sampler.child("engine_worker").kill()
    recovered = swarm.house.wait_until(
        lambda: sampler.saw(events.Recovered, since, part="engine"), 60, "the engine was not started again"
    )
    assert "signal SIGKILL" in sampler.saw(events.Faulted, since, part="engine")[0].detail
    swarm.house.wait_until(
        lambda: any(admitted(one, sampler.peer, recovered[0].at) for one in swarm.learners),
        BACK,
        "no group of the new engine was admitted",
    )


def test_training_goes_on_after_a_killed_sampler(swarm: Swarm) -> None:
    sampler = swarm.samplers.pop()
    family = sampler.tree()
    sampler.kill()
    swarm.goes_on(BACK, "training stopped with a sampler")
    swarm.house.wait_until(
        lambda: not alive(family), 5, f"processes of the killed sampler are left: {family}"
    )


def test_the_others_are_in_a_round_soon_after_a_killed_learner_and_the_page_names_it(swarm: Swarm) -> None:
    learner = swarm.learners.pop()
    family, name = learner.tree(), learner.saw(events.Started)[0].name
    learner.kill()
    swarm.all_in_a_round(BACK, "the learners that live were not in a round")
    swarm.house.wait_until(
        lambda: name in " ".join(swarm.problems()), BACK, "the dashboard does not name the killed learner"
    )
    swarm.house.wait_until(
        lambda: not alive(family), 5, f"processes of the killed learner are left: {family}"
    )


def test_a_learner_replaces_its_killed_p2pd(swarm: Swarm) -> None:
    learner = swarm.learners[0]
    learner.child("p2pd").kill()
    # a round whose parts go past p2pd goes on without it
    swarm.house.wait_until(
        lambda: learner.saw(events.Recovered, part="p2pd"), BACK, "the killed p2pd was not replaced"
    )
    swarm.all_in_a_round(BACK, "the learner whose p2pd was killed was not in a round")
    assert learner.saw(events.Faulted, part="p2pd")


def test_a_frozen_averager_costs_a_round_and_no_learner(swarm: Swarm) -> None:
    learner = swarm.learners[0]
    frozen = averager_of(learner)
    since = time.time()
    frozen.suspend()
    swarm.house.wait_until(
        lambda: learner.saw(events.Recovered, since, part="averager"), 45, "the averager was not replaced"
    )
    swarm.all_in_a_round(BACK, "no round of all after the averager was replaced")
    assert not alive([frozen])
    assert len(learner.saw(events.RoundBroke, since)) == 1


def test_training_goes_on_without_the_seed_and_with_it_again(swarm: Swarm) -> None:
    house, port = swarm.house, (swarm.house.folder / "peers" / "seed" / "port").read_text()
    family = swarm.seed.tree()
    swarm.seed.kill()
    house.wait_until(lambda: not alive(family), 5, f"processes of the killed seed are left: {family}")
    swarm.goes_on(BACK, "training stopped with the seed")
    swarm.all_in_a_round(BACK, "the learners were not in a round without the seed")
    swarm.seed = house.seed()
    assert (house.folder / "peers" / "seed" / "port").read_text() == port
    everybody = {one.peer for one in [*swarm.learners, *swarm.samplers]}
    house.wait_until(
        lambda: everybody <= {event.subject for event in swarm.seed.saw(events.Heard)},
        30,
        "not everybody found the seed again",
    )
    now = version(swarm.learners[0])
    house.wait_until(
        lambda: max(released(swarm.seed), default=-1) >= now,
        BACK,
        "the seed does not know the newest release",
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_a_sampler_finish_and_leave(
    swarm: Swarm, tmp_path: Path, number: int, code: int
) -> None:
    sampler = swarm.house.join("sampler", *UNHURRIED, folder=tmp_path / "leaver")
    swarm.house.wait_until(lambda: sampler.saw(events.Sampled), 60, "the sampler did not sample")
    family, sockets = sampler.tree(), sockets_of(sampler)
    assert sockets
    sampler.signal(number)
    assert sampler.process.wait(15) == code
    assert [event.reason for event in sampler.saw(events.Left, peer=sampler.peer)] == ["asked to stop"]
    swarm.house.wait_until(lambda: not alive(family), 5, f"processes of the sampler are left: {family}")
    assert not [path for path in sockets if path.exists()]
    swarm.house.wait_until(
        lambda: swarm.seed.saw(events.Left, peer=sampler.peer),
        5,
        "the seed did not hear that the sampler left",
    )


def test_a_second_signal_ends_a_learner_at_once(swarm: Swarm) -> None:
    learner = swarm.learners.pop()
    family = learner.tree()
    learner.signal(signal.SIGINT)
    learner.signal(signal.SIGINT)
    assert learner.process.wait(10) == 130
    swarm.house.wait_until(lambda: not alive(family), 5, f"processes of the learner are left: {family}")
    swarm.goes_on(BACK, "training stopped with the learner that left")


def test_a_lone_learner_steps_alone_and_nobodys_weights_ever_differed(swarm: Swarm) -> None:
    (last,) = swarm.learners
    since = time.time()
    swarm.house.wait_until(
        lambda: last.saw(events.Trained, since, members=1), BACK, "the last learner did not step alone"
    )
    assert differing(swarm.seed) == []


def averager_of(learner: Program) -> psutil.Process:
    """The youngest forked child: the averager is made after the DHT that it uses."""
    forked = [process for process in learner.tree()[1:] if "python" in process.name()]
    return max(forked, key=lambda process: process.create_time())


def sockets_of(program: Program) -> list[Path]:
    """What its p2pd and its children listen on."""
    return list(Path("/tmp").glob(f"hivemind-{program.peer[-10:]}-*"))
