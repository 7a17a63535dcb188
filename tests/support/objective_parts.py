"""Objectives that have each part once, for what holds whatever the formula is, and six whole methods."""

from __future__ import annotations

from swarm.learn.kl import KL_SLOPES
from swarm.learn.objectives import OBJECTIVES, Objective, objective
from swarm.learn.parts import CENTRES, RATIOS, REDUCTIONS, SCALES
from swarm.learn.trust_region import TRUSTS

PLAIN: dict[str, float | str | bool] = {"trust": "free", "reduce": "sequence-mean"}
"""With the method `dr_grpo`: parts that hide nothing of the part beside them."""

TABLES = {"centre": CENTRES, "scale": SCALES, "ratio": RATIOS, "trust": TRUSTS, "reduce": REDUCTIONS}
VARIANTS: tuple[dict[str, float | str | bool], ...] = (
    {"ratio": "sequence", "score": "full"},
    {"ratio": "self-normalised", "score": "full"},
    {"ratio": "group-expectation", "score": "full"},
    {"ratio": "group-expectation", "over": "mean"},
    {"ratio": "group-expectation", "over": "p"},
    {"ratio": "group-expectation", "mix": 0.5},
    {"trust": "clip", "against": "prox", "dual": 1.5},
    {"trust": "decoupled", "against": "prox", "dual": 5.0},
    {"trust": "decoupled", "against": "blend", "dual": 1.5},
    {"trust": "tv", "dual": 1.2},
    {"veto": "token", "edge": 0.7},
    {"veto": "drift", "edge": 0.1},
    *({"kl": 0.1, "kl_kind": kind} for kind in KL_SLOPES),
    {"kl": 0.1, "kl_against": "ref"},
)
"""Formulas that an option makes of a part."""


def _parts() -> dict[str, Objective]:
    found = {"plain": objective("dr_grpo", PLAIN)}
    members = [{option: member} for option, table in TABLES.items() for member in table]
    for options in (*members, *VARIANTS):
        method = objective("dr_grpo", PLAIN | options)
        if method != found["plain"]:
            found[" ".join(f"{option}={value}" for option, value in options.items())] = method
    return found


PARTS = _parts()
METHODS = {name: OBJECTIVES[name] for name in ("gepo", "disco", "ppo_clip", "seq_tis_wb", "ctpo", "a3po")}
"""Six that have as many of the parts as six can, among them the default."""


def having(*options: str) -> list[str]:
    """Names of the parts that these options choose, with the plain ones."""
    return ["plain", *(name for name in PARTS if name.partition("=")[0] in options)]
