"""Masters, moments and steps, in 32 and in 8 bits."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

from swarm.learn.learners import optimizers
from swarm.learn.learners.optimizers import MasterOptimizer
from swarm.settings import config

SHAPES = {"large": (80, 64), "small": (64,), "odd": (70, 61)}
"""Of 5120 and 4270 values, which have 8-bit moments, the second with a block that is not full; and of 64,
which has not."""

NAMES = ("adamw", "adamw8bit")


def named(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, nn.Parameter]:
    drawn = torch.Generator().manual_seed(seed)
    return {
        name: nn.Parameter(torch.randn(shape, generator=drawn).to(dtype)) for name, shape in SHAPES.items()
    }


def vector(seed: int) -> Tensor:
    return torch.randn(
        sum(torch.Size(shape).numel() for shape in SHAPES.values()),
        generator=torch.Generator().manual_seed(seed),
    )


def settings(name: str = "adamw", **changes: float) -> config.Optimizer:
    return config.Optimizer(name=name, **({"lr": 1e-3} | changes))  # type: ignore[arg-type]


def same(one: MasterOptimizer, two: MasterOptimizer) -> bool:
    ours, theirs = one.dump(), two.dump()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_twin_makes_the_next_step_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    ours, theirs = named(dtype), named(dtype, seed=1)
    one, two = MasterOptimizer(ours, settings(name)), MasterOptimizer(theirs, settings(name))
    for seed in range(3):
        one.step(vector(seed), 0.5, 1e-2)
    two.step(vector(9), 1.0, 1e-2)  # it had a life of its own
    tensors = {name: tensor.clone() for name, tensor in one.dump().items()}
    two.check(tensors)
    two.load(tensors)
    assert same(one, two) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    for seed in range(3, 6):
        one.step(vector(seed), 1.0, 1e-2)
        two.step(vector(seed), 1.0, 1e-2)
    assert same(one, two) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_state_without_moments_is_a_state() -> None:
    one, two = MasterOptimizer(named(), settings()), MasterOptimizer(named(seed=1), settings())
    two.step(vector(0), 1.0, 1e-2)
    two.check(one.dump())
    two.load(one.dump())
    assert same(one, two) and set(two.dump()) == {f"weight/{name}" for name in SHAPES}


def test_eight_bit_moments_take_a_quarter() -> None:
    size = {}
    for name in NAMES:
        descent = MasterOptimizer(named(), settings(name))
        descent.step(vector(0), 1.0, 1e-2)
        kept = {key: value for key, value in descent.dump().items() if not key.startswith("weight/")}
        size[name] = sum(tensor.nbytes for tensor in kept.values())
    assert size["adamw8bit"] < 0.3 * size["adamw"]


def test_eight_bit_steps_go_where_those_in_full_go() -> None:
    ours, theirs = named(), named()
    one, two = MasterOptimizer(ours, settings("adamw")), MasterOptimizer(theirs, settings("adamw8bit"))
    start = named()
    for seed in range(5):
        one.step(vector(0) + 0.1 * vector(seed), 1.0, 1e-3)
        two.step(vector(0) + 0.1 * vector(seed), 1.0, 1e-3)
    moved = [
        torch.cat([(x[name] - start[name]).detach().flatten() for name in SHAPES]) for x in (ours, theirs)
    ]
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.98


def test_masters_step_as_torchs_optimizer_does() -> None:
    theirs = named()
    descent = MasterOptimizer(named(), settings())
    reference = torch.optim.AdamW(theirs.values(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
    for seed in range(3):
        descent.step(vector(seed), 0.5, 1e-2)
        pieces = (vector(seed) * 0.5).split([p.numel() for p in theirs.values()])
        for parameter, piece in zip(theirs.values(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        reference.step()
    assert all(torch.equal(descent.masters[name], theirs[name]) for name in theirs)


def test_parameters_that_the_passes_round_are_their_own_masters() -> None:
    parameters = named()
    descent = MasterOptimizer(parameters, settings(), rounds_later=True)
    descent.step(vector(0), 1.0, 1e-2)
    assert all(descent.masters[name] is parameters[name] for name in parameters)
    assert not torch.equal(parameters["large"], parameters["large"].bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masters_keep_what_the_parameters_of_a_release_cannot(dtype: torch.dtype) -> None:
    parameters = named(dtype)
    descent = MasterOptimizer(parameters, settings())
    before = {name: value.detach().clone() for name, value in parameters.items()}
    for _ in range(200):
        descent.step(torch.ones(len(vector(0))), 1.0, 1e-4)
    for name, value in parameters.items():
        assert torch.equal(value, descent.masters[name].bfloat16().to(dtype))
    moved = torch.cat([(parameters[name].detach() - before[name]).float().flatten() for name in parameters])
    # Each step is below half a bfloat16 digit of most values, which would round it away for ever.
    assert float(moved.mean()) == pytest.approx(-0.02, rel=0.05)


@pytest.mark.parametrize("exact", [False, True])
def test_masters_follow_parameters_that_were_set_or_become_them(exact: bool) -> None:
    parameters = named(torch.bfloat16)
    descent = MasterOptimizer(parameters, settings())
    descent.step(vector(0), 1.0, 1e-6)
    before = {name: master.clone() for name, master in descent.masters.items()}
    with torch.no_grad():
        parameters["small"].fill_(3.0)
    descent.refresh(exact)
    assert torch.equal(descent.masters["small"], torch.full((64,), 3.0))
    assert not torch.equal(before["large"], parameters["large"])
    assert torch.equal(descent.masters["large"], parameters["large"].float() if exact else before["large"])


@pytest.mark.parametrize("name", NAMES)
def test_buckets_do_not_change_a_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MasterOptimizer(named(), settings(name))
    monkeypatch.setattr(optimizers, "BUCKET", 5000)
    pieces = MasterOptimizer(named(), settings(name))
    for seed in range(3):
        whole.step(vector(seed), 1.0, 1e-2)
        pieces.step(vector(seed), 1.0, 1e-2)
    assert same(whole, pieces)


@pytest.mark.parametrize("name", NAMES)
def test_moments_that_are_made_ahead_change_nothing(name: str) -> None:
    ahead, later = MasterOptimizer(named(), settings(name)), MasterOptimizer(named(), settings(name))
    ahead.prepare()
    ahead.step(vector(0), 1.0, 1e-2)
    later.step(vector(0), 1.0, 1e-2)
    assert same(ahead, later)


@pytest.mark.parametrize("name", NAMES)
def test_memory_that_ends_while_moments_are_made_leaves_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    descent = MasterOptimizer(named(), settings(name))
    made, real = [], torch.zeros_like

    def scarce(*args: object, **kwargs: object) -> Tensor:
        made.append(1)
        if len(made) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return real(*args, **kwargs)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "zeros_like", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        descent.prepare()
    assert set(descent.dump()) == {f"weight/{name}" for name in SHAPES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["shape", "dtype", "missing", "weight"])
def test_a_state_that_does_not_fit_is_refused(name: str, damage: str) -> None:
    descent = MasterOptimizer(named(), settings(name))
    descent.step(vector(0), 1.0, 1e-2)
    tensors = dict(descent.dump())
    key = "exp_avg/large" if name == "adamw" else "absmax1/large"
    match damage:
        case "shape":
            tensors[key] = tensors[key][1:]
        case "dtype":
            tensors[key] = tensors[key].double()
        case "missing":
            del tensors[key]
        case "weight":
            del tensors["weight/small"]
    with pytest.raises(ValueError, match="of another model"):
        descent.check(tensors)


def test_a_state_of_the_other_optimizer_is_refused() -> None:
    eight, full = MasterOptimizer(named(), settings("adamw8bit")), MasterOptimizer(named(), settings("adamw"))
    eight.step(vector(0), 1.0, 1e-2)
    with pytest.raises(ValueError, match="of another model"):
        full.check(eight.dump())


def test_without_bitsandbytes_its_optimizer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ValueError, match=r"pip install 'gepo-swarm\[quant\]'"):
        MasterOptimizer(named(), settings("adamw8bit"))
