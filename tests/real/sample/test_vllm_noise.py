"""What draws tokens inside vLLM, on plain tensors in vLLM's place: batches whose rows come, go and move, and
what is read of what vLLM reports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import msgspec
import nouns
import numpy as np
import pytest
import torch
from torch import Tensor

from swarm.core.intake.admission import malformation
from swarm.draws import noise
from swarm.draws.heads import contradiction, unpack
from swarm.processes.process import Child, Pipe
from swarm.sample import vllm_noise
from swarm.sample.server import named_noise, parse_answers
from swarm.sample.vllm import completions
from swarm.sample.vllm_noise import (
    HIDDEN,
    DrawnToken,
    NoiseDraw,
    NoiseRows,
    NoiseSlots,
    argument,
    draw_of,
    proven,
)
from swarm.settings.config import Sampling
from swarm.types import Noise

V = 50
CPU = torch.device("cpu")
SEED, HEAT = (1 << 64) - 3, 0.7


class Way(Enum):
    UNIDIRECTIONAL = 0
    SWAP = 1


@dataclass
class Step:
    """vLLM's BatchUpdate."""

    removed: Sequence[int] = ()
    added: Sequence[tuple[int, Any, Any, list[int]]] = ()
    moved: Sequence[tuple[int, int, Any]] = ()


@dataclass
class Request:
    """One completion, of a policy whose logits follow from who asks and the text so far."""

    parameters: Any
    policy: int = 0
    tokens: list[int] = field(default_factory=list)

    def logits(self) -> Tensor:
        torch.manual_seed(hash((self.policy, *self.tokens)))
        return torch.randn(V)


def asked(completion: int, seed: int = SEED, size: int = 4, heat: float = HEAT) -> Any:
    return SimpleNamespace(extra_args=argument(seed, size, heat), seed=completion)


def plain() -> Any:
    return SimpleNamespace(extra_args=None, seed=None)


def step(rows: NoiseRows, batch: Sequence[Request]) -> Tensor:
    """One token more of each request."""
    made = rows.apply(torch.stack([one.logits() for one in batch]))
    for one, its in zip(batch, made, strict=True):
        one.tokens.append(int(its.argmax()))
    return made


def expected(completion: int, length: int, seed: int = SEED, size: int = 4) -> list[int]:
    """By log-probabilities and noise, without anything of vLLM's."""
    one = Request(None)
    for t in range(length):
        drawn = noise.at_places([(seed, completion, t)], size, V, CPU)[0]
        one.tokens.append(int((torch.log_softmax(one.logits() / HEAT, -1) + drawn).argmax()))
    return one.tokens


def added(*requests: Request, first: int = 0) -> list[tuple[int, Any, Any, list[int]]]:
    return [(first + k, one.parameters, None, one.tokens) for k, one in enumerate(requests)]


def test_a_completion_is_the_argmax_of_log_probability_and_its_own_noise() -> None:
    rows, batch = NoiseRows(), [Request(asked(g)) for g in range(4)]
    rows.update(Step(added=added(*batch)))
    for _ in range(6):
        step(rows, batch)
    assert [one.tokens for one in batch] == [expected(g, 6) for g in range(4)]
    assert len({tuple(one.tokens) for one in batch}) == 4, "answers of one group have noise of their own"


def test_it_is_the_same_in_every_batch_whatever_comes_goes_and_moves() -> None:
    rows, mine, other = NoiseRows(), Request(asked(2)), Request(asked(0, seed=5))
    greedy, late = Request(plain(), policy=1), Request(asked(3, size=8), policy=2)
    rows.update(Step(added=added(other, greedy, mine)))
    step(rows, [other, greedy, mine])
    rows.update(Step(moved=[(0, 2, Way.SWAP)]))
    step(rows, [mine, greedy, other])
    rows.update(Step(removed=[1], moved=[(2, 1, Way.UNIDIRECTIONAL)]))
    step(rows, [mine, other])
    rows.update(Step(added=added(late, greedy, first=2)))
    step(rows, [mine, other, late, greedy])
    assert mine.tokens == expected(2, 4) and other.tokens == expected(0, 4, seed=5)
    assert late.tokens == [int((late_scores(late) + noise.at_places([(SEED, 3, 0)], 8, V, CPU)[0]).argmax())]


def late_scores(late: Request) -> Tensor:
    return torch.log_softmax(Request(None, late.policy).logits() / HEAT, -1)


