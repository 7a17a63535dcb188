"""The row `engines`: its arithmetic and its gate quickly, its parts on real processes slowly (and small)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.figures import table
from lab.figures.table import Figure, Gap, Line, Unmeasured
from lab.processes import engine_agreement, sampling
from lab.rows import engines
from lab.rows.engines import Turns
from swarm.learn.models import tiny
from swarm.sample.base import Completions

TEN = Completions((4, 6), np.zeros(10, np.int32), np.zeros(10, np.float32), ("a", "b"))


def quiet(_: str) -> None:
    pass


def until(holds: Any) -> None:
    deadline = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Tens:
    """An engine that always samples ten tokens."""

    name = "tens"
    calls = 0

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        self.calls += 1
        return [TEN for _ in prompts]


class Asked:
    """A child process of the row that makes so many tokens a second."""

    def __init__(self, speed: dict[str, float], cpu: float) -> None:
        self.speed, self.cpu = speed, cpu
        self.questions: list[dict[str, Any]] = []

    def ask(self, **question: Any) -> dict[str, Any]:
        self.questions.append(question)
        if question["do"] == "size":
            return {}
        calls, tokens = question["calls"], 100 * question["calls"]
        return {
            "calls": calls,
            "tokens": tokens,
            "seconds": tokens / self.speed[question["do"]],
            "cpu": self.cpu * calls,
        }


@pytest.fixture
def gate() -> Iterator[sampling.Gate]:
    """In front of an engine that is called again and again, as a sampler does it."""
    made, left = sampling.Gate(Tens()), threading.Event()  # type: ignore[arg-type]

    def call() -> None:
        while not left.is_set():
            made.sample(["a", "b"], 2, [0, 1])

    caller = threading.Thread(target=call)
    caller.start()
    yield made
    left.set()
    made.close()
    caller.join(10.0)
    assert not caller.is_alive()


def test_a_gate_lets_one_call_more_through_than_it_counts_and_holds_the_next(gate: sampling.Gate) -> None:
    for turn in (1, 2):
        told = gate.through(3)
        assert (told["calls"], told["tokens"]) == (3, 3 * 2 * 10)
        until(lambda: len(gate._calls) == 5)
        assert gate.engine.calls == turn * 4  # type: ignore[attr-defined]


def test_a_gate_counts_the_time_between_calls_as_well() -> None:
    gate = sampling.Gate(Tens())  # type: ignore[arg-type]
    caller = threading.Thread(
        target=lambda: [(gate.sample(["a"], 2, [0]), time.sleep(0.05)) for _ in range(4)]
    )
    caller.start()
    assert gate.through(2)["seconds"] >= 2 * 0.05
    gate.close()
    caller.join(10.0)


def test_what_a_swarm_costs_is_said_with_its_spread_and_its_cpu() -> None:
    swarm, alone = Asked({"sample": 950.0}, 0.012), Asked({"sample": 1000.0, "plain": 500.0}, 0.010)
    done = engines._taken((swarm, alone), (2, 8), Turns(1, 3, 1.0))  # type: ignore[arg-type]
    inside, outside = engines._figures(quiet, "hf", (2, 8), done)
    assert isinstance(inside, Figure) and isinstance(outside, Figure)
    assert (inside.what, inside.ratio) == ("hf, 16 completions a call, in a swarm", pytest.approx(0.95))
    assert "costs 5.0% (5.0% to 5.0% by 3 turns), 2.0 ms of CPU" in inside.note
    assert (len(inside.turns), len(inside.other_turns), len(outside.turns)) == (3, 3, 3)
    assert (outside.against, outside.ratio) == ("transformers' generate", pytest.approx(2.0))
    assert {question["calls"] for question in swarm.questions[1:]} == {10}


def test_the_interval_of_a_median_is_that_of_the_binomial_distribution() -> None:
    assert engines.interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert engines.interval(range(15)) == (3, 11)  # .965 by the exact distribution
    assert engines.interval(range(100)) == (40, 59)  # .943


def test_an_engine_that_is_not_installed_leaves_its_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> Iterator[Line]:
        yield Figure(row="engines", what="early", value=1.0, unit="s")
        raise Unmeasured("the port is taken")

    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    monkeypatch.setattr(engines, "WIDE", {})
    monkeypatch.setattr(engines, "_pace", fails)
    for part in ("_arrival", "_agreement"):
        monkeypatch.setattr(
            engines, part, lambda *_: iter([Figure(row="engines", what="late", value=1.0, unit="s")])
        )
    monkeypatch.setattr(
        engines, "_learners", lambda *_: iter([Figure(row="engines", what="learner", value=1.0, unit="s")])
    )
    lines = list(engines.measure(quiet))
    said = [line.what if isinstance(line, Figure) else line.why for line in lines]
    assert said[:4] == ["early", "hf: the port is taken", "late", "late"]
    assert [text.partition(":")[2].startswith(" vllm is not installed here") for text in said[4:6]] == [
        True,
        True,
    ]
    assert said[6:] == ["learner"]


def test_small_figures_are_written_with_an_exponent() -> None:
    assert [table.number(value) for value in (0.00012, 0.0, 0.001)] == ["1.2e-04", "0.000", "0.001"]


def test_a_spread_is_of_absolute_differences() -> None:
    seen = engine_agreement.spread(np.array([-0.5, 0.1, 0.0, 0.2], np.float32))
    assert seen["mean"] == pytest.approx(0.2)
    assert seen["max"] == pytest.approx(0.5)
    assert seen["p99"] == pytest.approx(0.5, rel=0.05)


def test_an_engine_in_float32_agrees_with_the_learner_and_nf4_with_its_own_policy_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_agreement, "TASKS", 2)
    monkeypatch.setattr(engine_agreement, "GROUP", 2)
    setup = {"engine": "hf", "model": str(tiny.make(tmp_path / "tiny", engines.FAMILY)), "tokens": 8}
    exact, rough = (engine_agreement.agree(setup, kind)["against"] for kind in ("float32", "nf4"))
    assert exact["the learner in float32"]["max"] < 1e-4
    assert rough["the policy in nf4"]["max"] < 1e-4 < 1e-2 < rough["the learner in float32"]["mean"]


def test_a_first_token_is_sampled_with_each_release_that_arrives(tmp_path: Path) -> None:
    setup = {"engine": "hf", "model": str(tiny.make(tmp_path / "tiny", engines.FAMILY)), "tokens": 8}
    done = engine_agreement.arrive(setup, "lora")
    assert len(done["with"]) == len(done["without"]) == engine_agreement.TIMES
    assert min(done["with"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_row_of_the_engines_on_small_turns() -> None:
    lines = list(engines.measure(quiet, sizes=((2, 2),), tokens=8, starts=2, turns=1, seconds=0.05))
    found = {line.what: line for line in lines if isinstance(line, Figure)}
    gaps = [line.why for line in lines if isinstance(line, Gap)]
    assert all("not installed" in why for why in gaps), gaps
    assert all(figure.value > 0 for figure in found.values())
    assert {f"hf, 4 completions a call, {where}" for where in ("in a swarm", "alone")} <= found.keys()
    memory = {name: found[f"learner, {name}, peak memory"].value for name in engines.LEARNERS}
    assert memory["full"] > memory["full, 8-bit Adam"] > memory["LoRA"]
