"""`swarm objectives`: lists the methods in one line each, or shows one with its parts, options and paper;
also as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from peers.errors import WrongUsage
from swarm.learn import objectives
from swarm.learn.objectives import Objective


def main(names: Sequence[str], as_json: bool) -> int:
    """Print the named method, or all. Raises WrongUsage for an unknown one, naming the nearest."""
    try:
        chosen = [objectives.objective(name) for name in names] or list(objectives.OBJECTIVES.values())
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    if as_json:
        print(json.dumps({method.name: _plain(asdict(method)) for method in chosen}, indent=2))
    elif names:
        print("\n\n".join(map(_whole, chosen)))
    else:
        names_wide, abouts_wide = (
            max(map(len, column)) for column in zip(*((m.name, m.about) for m in chosen), strict=True)
        )
        for method in chosen:
            print(f"{method.name:{names_wide}}  {method.about:{abouts_wide}}  {method.source}")
    return 0


def _whole(method: Objective) -> str:
    """Every part of a method, and the options that it reads: `--set run.objective.options.NAME=VALUE` changes
    them."""
    lines = [f"{method.name}: {method.about}", f"  {'source':10}{method.source}"]
    for part, value in asdict(method).items():
        if isinstance(value, dict):
            lines.append(f"  {part:10}" + "  ".join(f"{key}={_shown(inner)}" for key, inner in value.items()))
        elif part == "reduce":
            lines.append(f"  {part:10}{value}")
    lines.append(f"  {'options':10}" + "  ".join(objectives.options_of(method)))
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + " ".join(f"{number:g}" for number in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """A value for JSON, which has no infinity: null means no bound."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isinf(value) else value
