"""The report of the staleness bench: rows in, report.md, cells.csv and pictures out.

    search + sections (cells with their rows)
        --by method and value of the section's axis, over seeds--> tables --> report.md

A figure is a mean over seeds with the half-width of its 95 % interval (Student's t). A difference is paired:
the same seed has the same tasks and delays whatever the method, so the common part of a seed drops out; the
text below a table lists the differences that stand after Holm's correction, and the rates at the edge of the
search. Invariant: the same rows give the same bytes. Not handled: pictures (lab.studies.staleness.curves),
the choice of cells (lab.studies.staleness.staleness).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from lab.studies.experiments import Row, as_csv
from lab.studies.intervals import LEVEL, chance, holm
from lab.studies.markdown import markdown
from lab.studies.staleness.records import (
    COLLAPSED,
    FinishedCell,
    Interval,
    StageResults,
    StudyResults,
    by_method,
    by_place,
    collapsed,
    pooled,
    spread,
    values,
)
from lab.studies.trainings import COMPLETIONS, EVERY, GROUPS, LONGEST, MEDIAN
from swarm.storage.durable import write_durably

AGAINST = "gepo"
"""Differences are to this method."""

DIAGNOSED = (
    "lag_versions",
    "lag_p95",
    "kl",
    "ess",
    "weight_var",
    "weight_max",
    "zero",
    "grad_norm",
    "cosine",
    "entropy",
)


def write(out: Path, account: StudyResults) -> None:
    """Replace the files of an earlier, shorter run."""
    from lab.studies.staleness import curves  # matplotlib takes a second

    out.mkdir(parents=True, exist_ok=True)
    write_durably(out / "cells.csv", table(account).encode())
    pictures = curves.draw(account, out)
    write_durably(out / "report.md", text(account, pictures).encode())


# --- text ---------------------------------------------------------------------------------------------------


def text(account: StudyResults, pictures: Mapping[str, Sequence[Path]]) -> str:
    parts = [_head(account), _rates(account)]
    for section in account.sections:
        done = pooled(account, section)
        if done:
            parts.append(_section(section, done, account.middle, pictures.get(section.name, ())))
    return "\n\n".join(parts) + "\n"


HEAD = """# Policies under delay

`{command}`: {done} of {asked} trainings on seeds {seeds}, after {searched} on seeds {search} in the search
for learning rates. `cells.csv` has one line for each. Left out, for want of time: {left}.

The roles that ship (seed, learner, sampler, evaluator) run on the virtual clock; the policy really samples
and really learns. A version is {groups} groups of {completions} completions. The delay is the paper's law
(arXiv 2508.17850): log-normal, median {median:g} s, cut at {longest:g} s, drawn for each group. `delay` D
is how many versions the learner makes in {longest:g} s, the oldest that a group can be; how old they are is
measured and stands below. D = 0 is exactly on-policy. All laws have that median; Weibull has the
log-normal's coefficient of variation too. `way` is what is late: the `upload` of each group, or each new
`policy` on its way to the sampler, one after the other. The latter is not the paper's delay, which is drawn
anew for each rollout: a sampler here keeps one old policy until the next arrives.

