"""The bias-variance lab: what is known on paper comes out, and the figures of a tiny plan stay what they
are."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from lab.studies.experiments import Row, key
from lab.studies.gradient import gradient, mdp, pictures
from lab.studies.gradient.gradient_report import (
    LabSetting,
    MethodRecord,
    derived,
    gather,
    interval,
    table,
    verdict,
)
from lab.studies.intervals import student
from peers.commands.journals import drawing
from peers.errors import WrongUsage
from swarm.learn.objectives import OBJECTIVES, Batch, loss

TINY = ("rloo", "grpo", "gepo", "seq_is")
GOLDEN = Path(__file__).with_name("golden-gradient.csv")


def cell(kl: float, methods: Sequence[str], instance: int = 0) -> gradient.Cell:
    return gradient.Cell(
        kl=kl, group=8, horizon=4, instance=instance, groups=1024, methods=tuple(methods), defined=""
    )


def records(kl: float, methods: Sequence[str], instances: int = 8) -> dict[str, MethodRecord]:
    rows = [gradient.measure(cell(kl, methods, seed)) for seed in range(instances)]
    return {record.label: record for record in gather([LabSetting(kl, 8, 4)] * instances, rows)}


@pytest.mark.parametrize("kl", [0.0, 0.03, 0.3])
def test_exact_sequence_weights_are_unbiased_at_any_distance(kl: float) -> None:
    assert verdict(records(kl, ["seq_is"])["seq_is"].values) == "yes"


def test_without_a_weight_the_gradient_is_unbiased_only_on_policy() -> None:
    assert [verdict(records(kl, ["reinforce"])["reinforce"].values) for kl in (0.0, 0.1)] == ["yes", "no"]


def test_gepo_is_biased_even_on_policy_at_any_scale() -> None:
    for record in records(0.0, ["gepo", "gepo_noclip", "gepo_full"]).values():
        assert verdict(record.values) == "no" and record.values["bias2"][1] > 0.01


def test_gepos_gate_reverses_the_expected_gradient_where_all_of_the_distance_is_learning() -> None:
    plain = mdp.instance(3, 0.0, 14)  # the one of 24 on which the gate does the most harm
    tree, sampler, reward = plain.tree, plain.sampler, plain.reward
    away = mdp._unit(tree, sampler, mdp.exact(tree, sampler, reward)[1])
    length = float((mdp.log_probs(tree, sampler).sum(-1).exp() * tree.mask.sum(-1)).sum())
    world = mdp.Instance(
        tree, sampler, sampler + mdp._stride(tree, sampler, away, 0.3 / length) * away, reward
    )
    truth = mdp.exact(tree, world.learner, reward)[1].T.flatten()
    drawn = gradient.draws(world, cell(0.0, ["gepo"], 14))
    gated, free = (
        float(
            torch.cosine_similarity(
                gradient.group_gradients(OBJECTIVES[name], world, drawn)[0].mean(0), truth, dim=0
            )
        )
        for name in ("gepo", "gepo_noclip")
    )
    assert gated < -0.25 and free > 0.9


def test_a_group_mean_costs_the_scale_and_not_the_direction() -> None:
    found = records(0.0, ["rloo", "rloo/centre=group-mean"])
    assert verdict(found["rloo"].values) == "yes"
    assert found["rloo/centre=group-mean"].values["scale"][0] == pytest.approx(8 / 7, rel=0.03)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_groups_gradients_average_to_the_batch_gradient(name: str) -> None:
    world = mdp.instance(4, 0.03, 1)
    drawn = gradient.draws(world, cell(0.03, [name], 1))[:32]
    groups, metrics = gradient.group_gradients(OBJECTIVES[name], world, drawn)
    logits, sequence = world.learner.clone().requires_grad_(), drawn.flatten()
    logq = mdp.log_probs(world.tree, world.sampler)[sequence]
    batch = Batch(
        logp=mdp.log_probs(world.tree, logits)[sequence],
        logq=logq,
        mask=world.tree.mask[sequence],
        reward=world.reward[sequence],
        group=torch.arange(32).repeat_interleave(8),
        ref=logq,
        lag=torch.full((len(sequence),), gradient.LAG),
        horizon=4.0,
    )
    loss(OBJECTIVES[name], batch).value.backward()
    assert logits.grad is not None
    torch.testing.assert_close(groups.mean(0), -logits.grad.T.flatten(), rtol=1e-4, atol=1e-6)
    assert 0 <= metrics["zero"] <= 1


def test_noise_does_not_pass_for_signal() -> None:
    rng = torch.Generator().manual_seed(1)
    truth = torch.ones(50, dtype=torch.float64)
    found = [
        gradient.moments(torch.randn(64, 50, generator=rng, dtype=torch.float64), truth) for _ in range(200)
    ]
    for name in ("mean2", "along", "along2"):
        mean, low, high = interval(one[name] for one in found)
        assert low < 0 < high or abs(mean) < 1e-3, name
    assert interval(one["trace"] for one in found)[0] == pytest.approx(1, rel=0.01)


def test_statistics_follow_from_the_moments() -> None:
    row: Row = {"groups": 1e9, "m:cosine_32": 0.5, "m:zero": 0.0, "m:ess": 1.0}
    row |= {"m:along": 0.6, "m:along2": 0.36, "m:mean2": 0.5, "m:trace": 3.2}
    found = derived(row, "m")
    assert found["cosine"] == pytest.approx(0.6 / math.sqrt(0.5)) and found["scale"] == pytest.approx(1.2)
    assert found["bias2"] == pytest.approx(1 - 0.36 / 0.5) and found["bias2_raw"] == pytest.approx(0.3)
    assert found["mse_1"] == pytest.approx(1 - 0.36 / 3.7) and found["mse_32"] == pytest.approx(
        1 - 0.36 / 0.6
    )
    assert found["variance"] == pytest.approx(1.44 * 3.2) and found["snr"] == pytest.approx(0.5 / 3.2)


def test_a_gradient_that_points_away_is_worth_no_step() -> None:
    row: Row = {"groups": 1e9, "m:cosine_32": -0.5, "m:zero": 0.0, "m:ess": 1.0}
    row |= {"m:along": -0.6, "m:along2": 0.36, "m:mean2": 0.5, "m:trace": 3.2}
    found = derived(row, "m")
    assert found["mse_32"] == found["mse_1"] == found["bias2"] == 1 and found["cosine"] < 0


def test_a_mean_lost_in_its_noise_has_no_direction() -> None:
    row: Row = {"groups": 1024.0, "m:cosine_32": 0.0, "m:zero": 1.0, "m:ess": 0.0}
    row |= dict.fromkeys(("m:along", "m:along2", "m:mean2", "m:trace"), 0.0)
    found = derived(row, "m")
    assert math.isnan(found["cosine"]) and found["mse_32"] == 1


def test_a_study_without_any_signal_is_drawn_too(tmp_path: Path) -> None:
    row: Row = {"groups": 64.0, "m:cosine_32": 0.0, "m:zero": 1.0, "m:ess": 0.0}
    row |= dict.fromkeys(("m:along", "m:along2", "m:mean2", "m:trace"), 0.0)
    drawn = pictures.gradient(gather([LabSetting(0.1, 8, 4), LabSetting(0.3, 8, 4)], [row, row]), tmp_path)
    assert [path.name for path in drawn] == ["error.png", "bias-variance.png", "all.png"]
    assert all(path.exists() for path in drawn)


@pytest.mark.parametrize(
    ("heights", "scale"),
    [
        ((math.nan, math.nan), "linear"),
        ((0.0, -1.0), "linear"),
        ((math.inf, 0.0), "linear"),
        ((math.nan, 0.1), "log"),
    ],
)
def test_an_axis_is_logarithmic_where_something_can_stand_on_it(
    heights: tuple[float, float], scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(
        drawing, "save", lambda figure, path: drawn.append(figure.axes[0].get_yscale()) or path
    )
    curve = drawing.Curve("m", (1.0, 2.0), heights)
    drawing.lines(tmp_path / "a.png", [drawing.Panel("", "", "", [curve], log_y=True)])
    assert drawn == [scale]


def test_intervals_are_students() -> None:
    exact = {3: 3.1824, 5: 2.5706, 9: 2.2622, 23: 2.0687, 1000: 1.9623}
    assert {n: student(n) for n in exact} == pytest.approx(exact, rel=1e-4)
    assert interval([1.0, 2.0, 3.0, float("nan")]) == pytest.approx(
        (2, 2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3))
    )
    assert interval([1.0, 100.0], positive=True)[0] == pytest.approx(10)


def test_all_distances_see_the_same_draws() -> None:
    near, far = (gradient.draws(mdp.instance(4, kl, 2), cell(kl, TINY, 2)) for kl in (0.0, 0.3))
    assert torch.equal(near, far) and near.shape == (1024, 8)


def test_the_plan_has_every_method_and_its_other_score_where_there_is_one() -> None:
    everything = gradient.labels()
    assert set(OBJECTIVES) < set(everything) and len(everything) == len(set(everything))
    assert {"gepo/score=full", "gepo_full/score=geometric", "seq_is/score=geometric"} < set(everything)
    assert not {"grpo/score=full", "gepo/score=geometric"} & set(everything)


@pytest.mark.parametrize("label", ["gepoo", "gepo/scor=full", "gepo/score=half"])
def test_a_label_that_names_nothing_is_refused(label: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="names no method"):
        gradient.main(True, tmp_path, [label])


@pytest.mark.parametrize("constant", ["SKEW", "LATE", "CORRECT", "FORMAT"])
def test_a_cell_of_a_world_that_changed_is_another_cell(
    constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(gradient.plan(True, TINY)[0])
    assert key(gradient.plan(True, TINY)[0]) == before
    monkeypatch.setattr(mdp, constant, 0.125)
    assert key(gradient.plan(True, TINY)[0]) != before


def test_figures_of_a_tiny_plan_are_golden() -> None:
    """To renew after a change that is meant: write `table(...)` below to the file."""
    rows = [gradient.measure(cell(0.03, TINY, seed)) for seed in range(3)]
    now = list(csv.reader(table(gather([LabSetting(0.03, 8, 4)] * 3, rows)).decode().splitlines()))
    golden = list(csv.reader(GOLDEN.read_text().splitlines()))
    assert now[0] == golden[0] and [line[0] for line in now] == [line[0] for line in golden]
    for mine, theirs in zip(now[1:], golden[1:], strict=True):
        numbers = [float(x) for x in mine[2:]], [float(x) for x in theirs[2:]]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-5, nan_ok=True)


@pytest.mark.nightly
def test_a_study_writes_its_report_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(quick: bool, methods: Sequence[str], first: int) -> list[gradient.Cell]:
        small = [(0.0, 8, 3), (0.1, 8, 3), (0.1, 2, 3), (0.1, 8, 2)]
        settings = [(*one, seed) for seed in (first, first + 1) for one in small]
        return [
            gradient.Cell(
                kl=kl, group=g, horizon=t, instance=seed, groups=64, methods=tuple(methods), defined=""
            )
            for kl, g, t, seed in settings
        ]

    monkeypatch.setattr(gradient, "plan", plan)
    methods = [*TINY, "gepo/score=full"]
    assert gradient.main(True, tmp_path, methods) == 0
    wanted = {"error.png", "bias-variance.png", "all.png", "group-horizon.png", "score.png"}
    assert {path.name for path in tmp_path.glob("*.png")} == wanted
    before = [(tmp_path / name).read_bytes() for name in ("gradient.csv", "cells.jsonl")]
    text = (tmp_path / "report.md").read_text()
    assert "swarm bench gradient --quick" in text and "instances 0 to 1" in text and "| seq_is |" in text
    assert gradient.main(True, tmp_path, methods) == 0
    assert [(tmp_path / name).read_bytes() for name in ("gradient.csv", "cells.jsonl")] == before
