"""Pictures of `swarm bench gradient`: errors, biases and cosines of the objectives, over staleness and sizes.

Not handled here: how they look (peers.commands.journals.drawing, lab.studies.heat).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from lab.studies.gradient.gradient_report import NAMED, MethodRecord, most_settings, named, ranked
from lab.studies.heat import heat
from peers.commands.journals.drawing import Curve, Panel, lines

KL = "KL(q‖p), nats a token"


def gradient(records: Sequence[MethodRecord], out: Path) -> list[Path]:
    """All pictures of the bias-variance lab; those whose sweep was not measured are left out."""
    group, horizon = most_settings(records)
    at_kl = [r for r in records if (r.setting.group, r.setting.horizon) == (group, horizon)]
    shown = [record for record in at_kl if record.label in named(records)]
    fixed = f"G = {group}, horizon {horizon}"
    whole = [("mse_32", "error of 32 groups", False), ("cosine_32", "cosine of 32 groups with g*", False)]
    parts = [("cosine", "cosine of the mean with g*", False), ("bias2", "squared bias", False)]
    parts += [
        ("snr", "signal to noise of one group", True),
        ("zero", "share of completions without weight", False),
    ]
    paths = [
        lines(
            out / "error.png",
            [_panel(shown, "kl", name, f"{text}, {fixed}", log) for name, text, log in whole],
        ),
        lines(
            out / "bias-variance.png",
            [_panel(shown, "kl", name, f"{text}, {fixed}", log) for name, text, log in parts],
        ),
        _all(at_kl, out / "all.png"),
    ]
    sizes = [r for r in records if r.label in named(records) and r.setting.horizon == horizon]
    depths = [r for r in records if r.label in named(records) and r.setting.group == group]
    panels = [*_sweeps(sizes, "group", "group size G"), *_sweeps(depths, "horizon", "horizon, tokens")]
    if panels:
        paths.append(lines(out / "group-horizon.png", panels, columns=max(2, math.ceil(len(panels) / 2))))
    scored = sorted({record.label.partition("/")[0] for record in at_kl if "/score=" in record.label})
    if scored:
        paths.append(_scores(at_kl, scored, out / "score.png"))
    return paths


def _panel(records: Sequence[MethodRecord], over: str, name: str, title: str, log_y: bool = False) -> Panel:
    curves = []
    for label in dict.fromkeys(record.label for record in records):
        mine = sorted((r for r in records if r.label == label), key=lambda r: getattr(r.setting, over))
        mean, lo, hi = zip(*(r.values[name] for r in mine), strict=True)
        curves.append(Curve(label, [getattr(r.setting, over) for r in mine], mean, lo, hi))
    return Panel(title, KL if over == "kl" else over, name, curves, True, log_y)


def _sweeps(records: Sequence[MethodRecord], over: str, axis: str) -> list[Panel]:
    """mse_32 over `group` or `horizon`, a panel for each kl of which more than one size was measured."""
    panels = []
    for kl in sorted({record.setting.kl for record in records}):
        here = [record for record in records if record.setting.kl == kl]
        if len({getattr(record.setting, over) for record in here}) > 1:
            panels.append(
                _panel(here, over, "mse_32", f"error of 32 groups at {kl:g} nats a token")._replace(x=axis)
            )
    return panels


def _all(records: Sequence[MethodRecord], path: Path) -> Path:
    table = ranked(records)
    kls = sorted({record.setting.kl for record in records})
    values = [[at[kl].values["mse_32"][0] for kl in kls] for at in table.values()]
    return heat(path, f"error of 32 groups (mse_32) by {KL}", list(table), [f"{kl:g}" for kl in kls], values)


def _scores(records: Sequence[MethodRecord], names: Sequence[str], path: Path) -> Path:
    """A panel for each of the first nine methods whose score makes a difference: with its own and with the
    other."""
    panels = []
    for name in sorted(names, key=lambda name: (name not in NAMED, name))[:9]:
        mine = [
            record for record in records if record.label == name or record.label.startswith(f"{name}/score=")
        ]
        panel = _panel(mine, "kl", "mse_32", name)
        curves = [
            curve._replace(label="the other score" if "/" in curve.label else "own score")
            for curve in panel.curves
        ]
        panels.append(panel._replace(curves=curves))
    return lines(path, panels, columns=3)
