"""An engine that fails costs its peer time and nothing else: it is told, waited for, tried again, and the
version stays true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from still_host import still_host

from peers.commands import sim
from peers.runtime.limits import idle
from peers.sampler.engine_calls import EngineCalls
from swarm.events import Adopted, Evaluated, Event, Faulted, Heard, Judged, Noted, Recovered, Sampled
from swarm.learn.files.weights import from_bytes
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.sample.base import Completions, EngineError, NoRoom
from swarm.sample.toy import ToyEngine
from swarm.settings.config import BatchSize, DelayLaw, Evaluation, Optimizer, Run, Sampling, TaskSettings
from swarm.sim.clock import run as run_virtual
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Scenario
from swarm.sim.world import SimPeer, World
from swarm.storage.weights import Weights
from swarm.types import Verdict

EPOCH = 1_750_000_000.0


class Sick(ToyEngine):
    """Fails in `call` while `ill(seconds since the start)`; loads nothing then either when `call` is
    `load`."""

    def __init__(
        self, peer: SimPeer, call: str, ill: Callable[[float], bool], error: type[Exception] = EngineError
    ) -> None:
        super().__init__(from_bytes)
        self._peer, self._call, self._ill, self._error = peer, call, ill, error

    def load(self, weights: Weights) -> None:
        self._cough("load")
        super().load(weights)

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        self._cough("sample")
        return super().sample(prompts, group_size, seeds)

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        self._cough("greedy")
        return super().greedy(prompts)

    def _cough(self, call: str) -> None:
        if call == self._call and self._ill(self._peer.ports.clock.now() - EPOCH):
            raise self._error("out of memory with one task")


def played(
    sick: str,
    call: str,
    ill: Callable[[float], bool],
    minutes: float = 1.1,
    error: type[Exception] = EngineError,
) -> list[Event]:
    """Events of a small swarm in which one peer's engine is ill."""
    run = Run(
        name="faults",
        task=TaskSettings(name="toy"),
        sampling=Sampling(group_size=4, max_tokens=4),
        optimizer=Optimizer(lr=0.1),
        batch=BatchSize(groups=4, close_after=3.0),
        evaluation=Evaluation(tasks=16, every=2),
    )
    scenario = Scenario(
        name="faults",
        hours=minutes / 60,
        peers={"seed": 1, "learner": 1, "sampler": 2, "evaluator": 1},
        seed=1,
        prices={
            "sample": DelayLaw(law="constant", seconds=2.0),
            "learn": DelayLaw(law="constant", seconds=1.0),
        },
        run=run,
    )

    def spawn(peer: SimPeer) -> Any:
        kit = sim.policy_parts(peer.config)
        return sim.run_peer(
            peer, kit._replace(engine=lambda: Sick(peer, call, ill, error)) if peer.name == sick else kit
        )

    told: list[Event] = []
    World(scenario, spawn, sinks=[told.append]).run()
    return told


def of(told: list[Event], kind: type[Any], peer: str) -> list[Any]:
    return [event for event in told if isinstance(event, kind) and event.peer == peer]


def test_a_prompt_that_is_too_long_is_told_once_and_no_fault_of_the_engine() -> None:
    told = played("sampler-0", "sample", lambda now: 20 < now < 30, minutes=1.0, error=NoRoom)
    assert not of(told, Faulted, "sampler-0")
    (noted,) = of(told, Noted, "sampler-0")
    assert noted.text.endswith("; such tasks are left out")
    assert any(event.at > EPOCH + 40 for event in of(told, Sampled, "sampler-0")), "it goes on with others"


@pytest.fixture(scope="module")
def sampling_fails() -> list[Event]:
    return played("sampler-0", "sample", lambda now: 20 < now < 40)


def test_a_sampler_tells_that_its_engine_failed_and_that_it_is_back(sampling_fails: list[Event]) -> None:
    (fault,) = of(sampling_fails, Faulted, "sampler-0")
    (back,) = of(sampling_fails, Recovered, "sampler-0")
    assert (fault.part, fault.detail) == ("engine", "out of memory with one task")
    assert (
        back.part == "engine"
        and back.seconds == pytest.approx(back.at - fault.at, abs=0.01)
        and back.at - EPOCH > 40
    )


def test_it_samples_before_and_after_and_nobody_else_stops(sampling_fails: list[Event]) -> None:
    mine = [event.at - EPOCH for event in of(sampling_fails, Sampled, "sampler-0")]
    assert (
        min(mine) < 20 and not [at for at in mine if 23 < at < 40] and len([at for at in mine if at > 50]) > 3
    )
    assert (
        len([event for event in of(sampling_fails, Sampled, "sampler-1") if 23 < event.at - EPOCH < 40]) > 5
    )


def test_its_heartbeat_says_what_it_waits_for_and_no_credit_is_held(sampling_fails: list[Event]) -> None:
    states = {
        e.beat.state
        for e in of(sampling_fails, Heard, "seed-0")
        if e.subject == "sampler-0" and 25 < e.at - EPOCH < 40
    }
    assert states == {"waiting for the engine"}
    late = [event for event in of(sampling_fails, Judged, "learner-0") if 25 < event.at - EPOCH < 40]
    assert late and {event.verdict for event in late} == {Verdict.ADMIT}