def test_who_takes_up_again_a_completion_that_was_put_aside_goes_on_with_it() -> None:
    rows, one = NoiseRows(), Request(asked(1))
    rows.update(Step(added=added(one)))
    for _ in range(3):
        step(rows, [one])
    resumed = Request(one.parameters, tokens=[*one.tokens])
    rows.update(Step(removed=[0]))
    rows.update(Step(added=added(resumed)))
    step(rows, [resumed])
    assert resumed.tokens == expected(1, 4)


def test_rows_that_draw_nothing_are_left_as_they_are() -> None:
    logits = torch.randn(3, V)
    rows = NoiseRows()
    assert torch.equal(rows.apply(logits.clone()), logits)
    rows.update(Step(added=added(Request(plain()), Request(asked(0)), Request(plain()))))
    made = rows.apply(logits.clone())
    assert torch.equal(made[[0, 2]], logits[[0, 2]]) and not torch.equal(made[1], logits[1])
    rows.update(Step(added=added(Request(plain()), first=1)))
    assert torch.equal(rows.apply(logits.clone()), logits)


def test_scores_tell_the_log_probabilities_that_were_sampled() -> None:
    logits, drawn = torch.randn(8, V), noise.at_places([(1, g, 0) for g in range(8)], 8, V, CPU)
    made = vllm_noise.scores(logits, drawn, torch.full((8,), HEAT))
    logp = torch.log_softmax(logits / HEAT, -1)
    chosen = made.argmax(-1)
    assert torch.equal(made.gather(1, chosen[:, None]), logp.gather(1, chosen[:, None]))
    rest = made.scatter(1, chosen[:, None], -torch.inf)
    assert float(rest.max()) < -HIDDEN / 2 and len({*chosen.tolist()}) > 1
    for row, its in enumerate(made):
        told = DrawnToken(int(chosen[row]), dict(enumerate(its.tolist())))
        best = logp[row].topk(5)
        assert [token for token, _ in told.head(5)] == best.indices.tolist()
        np.testing.assert_allclose([p for _, p in told.head(5)], best.values, atol=5e-5)
        assert told.logprob == float(logp[row, chosen[row]])


def test_slots_of_the_second_runner_draw_what_rows_draw() -> None:
    """Prompts of 7 and 3 tokens; the third row is the second request's next one, as where a draft is
    checked."""
    slots, logits = NoiseSlots(9, V, CPU), torch.randn(3, V)
    slots.add(5, draw_of(argument(SEED, 4, HEAT), 2), 7)
    slots.add(1, draw_of(argument(11, 4, 1.0), 0), 3)
    slots.settle()
    slot_of, positions = torch.tensor([5, 1, 1], dtype=torch.int32), torch.tensor([6, 4, 5])
    made = slots.apply(logits.clone(), [5, 1], slot_of, positions)
    places = [(SEED, 2, 0), (11, 0, 2), (11, 0, 3)]
    logp = torch.log_softmax(logits / torch.tensor([[HEAT], [1.0], [1.0]]), -1)
    drawn = torch.cat([noise.at_places([place], 4, V, CPU) for place in places])
    assert made.argmax(-1).tolist() == (logp + drawn).argmax(-1).tolist()


def test_slots_that_draw_nothing_are_left_as_they_are() -> None:
    slots, logits = NoiseSlots(4, V, CPU), torch.randn(2, V)
    slot_of, positions = torch.tensor([3, 0]), torch.tensor([5, 5])
    slots.settle()
    assert torch.equal(slots.apply(logits, [3, 0], slot_of, positions), logits)
    slots.add(3, NoiseDraw(1, 2, 1.0, 0), 6)
    slots.settle()
    made = slots.apply(logits, [3, 0], slot_of, positions)
    assert torch.equal(made[1], logits[1]) and not torch.equal(made[0], logits[0])
    slots.add(3, None, 6)
    slots.settle()
    assert torch.equal(slots.apply(logits, [3, 0], slot_of, positions), logits)


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ([1, 4], 0),
        ([1, 4, 0.0], 0),
        ([-1, 4, 1.0], 0),
        ([1 << 64, 4, 1.0], 0),
        (["x", 4, 1.0], 0),
        (7, 0),
        ([1, 4, 1.0], 4),
        ([1, 4, 1.0], None),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: Any, number: int | None) -> None:
    with pytest.raises(ValueError, match=vllm_noise.ARGUMENT):
        draw_of({vllm_noise.ARGUMENT: arguments}, number)


def test_who_asks_for_no_draw_gets_none() -> None:
    assert draw_of(None, 1) is None and draw_of({"other": 1}, 1) is None


# --- what is read -------------------------------------------------------------------------------------------


Shown = Callable[[Tensor, int], Mapping[int, float]]


def honest(made: Tensor, chosen: int) -> dict[int, float]:
    return {int(token): float(made[token]) for token in made.topk(19).indices} | {chosen: float(made[chosen])}


