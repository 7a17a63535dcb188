"""The report of the bias-variance lab: moments of each instance become statistics with intervals, a CSV and a
text.

    rows (`method:moment`, one a cell) --derived, over instances--> Records --> gradient.csv, report.md

Intervals are 95 % Student intervals over instances; methods are compared in pairs, since all of them saw the
same draws. Not handled: measuring (lab.studies.gradient.gradient), drawing (lab.studies.gradient.pictures).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lab.studies.experiments import Row
from lab.studies.intervals import student
from lab.studies.markdown import markdown

BATCH = 32
"""Groups a batch: about the batch of a learner of this project."""

NAMED = (
    "rloo",
    "grpo",
    "cispo",
    "gspo/eps=0.2",
    "gepo",
    "gepo_noclip",
    "seq_is",
    "seq_tis_wb",
    "tempered",
    "gepo_defensive",
)
"""Methods that line plots and narrow tables show, as far as they were measured."""

STATISTICS = {
    "cosine": "cosine of the mean gradient with g*",
    "scale": "c >= 0 that minimises ‖c E g - g*‖",
    "bias2": "‖c E g - g*‖² / ‖g*‖² at that scale",
    "bias2_raw": "‖E g - g*‖² / ‖g*‖² at scale 1",
    "trace": "tr Cov g / ‖g*‖² of one group at scale 1",
    "variance": "the same at the best scale",
    "snr": "‖E g‖² / tr Cov g of one group",
    "mse_1": "min over c >= 0 of E ‖c g - g*‖² / ‖g*‖², one group",
    "mse_32": "the same of a batch of 32 groups",
    "cosine_32": "expected cosine of a batch of 32 groups with g*",
    "zero": "share of completions without weight",
    "ess": "effective sample size of a group / G",
}
"""Column -> its meaning."""

POSITIVE = {"trace", "snr"}
"""Columns whose mean and interval are of the logarithm: they span decades over instances."""

BARE = {"scale", "trace", "mse_1", "zero", "ess"}
"""Columns without an interval in the CSV, which is committed."""

UNBIASED = 0.1
"""Half-width beyond which an interval around 0 decides nothing."""


class LabSetting(NamedTuple):
    kl: float
    group: int
    horizon: int


class MethodRecord(NamedTuple):
    """One method in one setting, over all instances."""

    label: str
    setting: LabSetting
    instances: int
    values: dict[str, tuple[float, float, float]]
    """Statistic -> mean, lower and upper end of its interval; NaN where there is none."""


def derived(row: Row, label: str) -> dict[str, float]:
    """The statistics of one method in one cell. NaN where the mean gradient is lost in its noise: mean2 <=
    trace / N."""
    along, along2, mean2, trace = (
        float(row[f"{label}:{name}"]) for name in ("along", "along2", "mean2", "trace")
    )
    seen, scale = mean2 > trace / float(row["groups"]), float("nan")
    if seen:
        scale = max(along, 0.0) / mean2
    return {
        "cosine": along / math.sqrt(mean2) if seen else float("nan"),
        "scale": scale,
        "bias2": _least(along, along2, mean2) if seen else float("nan"),
        "bias2_raw": 1 - 2 * along + mean2,
        "trace": trace,
        "variance": scale**2 * trace,
        "snr": mean2 / trace if seen and trace > 0 else float("nan"),
        "mse_1": _least(along, along2, mean2 + trace),
        "mse_32": _least(along, along2, mean2 + trace / BATCH),
        "cosine_32": float(row[f"{label}:cosine_32"]),
        "zero": float(row[f"{label}:zero"]),
        "ess": float(row[f"{label}:ess"]),
    }


def _least(along: float, along2: float, square: float) -> float:
    """min over c >= 0 of 1 - 2 c along + c^2 square: 1, that of no step, where the estimate is zero or points
    the other way."""
    return 1 - along2 / square if along > 0 and square > 0 else 1.0


def interval(values: Iterable[float], positive: bool = False) -> tuple[float, float, float]:
    """Mean and 95 % Student interval of those that are numbers; `positive`: geometric, of those above 0."""
    if positive:
        low, middle, high = interval(math.log(value) if value > 0 else float("nan") for value in values)
        return math.exp(low), math.exp(middle), math.exp(high)
    real = [value for value in values if math.isfinite(value)]
    if not real:
        return (float("nan"),) * 3
    mean = math.fsum(real) / len(real)
    if len(real) == 1:
        return mean, float("nan"), float("nan")
    freedom = len(real) - 1
    half = student(freedom) * math.sqrt(
        math.fsum((value - mean) ** 2 for value in real) / freedom / len(real)
    )
    return mean, mean - half, mean + half


def gather(settings: Sequence[LabSetting], rows: Sequence[Row | None]) -> list[MethodRecord]:
    """One record a method and setting. `behind` is the paired difference of mse_32 to the setting's best
    method."""
    found: dict[LabSetting, list[Row]] = {}
    for setting, row in zip(settings, rows, strict=True):
        if row is not None:
            found.setdefault(setting, []).append(row)
    records = []
    for setting, done in sorted(found.items()):
        names = dict.fromkeys(name.rpartition(":")[0] for name in done[0] if ":" in name)
        each = {label: [derived(row, label) for row in done] for label in names}
        errors = {label: [one["mse_32"] for one in ones] for label, ones in each.items()}
        best = min(errors.values(), key=math.fsum)
        for label, ones in each.items():
            values = {name: interval((one[name] for one in ones), name in POSITIVE) for name in STATISTICS}
            values["behind"] = interval(mine - least for mine, least in zip(errors[label], best, strict=True))
            records.append(MethodRecord(label, setting, len(ones), values))
    return records


def table(records: Sequence[MethodRecord]) -> bytes:
    """CSV: one line a record, four significant digits, so that a committed file is small and stable."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    columns = [(name, i) for name in (*STATISTICS, "behind") for i in range(1 if name in BARE else 3)]
    heads = [name + ("", "_lo", "_hi")[i] for name, i in columns]
    out.writerow(["method", "options", "kl", "group", "horizon", "instances", *heads])
    for record in records:
        name, _, options = record.label.partition("/")
        numbers = (f"{record.values[name][i]:.4g}" for name, i in columns)
        out.writerow([name, options, *record.setting, record.instances, *numbers])
    return text.getvalue().encode()