def test_tries_are_a_second_apart_at_first_and_half_a_minute_at_last() -> None:
    tried: list[float] = []
    told = played("sampler-0", "sample", lambda now: now > 10 and (tried.append(now) or True), minutes=2.5)
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps == pytest.approx([1, 2, 4, 8, 16, *[30] * (len(gaps) - 5)], abs=0.1) and len(gaps) > 6
    faults = [event.at for event in of(told, Faulted, "sampler-0")]
    assert len(faults) >= 2 and all(after - before >= 60 for before, after in pairwise(faults)), (
        "told again each minute"
    )


def test_nothing_is_sampled_under_the_name_of_a_release_that_was_not_loaded() -> None:
    told = played("sampler-0", "load", lambda now: 20 < now < 40)
    assert of(told, Faulted, "sampler-0") and of(told, Recovered, "sampler-0")
    holds = -1
    for event in told:
        if event.peer == "sampler-0" and isinstance(event, Adopted):
            holds = event.version
        assert not (event.peer == "sampler-0" and isinstance(event, Sampled)) or event.version == holds
    assert not [event for event in of(told, Sampled, "sampler-0") if 23 < event.at - EPOCH < 40]


def test_a_release_that_does_not_fit_is_passed_by() -> None:
    told = played("sampler-0", "load", lambda now: 20 < now < 40, error=ValueError)
    notes = [event.text for event in of(told, Noted, "sampler-0") if event.level == "error"]
    assert (
        notes and "cannot be sampled from: out of memory" in notes[0] and not of(told, Faulted, "sampler-0")
    )
    assert [event for event in of(told, Sampled, "sampler-0") if event.at - EPOCH > 50]


@pytest.mark.parametrize("call", ["load", "greedy"])
def test_an_evaluator_tries_again_too(call: str) -> None:
    told = played("evaluator-0", call, lambda now: 20 < now < 40)
    assert of(told, Faulted, "evaluator-0") and of(told, Recovered, "evaluator-0")
    judged = [event.at - EPOCH for event in of(told, Evaluated, "evaluator-0")]
    assert not [at for at in judged if 23 < at < 40] and [at for at in judged if at > 40]


def test_an_engine_that_never_works_does_not_keep_a_peer_from_leaving() -> None:
    told = played("evaluator-0", "load", lambda now: True, minutes=1.0)
    assert of(told, Faulted, "evaluator-0") and not of(told, Evaluated, "evaluator-0")


# --- one that stands still ----------------------------------------------------------------------------------


class Still(ToyEngine):
    """Gives a sign of life a second, but not while it `stands` (seconds since the call began)."""

    def __init__(self, now: Callable[[], float], stands: Callable[[float], bool]) -> None:
        super().__init__(from_bytes)
        self.began, self._now, self._stands = now(), now, stands

    def statistics(self) -> dict[str, float]:
        seconds = range(int(self._now() - self.began))
        return {**super().statistics(), "signs": sum(not self._stands(second) for second in seconds)}

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        return []


def silent(
    seconds: float, stands: Callable[[float], bool], calls: int = 1
) -> tuple[list[tuple[float, str]], list[str]]:
    """What is told of calls that take so long, with seconds since the last began, and what the status line
    says of the peer each second of that."""

    async def main() -> tuple[list[tuple[float, str]], list[str]]:
        network = MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1)))
        host = still_host(network, "sampler-0", Role.SAMPLER, price=lambda kind: seconds)
        engine, engine_calls = Still(host.now, stands), EngineCalls(host)
        told, line = list[tuple[float, str]](), list[str]()
        host.bus.add(
            lambda event: told.append(
                (event.at - engine.began, event.detail if isinstance(event, Faulted) else "")
            )
        )
        host.status.phase = Phase.SAMPLING
        for _ in range(calls):
            engine.began = host.now()
            told, line = told[:0], line[:0]
            call = asyncio.ensure_future(engine_calls.sample(engine, [], []))
            while not call.done():
                line.append(cause.short if (cause := idle.of(host)) else "")
                await asyncio.sleep(1.0)
            await call
        return told, [*line, cause.short if (cause := idle.of(host)) else ""]

    return run_virtual(main())


def test_an_engine_that_stands_still_is_told_and_so_is_that_it_goes_on() -> None:
    told, line = silent(200.0, lambda second: 20 <= second < 110)
    silence = "it stands still: its process has given no sign of life for 45 s ("
    assert [text[: len(silence)] for _, text in told] == [silence, ""]
    assert "after 600 s of that (peer.engine.timeout)" in told[0][1]
    (fault, _), (back, _) = told
    assert 65 <= fault <= 71 and 110 <= back <= 116
    assert not any(line[:65]) and not any(line[116:])
    assert line[80].startswith("its engine has not responded")


def test_a_call_that_comes_to_its_end_in_silence_is_no_fault_the_next_time() -> None:
    told, _ = silent(100.0, lambda second: second < 95)
    assert len(told) == 2
    told, line = silent(100.0, lambda second: second < 95, calls=2)
    assert not told and not any(line), "a step of that model takes so long on this machine"


def test_an_engine_that_gives_no_signs_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Still, "statistics", ToyEngine.statistics)
    told, line = silent(500.0, lambda _: True)
    assert not told and not any(line)
