"""Parses names of methods in a study: `NAME` or `NAME/option=value/...`, for example `gspo/eps=0.2`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from peers.errors import WrongUsage
from swarm.learn.objectives import Objective, check_options, objective


def parsed(label: str) -> tuple[str, dict[str, float | str | bool]]:
    """The name and the options."""
    name, *options = label.split("/")
    pairs = (pair.partition("=") for pair in options)
    return name, {option: _value(value) for option, _, value in pairs}


def chosen(label: str) -> Objective:
    """The method that a label names. Raises WrongUsage where there is none, or it does not read an option."""
    name, options = parsed(label)
    try:
        method = objective(name, options)
        check_options(method, options)
        return method
    except ValueError as error:
        raise WrongUsage(f"{label!r} names no method: {error}") from error


def defined(labels: Sequence[str]) -> str:
    """Hex digest of what these methods do: a cell of a corrected method is another cell, one of a reworded
    method is not."""
    said = (repr(replace(chosen(label), name="", about="", source="")) for label in labels)
    return hashlib.sha256("".join(said).encode()).hexdigest()[:16]


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
