"""The quick lab as a user runs it: every method measured, and the truths that no change may lose."""

from __future__ import annotations

import csv

import pytest

from peers import cli
from swarm.learn.objectives import OBJECTIVES


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, float], dict[str, float]]:
    """(method as its authors have it, KL) -> its figures at G = 8 and horizon 6."""
    out = tmp_path_factory.mktemp("lab")
    assert cli.main(["bench", "gradient", "--quick", "--out", str(out)]) == 0
    assert "swarm bench gradient --quick" in (out / "report.md").read_text()
    with (out / "gradient.csv").open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if not row["options"] and (row["group"], row["horizon"]) == ("8", "6")
        ]
    words = ("method", "options")
    return {
        (row["method"], float(row["kl"])): {
            name: float(value) for name, value in row.items() if name not in words
        }
        for row in rows
    }


@pytest.mark.timeout(400)  # a minute alone on two cores
def test_every_method_is_measured_and_the_known_truths_hold(
    figures: dict[tuple[str, float], dict[str, float]],
) -> None:
    assert {method for method, _ in figures} == set(OBJECTIVES)
    for kl in (0.0, 0.03, 0.3):
        exact = figures["seq_is", kl]
        assert exact["bias2_raw_lo"] <= 0 <= exact["bias2_raw_hi"] and exact["cosine"] == pytest.approx(
            1, abs=0.02
        ), kl
    assert figures["rloo", 0.0]["bias2"] < 0.01 < figures["rloo", 0.3]["bias2"], (
        "no correction is right only on-policy"
    )
    assert figures["gepo_noclip", 0.0]["bias2_lo"] > 0.01, "GEPO is biased even where p = q"
    assert figures["gepo_noclip", 0.3]["snr"] > figures["gspo", 0.3]["snr"]
    assert figures["grpo", 0.3]["cosine"] < 0.5 < figures["cispo", 0.3]["cosine"], (
        "a stale clip turns, a cap does not"
    )