Accuracy is held out, every {every} versions from the same first policy; greedy for the language model, of
drawn answers for the table of `toy`. `best` and `last` are of one training's curve, `gap` is between the
two, `auc` its mean height. ± is the 95 % interval of a mean over seeds; differences to `{against}` are
paired by seed, bold where the interval leaves out 0 (one in twenty does by chance; what stands after Holm's
correction is listed). `kl` as an axis, and `kl_weight` in `cells.csv`, is the weight of the KL term; it
changes no learning rate, that is the one found without. `kl` as a figure is the distance between sampler
and learner."""


def _head(account: StudyResults) -> str:
    left = [
        f"{s.name} {s.asked - len(s.done)} of {s.asked}" for s in account.sections if len(s.done) < s.asked
    ]
    return HEAD.format(
        command=account.command,
        left=", ".join(left) or "nothing",
        seeds=_list(account.seeds),
        search=_list(account.search),
        done=sum(len(s.done) for s in account.sections),
        asked=sum(s.asked for s in account.sections),
        searched=len(account.searched),
        groups=GROUPS,
        completions=COMPLETIONS,
        every=EVERY,
        median=MEDIAN,
        longest=LONGEST,
        against=AGAINST,
    )


def _rates(account: StudyResults) -> str:
    """The training rate of each method, with the search's results for the others."""
    lines = [
        "## Learning rates",
        "",
        f"Area under the curve at D = {account.middle}, means over the search; the best is taken.",
    ]
    for domain in dict.fromkeys(one.cell.domain for one in account.searched):
        here = by_method((one for one in account.searched if one.cell.domain == domain), "lr", "auc")
        rates = sorted({float(lr) for at in here.values() for lr in at})
        rows = []
        for label, at in here.items():
            chosen = account.rates.get((label, domain))
            shown = [f"{spread(list(at[lr].values())).mean:.3f}" if lr in at else "" for lr in rates]
            rows.append(
                [
                    label,
                    *(f"**{mean}**" if lr == chosen else mean for lr, mean in zip(rates, shown, strict=True)),
                ]
            )
        lines += ["", markdown([domain, *(f"{lr:g}" for lr in rates)], rows)]
        if edge := [label for label in here if account.rates.get((label, domain)) in (rates[0], rates[-1])]:
            where = f"{len(edge)} of {len(here)} are at the edge of the grid, a better rate may lie beyond"
            lines += ["", f"{where}: {', '.join(edge)}."]
    return "\n".join(lines)


TABLES = (
    ("last", "Last accuracy"),
    ("best", "Best accuracy"),
    ("gap", "Best to last"),
    ("auc", "Area under the curve"),
)


def _section(
    section: StageResults, done: Sequence[FinishedCell], middle: int, pictures: Sequence[Path]
) -> str:
    axis = section.axis
    where = [f"`{section.domain}`"] if axis != "domain" else []
    fixed = ", ".join([*where, *([f"D = {middle}"] if axis != "delay" else [])])
    lines = [f"## {section.name}: by {axis}, {fixed}"]
    lines += [f"\n![{path.stem}]({path.name})" for path in pictures]
    if axis in ("delay", "law", "way"):
        lines += ["", f"Versions between sampling and training, mean (95 % are below): {_lags(done, axis)}."]
    for name, title in TABLES:
        lines += ["", f"### {title}", "", _means(done, axis, section.methods, name)]
    for name, title in TABLES:
        if name in ("last", "auc"):
            lines += [
                "",
                f"### {title}, difference to {AGAINST}",
                "",
                _differences(done, axis, section.methods, name),
            ]
            lines += ["", _standing(done, axis, section.methods, name)]
    lines += ["", f"Collapsed (last below {COLLAPSED:g} of best): {_lost(done, axis) or 'none'}."]
    at: float | str = middle if axis == "delay" else values(done, axis)[-1]
    lines += ["", f"### What the learner saw at {axis} {_place(at)}, means over versions and seeds"]
    return "\n".join([*lines, "", _diagnosis(done, axis, at, section.methods)])


def _means(done: Sequence[FinishedCell], axis: str, methods: Sequence[str], name: str) -> str:
    """The best mean of each column is bold."""
    found, places = by_method(done, axis, name), values(done, axis)
    here = [label for label in methods if label in found]
    spreads = {
        label: {place: spread(list(at.values())) for place, at in found[label].items()} for label in here
    }
    choose = min if name == "gap" else max
    top = {place: choose(_means_at(place, spreads), default=math.nan) for place in places}
    rows = [
        [
            label,
            *(
                _shown(at[place], round(at[place].mean, 3) == top[place]) if place in at else ""
                for place in places
            ),
        ]
        for label, at in spreads.items()
    ]
    return markdown([name, *map(_place, places)], rows)


