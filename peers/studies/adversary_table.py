"""The tables of `swarm bench adversaries`, from their rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from peers.studies.experiments import Row

if TYPE_CHECKING:
    from peers.studies.adversaries import Attacked
    from peers.studies.cheating import Cheated
    from peers.studies.honest import Mixed

Cell = TypeVar("Cell", "Attacked", "Cheated")


def table(done: Sequence[tuple[Attacked, Row]]) -> str:
    """Markdown: a row an attack of a learner, means over seeds."""
    lines = [
        "| attack | reward | undefended | named after | named in | others named | recomputed | named after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    recomputed = [(cell, row) for cell, row in done if cell.gradients]
    again = {attack: rows for attack, rows, _ in _each(recomputed, lambda cell: cell.attack)}
    plain = [(cell, row) for cell, row in done if not cell.gradients]
    for attack, with_, without in _each(plain, lambda cell: cell.attack):
        more = again.get(attack, [])
        lines.append(
            f"| {attack} | {_mean(with_, 'reward'):.3f} | {_mean(without, 'reward'):.3f} |"
            f" {_mean(with_, 'rounds'):.1f} | {_mean(with_, 'named'):.0%} | {_mean(with_, 'innocent'):.1%} |"
            f" {_mean(more, 'reward'):.3f} | {_mean(more, 'rounds'):.1f} |"
        )
    return "\n".join(lines)


def honest_table(done: Sequence[tuple[Mixed, Row]]) -> str:
    """Markdown: a row a pair of precisions, over seeds and calls of so many completions."""
    lines = [
        "| sampled, replayed | groups | tokens | differ | largest | tolerance | mean | off | set aside |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for how in dict.fromkeys((cell.sampled, cell.replayed, cell.temperature) for cell, _ in done):
        its = [row for one, row in done if (one.sampled, one.replayed, one.temperature) == how]
        groups, tokens = (sum(int(row[name]) for row in its) for name in ("groups", "tokens"))
        differ, mean = (
            sum(float(row[name]) * int(row["tokens"]) for row in its) / tokens for name in ("differ", "mean")
        )
        off, named = (sum(int(row[name]) for row in its) for name in ("off", "named"))
        hot = f", at temperature {how[2]:g}" if how[2] != 1 else ""
        lines.append(
            f"| {how[0]}, {how[1]}{hot} | {groups:,} | {tokens:,} | {differ:.1%} |"
            f" {max(float(row['largest']) for row in its):.3g} |"
            f" {min(float(row['hard']) for row in its):.2f} | {mean:.2g} | {off} | {named} of {len(its)} |"
        )
    return "\n".join(lines)


def steered_table(done: Sequence[tuple[Mixed, Row]]) -> str:
    """Markdown: a row a sampler that steers, over seeds."""
    lines = [
        "| sampled, replayed | pays | honest at first | of its liking | set aside | after groups |",
        "|---|---|---|---|---|---|",
    ]
    for how in dict.fromkeys((one.sampled, one.replayed, one.steered, one.honest) for one, _ in done):
        its = [row for one, row in done if (one.sampled, one.replayed, one.steered, one.honest) == how]
        named = [int(row["groups"]) - how[3] for row in its if row["named"]]
        liked = fmean(float(row["liked"]) for row in its)
        lines.append(
            f"| {how[0]}, {how[1]} | {how[2]:g} | {how[3]} | {liked:.2f} | {len(named)} of {len(its)} |"
            f" {f'{min(named)} to {max(named)}' if named else ''} |"
        )
    return "\n".join(lines)


def two_table(done: Sequence[tuple[Attacked, Row]]) -> str:
    """Markdown: a row an attack of one of two learners, means over seeds."""
    lines = ["| of two, attack | reward | undefended | versions | frozen |", "|---|---|---|---|---|"]
    for attack, with_, without in _each(done, lambda cell: cell.attack):
        lines.append(
            f"| {attack} | {_mean(with_, 'reward'):.3f} | {_mean(without, 'reward'):.3f} |"
            f" {_mean(with_, 'versions'):.0f} | {_mean(with_, 'frozen'):.1f} |"
        )
    return "\n".join(lines)


def cheats_table(done: Sequence[tuple[Cheated, Row]]) -> str:
    """Markdown: a row a cheat of samplers, means over seeds; what named it first is that of the first
    seed."""
    lines = [
        "| the cheats | reward | believes all | poison | believes all | refused | named | by | after |"
        " honest named |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cheat, with_, without in _each(done, lambda cell: cell.cheat):
        lines.append(
            f"| {cheat} | {_mean(with_, 'reward'):.3f} | {_mean(without, 'reward'):.3f} |"
            f" {_mean(with_, 'poison'):.1%} | {_mean(without, 'poison'):.1%} |"
            f" {_mean(with_, 'refused'):.0%} | {_mean(with_, 'named'):.0%} | {_by(with_)} |"
            f" {_after(with_)} | {sum(float(row['innocent']) for row in with_):.0f} |"
        )
    return "\n".join(lines)


def heads_table(done: Sequence[tuple[Cheated, Row]]) -> str:
    """Markdown: the same of runs with heads, where nobody believes all."""
    lines = [
        "| with heads, the cheats | reward | poison | refused | named | by | after | honest named |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cheat, rows, _ in _each(done, lambda cell: cell.cheat):
        lines.append(
            f"| {cheat} | {_mean(rows, 'reward'):.3f} | {_mean(rows, 'poison'):.1%} |"
            f" {_mean(rows, 'refused'):.0%} | {_mean(rows, 'named'):.0%} | {_by(rows)} | {_after(rows)} |"
            f" {sum(float(row['innocent']) for row in rows):.0f} |"
        )
    return "\n".join(lines)


def _each(
    done: Sequence[tuple[Cell, Row]], name: Callable[[Cell], str]
) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Each attack, its rows where the peers defend themselves, and where they believe everything."""
    for attack in dict.fromkeys(name(cell) for cell, _ in done):
        own = [(cell.defended, row) for cell, row in done if name(cell) == attack]
        defended, believing = ([row for is_, row in own if is_ is how] for how in (True, False))
        yield attack, defended, believing


def _by(rows: Sequence[Row]) -> str:
    return ", ".join(sorted({str(row["by"]) for row in rows if row["by"]}))


def _after(rows: Sequence[Row]) -> str:
    if not (found := [row for row in rows if row["by"]]):
        return ""
    return f"{_mean(found, 'groups'):.0f} groups, {_mean(found, 'after'):.1f} s"


def _mean(rows: Sequence[Row], figure: str) -> float:
    return fmean(float(row[figure]) for row in rows) if rows else math.nan