# --- the report ---------------------------------------------------------------------------------------------


def report(records: Sequence[MethodRecord], command: str, seeds: Sequence[int], seconds: float) -> str:
    """Markdown: ranking at each kl, biased methods, scores, group sizes and horizons."""
    group, horizon = most_settings(records)
    main = [record for record in records if record.setting[1:] == (group, horizon)]
    parts = [
        "# Bias and variance of the gradient",
        (
            f"`{command}`, instances {seeds[0]} to {seeds[-1]}, {seconds:.0f} s of work on one core. G ="
            f" {group} and horizon {horizon} where nothing else is said; ± is half of a 95 % interval over"
            " instances. All figures: gradient.csv."
        ),
        "## Ranking",
        (
            "mse_32: the least mean squared error of a batch of 32 groups at any scale, relative to ‖g*‖² (0"
            " perfect, 1 no better than no step). Columns are KL(q‖p) in nats a token, rows go by their mean;"
            " * is not told apart from the column's best (paired, 95 %). A trust region is there to stop a"
            " policy that has moved enough; against the gradient of J that is bias."
        ),
        _ranking(main),
        "## Bias",
        (
            "What is left of the error when noise is averaged away, at the best scale (bias2), the cosine,"
            " and whether it is unbiased: `yes` as it is (the interval of bias2_raw holds 0 and ends below"
            f" {UNBIASED}), `up to scale` (that of bias2 does), `no` (both lie above 0), `?` (too wide to"
            " say)."
        ),
        _biases(main),
        "## Score",
        "mse_32 with the geometric and with the full score, for methods to which it makes a difference.",
        _scores(main),
        "## Group size",
        _sweep([r for r in records if r.setting.horizon == horizon], "group"),
        "## Horizon",
        _sweep([r for r in records if r.setting.group == group], "horizon"),
        "## Columns of gradient.csv",
        "\n".join(f"- `{name}`: {text}" for name, text in STATISTICS.items()),
        "- `behind`: mse_32 less that of the setting's best method, paired",
    ]
    return "\n\n".join(parts) + "\n"