def _means_at(place: float | str, spreads: Mapping[str, Mapping[float | str, Interval]]) -> list[float]:
    """Of the methods that were trained there and evaluated."""
    means = (round(at[place].mean, 3) for at in spreads.values() if place in at)
    return [mean for mean in means if not math.isnan(mean)]


def _differences(done: Sequence[FinishedCell], axis: str, methods: Sequence[str], name: str) -> str:
    found, places = by_method(done, axis, name), values(done, axis)
    theirs, rows = found.pop(AGAINST, {}), []
    for label in methods:
        if (mine := found.get(label)) is not None:
            rows.append([label, *(_paired(mine.get(place, {}), theirs.get(place, {})) for place in places)])
    return markdown([name, *map(_place, places)], rows)


def _standing(done: Sequence[FinishedCell], axis: str, methods: Sequence[str], name: str) -> str:
    """The sentence about which differences of a table are significant after Holm's correction."""
    found = by_method(done, axis, name)
    theirs, tried = found.pop(AGAINST, {}), []
    for label in methods:
        for place, mine in found.get(label, {}).items():
            if len(pairs := _pairs(mine, theirs.get(place, {}))) > 1:
                tried.append((f"{label} at {_place(place)} ({spread(pairs).mean:+.3f})", chance(pairs)))
    stand = [tried[i][0] for i in holm([p for _, p in tried])]
    return f"Of {len(tried)} comparisons {len(stand)} stand at {LEVEL:g} after Holm's correction" + (
        f": {', '.join(stand)}." if stand else "."
    )


def _lags(done: Sequence[FinishedCell], axis: str) -> str:
    means, tails = by_place(done, axis, "lag_versions"), by_place(done, axis, "lag_p95")
    return ", ".join(
        f"{_place(place)}: {spread(at).mean:.1f} ({spread(tails[place]).mean:.0f})"
        for place, at in means.items()
    )


def _pairs(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Differences of the seeds that both have."""
    return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def _paired(mine: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Mean difference; nothing where there are no pairs."""
    pairs = _pairs(mine, theirs)
    found = spread(pairs)
    return _shown(found, abs(found.mean) > found.half, sign="+") if pairs else ""


def _diagnosis(done: Sequence[FinishedCell], axis: str, at: float | str, methods: Sequence[str]) -> str:
    here = [one for one in done if getattr(one.cell, axis) == at]
    rows = []
    for label in methods:
        mine = [one for one in here if one.cell.method == label]
        if mine:
            rows.append(
                [label, *(f"{spread([one.figure(name) for one in mine]).mean:.3g}" for name in DIAGNOSED)]
            )
    return markdown(["method", *DIAGNOSED], rows)


def _lost(done: Sequence[FinishedCell], axis: str) -> str:
    counts: dict[str, int] = {}
    for one in done:
        if collapsed(one):
            name = f"{one.cell.method} at {_place(getattr(one.cell, axis))}"
            counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} {count}x" for name, count in counts.items())


def _shown(found: Interval, bold: bool, sign: str = "") -> str:
    half = "" if math.isnan(found.half) else f" ± {found.half:.3f}"
    mean = f"{found.mean:{sign}.3f}"
    return (f"**{mean}**" if bold else mean) + half


def _place(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# --- CSV ----------------------------------------------------------------------------------------------------


def table(account: StudyResults) -> str:
    """One line a training, in the order of the plan; figures with four digits."""
    lines = {one.cell: {"stage": "search", **_line(one)} for one in account.searched}
    for section in account.sections:
        for one in section.done:
            lines.setdefault(one.cell, {"stage": section.name, **_line(one)})
    return as_csv(lines.values())


def _line(one: FinishedCell) -> Row:
    """`kl_weight` is the setting of the cell, `kl` the measured value."""
    cell = msgspec.structs.asdict(one.cell)
    del cell["defined"]
    line: Row = {"kl_weight" if name == "kl" else name: value for name, value in cell.items()} | one.row
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in line.items()}