def group(parameters: Sequence[Any], shown: Shown = honest, length: int = 4) -> list[list[DrawnToken]]:
    rows, batch = NoiseRows(), [Request(one) for one in parameters]
    rows.update(Step(added=added(*batch)))
    told: list[list[DrawnToken]] = [[] for _ in batch]
    for _ in range(length):
        made = step(rows, batch)
        for k, one in enumerate(batch):
            told[k].append(DrawnToken(one.tokens[-1], shown(made[k], one.tokens[-1])))
    return told


def test_a_vllm_that_draws_as_asked_is_believed_and_no_other() -> None:
    assert proven(group([asked(g) for g in range(4)]), SEED, V)
    assert not proven(group([asked(g) for g in range(4)]), SEED + 1, V)
    assert not proven(group([asked(g) for g in range(4)]), SEED, V + 8), "another vocabulary"
    assert not proven(group([asked(0)] * 4), SEED, V), "clones"
    assert not proven(group([plain()] * 4), SEED, V), "logits as they are"
    assert not proven(group([asked(3 - g) for g in range(4)]), SEED, V)
    late = [row[1:] for row in group([asked(g) for g in range(4)])]
    assert not proven(late, SEED, V)


def test_what_vllm_tells_becomes_groups_with_heads_that_name_their_noise() -> None:
    told = group([asked(g) for g in range(4)])
    letters: Any = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
    first, second = completions([told, told], letters, Noise.GUMBEL, 3)
    assert first.noise == second.noise == Noise.GUMBEL and first.lengths == (4, 4, 4, 4)
    assert second.tokens.tolist() == [each.token for row in told for each in row]
    assert first.heads is not None and second.heads is not None
    head = unpack(second.heads, 16)
    assert head.tokens.tolist() == [[t for t, _ in each.head(3)] for row in told for each in row]
    assert first.heads.tokens == second.heads.tokens
    [bare] = completions([told], letters)
    assert bare.heads is None and bare.noise == Noise.UNKNOWN


def test_a_run_that_takes_only_groups_that_can_be_replayed_takes_vllms() -> None:
    letters: Any = SimpleNamespace(decode=lambda tokens: "")
    [made] = completions([group([asked(g, 9) for g in range(4)])], letters, Noise.GUMBEL, 3)
    sent = nouns.group(
        seed=9,
        lengths=made.lengths,
        tokens=nouns.ints(*made.tokens.tolist()),
        logprobs=nouns.floats(*made.logprobs.tolist()),
        rewards=(0.0,) * 4,
        noise=made.noise,
        heads=made.heads,
    )
    run = Sampling(group_size=4, max_tokens=4, temperature=HEAT, replayable=True, heads=3)
    assert malformation(sent, run, V) is None and contradiction(sent, V) is None
    assert contradiction(msgspec.structs.replace(sent, seed=10), V) is not None


def test_a_servers_answer_is_read_as_vllm_tells_it_in_python() -> None:
    told = group([asked(g) for g in range(2)])
    choices = [
        {
            "index": g,
            "token_ids": [each.token for each in row],
            "logprobs": {
                "token_logprobs": [each.logprob for each in row],
                "top_logprobs": [
                    {f"token_id:{token}": score for token, score in each.scores.items()} for each in row
                ],
            },
        }
        for g, row in enumerate(told)
    ]
    assert parse_answers([{"choices": choices[::-1]}]) == [told]


def test_a_servers_request_says_seed_size_and_temperature_and_leaves_vllm_no_noise() -> None:
    body = named_noise(-1, 8, 0.5, 5)
    assert body["vllm_xargs"] == {vllm_noise.ARGUMENT: [(1 << 64) - 1, 8, 0.5]}
    assert (body["n"], body["seed"], body["temperature"], body["logprobs"]) == (8, 0, 1.0, 5)
    assert draw_of(body["vllm_xargs"], 7) == NoiseDraw((1 << 64) - 1, 8, 0.5, 7)


def test_vllms_worker_imports_little_of_this_project() -> None:
    def ours() -> list[str]:
        return sorted(name for name in sys.modules if name.split(".")[0] in ("swarm", "peers"))

    def imports() -> None:
        pipe = Pipe()
        for name in ours():
            del sys.modules[name]
        importlib.import_module("swarm.sample.vllm_noise")
        pipe.send(" ".join(ours()).encode())

    child = Child(imports)
    told = child.receive(60).decode()
    child.end()
    assert told.split() == [
        "swarm",
        "swarm.draws",
        "swarm.draws.noise",
        "swarm.sample",
        "swarm.sample.vllm_noise",
    ]