def most_settings(records: Sequence[MethodRecord]) -> tuple[int, int]:
    """(G, horizon) of the sweep over kl: the pair with the most records."""
    pairs = [(record.setting.group, record.setting.horizon) for record in records]
    return max(dict.fromkeys(pairs), key=pairs.count)


def ranked(records: Sequence[MethodRecord]) -> dict[str, dict[float, MethodRecord]]:
    """Label -> kl -> record, the least mean mse_32 first."""
    found: dict[str, dict[float, MethodRecord]] = {}
    for record in records:
        found.setdefault(record.label, {})[record.setting.kl] = record
    return dict(
        sorted(found.items(), key=lambda item: math.fsum(r.values["mse_32"][0] for r in item[1].values()))
    )


def plus_minus(values: tuple[float, float, float]) -> str:
    mean, _, high = values
    return f"{mean:.3f} ±{high - mean:.3f}" if math.isfinite(high) else f"{mean:.3f}"


def _ranking(records: Sequence[MethodRecord]) -> str:
    kls = sorted({record.setting.kl for record in records})
    lines = [
        [
            label,
            *(
                plus_minus(at[kl].values["mse_32"]) + ("" if at[kl].values["behind"][1] > 0 else " *")
                for kl in kls
            ),
        ]
        for label, at in ranked(records).items()
    ]
    return markdown(["method", *(f"{kl:g}" for kl in kls)], lines)


def _biases(records: Sequence[MethodRecord]) -> str:
    kls = sorted({record.setting.kl for record in records})
    kls = [kls[0], kls[len(kls) * 2 // 3], kls[-1]]
    heads = [f"{name}, {kl:g}" for kl in kls for name in ("bias2", "cosine", "unbiased")]
    lines = [
        [label, *(cell for kl in kls for cell in _bias(at[kl].values))]
        for label, at in ranked(records).items()
    ]
    return markdown(["method", *heads], lines)


def _bias(values: Mapping[str, tuple[float, float, float]]) -> tuple[str, str, str]:
    return plus_minus(values["bias2"]), f"{values['cosine'][0]:.3f}", verdict(values)


def verdict(values: Mapping[str, tuple[float, float, float]]) -> str:
    """Whether the estimator is unbiased: `yes`, `up to scale`, `no` or `?`."""
    near = {name: values[name][1] <= 0 for name in ("bias2_raw", "bias2")}
    for name, word in (("bias2_raw", "yes"), ("bias2", "up to scale")):
        if near[name] and values[name][2] < UNBIASED:
            return word
    return "?" if any(near.values()) or math.isnan(values["bias2"][1]) else "no"


def _scores(records: Sequence[MethodRecord]) -> str:
    everyone = ranked(records)
    kls = sorted({record.setting.kl for record in records})
    names = sorted(label for label in everyone if "/score=" in label)
    pairs = [one for label in names for one in (label.partition("/")[0], label) if one in everyone]
    return markdown(
        ["method", *(f"{kl:g}" for kl in kls)],
        [
            [one, *(plus_minus(everyone[one][kl].values["mse_32"]) for kl in kls)]
            for one in dict.fromkeys(pairs)
        ],
    )


def _sweep(records: Sequence[MethodRecord], over: str) -> str:
    """mse_32 of the named methods over `group` or `horizon`, at those kl where more than one was measured."""
    found = {(r.label, r.setting.kl, getattr(r.setting, over)): r.values["mse_32"] for r in records}
    spots = sorted({(kl, size) for _, kl, size in found})
    spots = [
        (kl, size) for kl, size in spots if any(kl == other and size != another for other, another in spots)
    ]
    if not spots:
        return "Not measured."
    names = [name for name in named(records) if all((name, *spot) in found for spot in spots)]
    lines = [[name, *(plus_minus(found[name, *spot]) for spot in spots)] for name in names]
    return markdown([f"mse_32 by {over}", *(f"{size}, kl {kl:g}" for kl, size in spots)], lines)


def named(records: Sequence[MethodRecord]) -> list[str]:
    """Those of NAMED that were measured, or the first few when none was."""
    there = list(dict.fromkeys(record.label for record in records))
    return [name for name in NAMED if name in there] or there[: len(NAMED)]
