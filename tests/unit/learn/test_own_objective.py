"""Options of a method, and an objective of the user's own by import path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch

from swarm.learn.kl import KL_SLOPES
from swarm.learn.learners.batch import view_of
from swarm.learn.objectives import (
    OBJECTIVES,
    Batch,
    check_options,
    loss,
    objective,
    options_of,
    weights,
)
from swarm.learn.parts import CENTRES, RATIO_READS, RATIOS, REDUCTIONS, SCALES, Ratio, TrustRegion
from swarm.learn.trust_region import TRUST_READS, TRUSTS, TrustRegionInput

OWN = '''
"""Square-root weights: half way between no correction and importance sampling."""
from swarm.learn.objectives import OBJECTIVES, Advantage, Kl, Objective, Ratio, TrustRegion
from swarm.learn.trust_region import TRUSTS, TrustRegionInput

def root(it: TrustRegionInput):
    """sqrt(w), at most 1 + hi."""
    return it.w.sqrt().clamp(max=1 + it.trust.hi)

TRUSTS["NAME-root"] = root
HALF = TrustRegion("NAME-root", hi=1.0)
OWN_RATIO = Ratio("sequence", "full")
MINE = Objective("mine", Advantage("leave-one-out"), OWN_RATIO, HALF, "constant", Kl(weight=0.01))
TYPO = Objective("typo", Advantage("group-mena"), Ratio("token"), TrustRegion("free"), "token-mean")
SPARE = Objective("spare", Advantage(), Ratio("token"), TrustRegion("soft", constants=(1.0,)), "token-mean")
OTHER = {"name": "mine"}
BELOW = Objective("n", Advantage(), Ratio("token"), TrustRegion("clip", hi=-2.0), "token-mean")
NONE = Objective("n", Advantage(), Ratio("token"), TrustRegion("clip", dual=float("nan")), "token-mean")
ALL = Objective("n", Advantage(), Ratio("token", mix=3.0), TrustRegion(), "token-mean")
ENDLESS = Objective("n", Advantage(), Ratio("token"), TrustRegion(), "token-mean", Kl(weight=float("inf")))
WORD = Objective("n", Advantage(), Ratio("token"), TrustRegion("clip", lo="wide"), "token-mean")
UNCLEAR = TrustRegion("soft", constants=(1.0, float("nan")))
VAGUE = Objective("n", Advantage(), Ratio("token"), UNCLEAR, "constant")
LOOSE = Objective("n", "group-mean", Ratio("token"), TrustRegion(), "token-mean")
LISTED = Objective("n", Advantage(["group-mean"]), Ratio("token"), TrustRegion(), "token-mean")
'''
names = (f"own_objective_{n}" for n in itertools.count())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = next(names)
    (tmp_path / f"{name}.py").write_text(OWN.replace("NAME", name))
    monkeypatch.syspath_prepend(tmp_path)
    known = dict(TRUSTS)
    yield name
    TRUSTS.clear()
    TRUSTS.update(known)


def batch(**fields: torch.Tensor) -> Batch:
    gen = torch.Generator().manual_seed(0)
    logq = -torch.rand(6, 4, generator=gen) - 0.1
    logp = logq + 0.5 * torch.randn(6, 4, generator=gen)
    tensors = {"prox": logp - 0.1, "ref": logq - 0.2, "lag": torch.ones(6)}
    reward = torch.tensor([1.0, 0, 1, 0, 0, 1])
    return Batch(
        logp, logq, torch.ones(6, 4), reward, torch.arange(6) // 3, horizon=4.0, **(tensors | fields)
    )


def test_an_objective_of_the_users_own_with_a_new_trust_region_runs(module: str) -> None:
    mine, given = objective(f"{module}:MINE"), batch()
    advantage, phi = weights(mine, given)
    assert mine.name == "mine"
    torch.testing.assert_close(advantage, torch.tensor([0.5, -1, 0.5, -0.5, -0.5, 1]))
    w = (given.logp - given.logq).sum(-1).exp()
    torch.testing.assert_close(phi, w.sqrt().clamp(max=2)[:, None].expand(6, 4))
    assert torch.isfinite(loss(mine, given).value)


def test_its_parts_can_be_overridden_and_its_region_given_to_others(module: str) -> None:
    assert objective(f"{module}:MINE", {"hi": 0.5, "centre": "group-mean"}).trust.hi == 0.5
    torch.testing.assert_close(
        weights(objective("seq_is", {"trust": f"{module}-root", "hi": 1.0}), batch())[1],
        weights(objective(f"{module}:MINE"), batch())[1],
    )


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "nowhere.at_all:MINE",
            "'nowhere.at_all:MINE' cannot be imported: No module named 'nowhere'; its module must be in",
        ),
        ("MODULE:YOURS", "cannot be imported: module 'MODULE' has no attribute 'YOURS'"),
        ("MODULE:", "is not written as package.module:NAME"),
        (":MINE", "is not written as package.module:NAME"),
        (".relative:MINE", "is not written as package.module:NAME"),
        ("MODULE:OTHER", "MODULE:OTHER is a dict, it has to be a swarm.learn.objectives.Objective"),
        (
            "MODULE:TYPO",
            (
                r"MODULE:TYPO has advantage.centre 'group-mena' \(did you mean 'group-mean'\?\); known: none,"
                r" group-mean"
            ),
        ),
        ("MODULE:BELOW", "has trust.hi -2.0, it has to be a number of at least 0"),
        ("MODULE:NONE", "has trust.dual nan, it has to be a number of at least 0"),
        ("MODULE:ALL", "has ratio.mix 3.0, a share is at most 1"),
        ("MODULE:ENDLESS", "has kl.weight inf, it has to be a number of at least 0"),
        ("MODULE:WORD", "has trust.lo 'wide', it has to be a number of at least 0"),
        ("MODULE:VAGUE", "has trust.constants .* numbers"),
        ("MODULE:LOOSE", "has advantage 'group-mean', it has to be a swarm.learn.objectives.Advantage"),
        ("MODULE:LISTED", r"has advantage.centre \['group-mean'\] .*; known: none"),
        (
            "MODULE:SPARE",
            r"MODULE:SPARE has 1 trust.constants, the region 'soft' takes 2; its authors' are \(1.0, 1.05\)",
        ),
    ],
)
def test_what_cannot_be_an_objective_is_refused_before_any_step(module: str, path: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("MODULE", module)):
        objective(path.replace("MODULE", module))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("MINE = Objectiv(1)\n", "NameError: name 'Objectiv' is not defined (FILE line 1)"),
        ("\ndef x(:\n", "SyntaxError: invalid syntax (FILE line 2)"),
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all' (FILE line 1)"),
        ("from math import tau2\n", "ImportError: cannot import name 'tau2' from 'math'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero (FILE line 1)"),
        ("def f():\n    raise SystemExit(3)\n\nf()\n", "SystemExit: 3 (FILE line 2)"),
    ],
)
def test_what_an_objectives_module_raises_is_told_with_its_file_and_line(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(names)
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="cannot be imported: ") as told:
        objective(f"{name}:MINE")
    assert says.replace("FILE", str(file)) in str(told.value)


def test_the_methods_that_ship_are_what_a_users_own_has_to_be(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in OBJECTIVES.values():
        monkeypatch.setattr(f"{module}.MINE", method)
        assert objective(f"{module}:MINE") == method


OPTIONS = {
    "centre": CENTRES,
    "scale": SCALES,
    "ratio": RATIOS,
    "score": ("geometric", "full"),
    "over": ("q", "mean", "p"),
    "mix": (0, 0.5, 1),
    "ess": (0.1, 1),
    "trust": TRUSTS,
    "eps": (0.1, 2),
    "lo": (0.0, 1),
    "hi": (0.5,),
    "dual": (3,),
    "against": ("sampler", "prox", "blend"),
    "veto": ("none", "token", "drift"),
    "edge": (0.5,),
    "reduce": REDUCTIONS,
    "kl": (0, 0.1),
    "kl_kind": KL_SLOPES,
    "kl_against": ("sampler", "ref"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_value_of_every_option_makes_an_objective_that_runs(option: str) -> None:
    given = batch()
    for name, value in itertools.product(("grpo", "gepo", "sapo"), OPTIONS[option]):
        assert torch.isfinite(loss(objective(name, {option: value}), given).value), (name, value)


def test_the_options_tested_are_all_there_are() -> None:
    from swarm.learn import objectives

    assert set(OPTIONS) == set(objectives._OPTIONS)


def test_an_option_changes_its_part_and_no_other() -> None:
    gepo = OBJECTIVES["gepo"]
    assert objective("gepo", {}) == gepo
    changed = objective(
        "gepo", {"eps": 0.3, "dual": 4, "score": "full", "kl": 0.005, "kl_kind": "k2", "reduce": "constant"}
    )
    assert (changed.trust.lo, changed.trust.hi, changed.trust.dual, changed.trust.kind) == (
        0.3,
        0.3,
        4.0,
        "gate",
    )
    assert (changed.ratio.score, changed.ratio.kind) == ("full", "group-expectation")
    assert (changed.kl.weight, changed.kl.kind, changed.kl.against) == (0.005, "k2", "sampler")
    assert changed.reduce == "constant" and changed.advantage == gepo.advantage and changed.name == "gepo"


@pytest.mark.parametrize("kind", ["soft", "gamma", "second-moment", "hazard"])
def test_a_trust_region_chosen_by_option_brings_its_authors_constants(kind: str) -> None:
    (expected,) = {method.trust.constants for method in OBJECTIVES.values() if method.trust.kind == kind}
    assert objective("grpo", {"trust": kind}).trust.constants == expected
    assert objective("sapo", {"trust": "clip"}).trust.constants == ()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gebo", {}, r"there is no objective 'gebo' \(did you mean 'gepo'\?\); known: a3po, aipo"),
        ("gepo", {"epz": 0.1}, r"objective gepo has no option 'epz' \(did you mean 'eps'\?\)"),
        ("gepo", {"zzz": 0.1}, "objective gepo has no option 'zzz'$"),
        ("gepo", {"trust": "gates"}, "option trust of objective gepo is 'gates'; known: free, clip"),
        ("gepo", {"over": "x"}, "is 'x'; known: q, mean, p"),
        ("gepo", {"centre": 1.0}, "option centre of objective gepo is 1.0; known: none, group-mean"),
        ("gepo", {"eps": "wide"}, "has to be a number of at least 0"),
        ("gepo", {"eps": True}, "has to be a number of at least 0"),
        ("gepo", {"eps": -0.1}, "has to be a number of at least 0"),
        ("gepo", {"kl": float("nan")}, "has to be a number of at least 0"),
        ("gepo", {"kl": float("inf")}, "has to be a number of at least 0"),
        ("gepo_mix", {"mix": 1.5}, "option mix of objective gepo_mix is 1.5, a share is at most 1"),
        ("tempered", {"ess": 2}, "a share is at most 1"),
    ],
)
def test_a_wrong_name_or_option_is_refused_in_words(
    name: str, options: dict[str, float | str | bool], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        objective(name, options)


class Asked:
    """A part of an objective that notes which of its fields are read."""

    def __init__(self, part: Ratio | TrustRegion) -> None:
        self._part, self.read = part, set[str]()

    def __getattr__(self, name: str) -> object:
        self.read.add(name)
        return getattr(self._part, name)


@pytest.mark.parametrize("kind", RATIOS)
def test_a_ratio_says_what_it_reads(kind: str) -> None:
    read = set[str]()
    for over in ("q", "p"):
        asked = Asked(Ratio(kind, over=over, mix=0.5))
        RATIOS[kind](view_of(batch()), cast(Ratio, asked))
        read |= asked.read
    assert set(RATIO_READS[kind]) == read


@pytest.mark.parametrize("kind", TRUSTS)
def test_a_trust_region_says_what_it_reads(kind: str) -> None:
    constants = {method.trust.kind: method.trust.constants for method in OBJECTIVES.values()}
    asked = Asked(TrustRegion(kind, constants=constants.get(kind, ())))
    view = view_of(batch())
    region = TrustRegionInput(view, cast(TrustRegion, asked), view.log_r, view.logq, torch.ones(6, 1))
    TRUSTS[kind](region)
    anchored = {"against"} if kind == "decoupled" else set()  # by the caller, which makes its anchor
    assert set(TRUST_READS[kind]) == asked.read - {"constants"} | anchored


@pytest.mark.parametrize(
    ("name", "options", "spare"),
    [
        ("gepo", {"dual": 3.0}, "dual"),
        ("gepo", {"against": "prox"}, "against"),
        ("gepo", {"edge": 0.5, "ess": 0.3}, "edge, ess"),
        ("gepo_noclip", {"eps": 0.2}, "eps"),
        ("grpo", {"score": "full"}, "score"),
        ("seq_tis", {"lo": 0.1}, "lo"),
        ("sapo", {"hi": 0.1}, "hi"),
        ("grpo", {"kl_kind": "k2"}, "kl_kind"),
        ("disco", {"kl": 0, "kl_against": "sampler"}, "kl_against"),
    ],
)
def test_an_option_that_changes_nothing_is_refused_with_those_that_do(
    name: str, options: dict[str, float | str | bool], spare: str
) -> None:
    method = objective(name, options)
    assert torch.equal(weights(method, batch())[1], weights(objective(name), batch())[1])
    with pytest.raises(ValueError, match=f"objective {name} does not read {spare}: ") as said:
        check_options(method, options)
    assert f"it reads {', '.join(options_of(method))}; leave out" in str(said.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gepo", {"trust": "clip", "dual": 3.0}),
        ("gepo", {"dual": 3.0, "trust": "clip"}),
        ("gepo", {"veto": "drift", "edge": 0.5, "eps": 0.1, "mix": 0.5}),
        ("grpo", {"kl": 0.1, "kl_kind": "k2"}),
        ("seq_tis", {"eps": 0.3}),
    ],
)
def test_an_option_that_another_one_makes_read_is_taken(
    name: str, options: dict[str, float | str | bool]
) -> None:
    check_options(objective(name, options), options)


def test_ones_own_trust_region_may_read_everything(module: str) -> None:
    options = {"lo": 0.1, "dual": 2.0, "against": "prox", "score": "geometric"}
    check_options(objective(f"{module}:MINE", options), options)
