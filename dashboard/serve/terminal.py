"""The state for a terminal: a live view, and the summary of a finished run.

    render(state, now, width)    headline, progress, problems, peers (a line each), sparklines, last events
    headline(state, now)         the swarm in one line of a log; new_problem(...) each problem, once
    forecast(state, now)         when the run ends at this pace, and what changes that most
    summary(state, now, ...)     versions, verdicts, lag histogram, accuracy at both ends, agreement, files

Pure functions from SwarmState to rich renderables; the caller owns the Console (colour, NO_COLOR, refresh).
Strings of peers were cleaned at the fold and are wrapped in Text, never parsed as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import condition, unprotected
from dashboard.diagnosis.pace import pace
from dashboard.fold.parts.series import Series
from dashboard.fold.state import SwarmState
from dashboard.serve.state_view import head_of
from dashboard.text import clean, clock, confidence, duration, estimates, how_far, of_set
from dashboard.views import HeadView, Problem, Row
from swarm.frames.grammar import some
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.types import Verdict

EVENTS = 5
ROWS = 24
"""Peers in the live view: a terminal's height; the dashboard shows them all."""

STATE = 16
"""Columns of a peer's state, where there are few in all."""

NARROW = 48
"""Columns below which peers have a name and a state only: more would take the room of the state."""

PROBLEMS = 4
"""Problems in the live view, worst first: the peers stay on the screen."""

SPARKS = "▁▂▃▄▅▆▇█"
STYLES = {
    "alive": "green",
    "lost": "yellow",
    "left": "dim",
    "ok": "green",
    "waiting": "dim",
    "info": "dim",
    "warning": "yellow",
    "error": "red",
}
MARKS = {
    "alive": "●",
    "lost": "◌",
    "left": "–",
    "ok": "✓",
    "waiting": "◌",
    "info": "·",
    "warning": "▲",
    "error": "✕",
}


def render(
    state: SwarmState,
    now: float,
    width: int,
    problems: Sequence[Problem] | None = None,
    quiet: float | None = None,
) -> RenderableType:
    """The live view, at most `width` columns. `problems`: in the place of the state's own; `quiet`: seconds
    since the last message, where that does not follow from `now`."""
    curves = _curves(state, max(min(width - 30, 60), 10))
    parts: list[RenderableType] = [_top(state, now), *_progress(state, now), Text()]
    problems = diagnose(state, now) if problems is None else problems
    parts.append(_problems(problems) if problems else _condition(state, now, quiet))
    if note := unprotected(state, now):
        parts.append(Text(f"  {note}", style="dim"))
    parts.append(Text())
    parts += [_peers(state, now, width), *_unheard(state), Text()]
    if curves is not None:
        parts += [curves, Text()]
    return Group(*parts, _events(state))


def summary(
    state: SwarmState,
    now: float,
    model: Path | None = None,
    journal: Path | None = None,
    ended: str = "is done",
) -> RenderableType:
    """Summary of a run that `ended`; `model` and `journal` are where the exported model and the journal
    lie."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("versions", Text(_versions(state)))
    table.add_row("accuracy", Text(_accuracy(state), style="bold"))
    if (judged := state.evaluations.last) is not None:
        if judged.sampled:
            table.add_row("sampled", Text(estimates(judged.sampled)))
        for name, one in judged.sets.items():
            table.add_row(name, Text(of_set(one)))
    table.add_row("groups", Text(f"{state.tally.trained:,} trained"))
    table.add_row("verdicts", Text(_verdicts(state)))
    table.add_row("lag", Text(_lag_line(state)))
    if state.tally.versions:
        table.add_row("", _histogram(state))
    table.add_row("learners", Text(_agreement(state)))
    for label, path in (("model", model), ("journal", journal)):
        if path is not None:
            table.add_row(label, Text(str(path), overflow="fold"))
    return Group(Text(f"{clean(state.run.name)} {ended}", style="bold"), Text(), table)


def headline(state: SwarmState, now: float, timed: bool = True) -> str:
    """The swarm in one line; without what only the time changes where it is not `timed`."""
    head = head_of(state, now)
    accuracy = (
        f"accuracy {head.last_accuracy[1]:.1%}" if head.last_accuracy is not None else "not evaluated yet"
    )
    peers = ", ".join(f"{here}/{known} {role}s" for role, (here, known) in head.roles.items())
    version, reward = _version(head, state.run), _reward(head) or "no reward yet"
    trained = f"{version}, {accuracy}, {reward}, {head.trained} groups trained"
    ends = f"ends about {clock(head.pace.ends, now)}" if timed and head.pace and head.pace.ends else ""
    return "; ".join(filter(None, (trained, peers, ", ".join(_work(head, now, timed)), ends)))


def forecast(state: SwarmState, now: float) -> str:
    """When the run ends at its pace, and what takes most of that; empty while unknown."""
    run, found = state.run, pace(state, now)
    if found is None:
        return ""
    if found.whole is None or found.ends is None:
        takes = f"at this pace a version takes {duration(found.seconds)}"
    else:
        takes = f"at this pace {run.stop.versions} versions take {duration(found.whole)}"
        takes += f", until about {clock(found.ends, now)}"
        takes += f", or less where the accuracy reaches {run.stop.accuracy:.0%}" if run.stop.accuracy else ""
    return f"{takes}; {found.note.removesuffix('.')}" if found.note else takes


def new_problem(problems: Sequence[Problem], last: str) -> tuple[str, str]:
    """(the worst problem and what to do about it, its key); no text where that of key `last` goes on, and
    neither where nothing is wrong."""
    worst = next(iter(problems), None)
    if worst is None or worst.key == last:
        return "", last if worst is not None else ""
    return f"{worst.text.removesuffix('.')}: {worst.todo}", worst.key


def sparkline(curve: Series, width: int, low: float | None = None, high: float | None = None) -> str:
    """The last values of a curve, thinned to `width` characters, between `low` and `high` (default: its own
    range)."""
    values = curve.values
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    bottom = min(values, default=0.0) if low is None else low
    top = max(values, default=1.0) if high is None else high
    share = [(value - bottom) / (top - bottom) if top > bottom else 0.0 for value in values]
    return "".join(SPARKS[min(max(int(part * len(SPARKS)), 0), len(SPARKS) - 1)] for part in share)


def _top(state: SwarmState, now: float) -> Text:
    head = head_of(state, now)
    age = f" ({duration(head.age)} old)" if head.age is not None else ""
    parts = [f"{_version(head, state.run)}{age}"]
    if head.last_accuracy is not None:
        parts.append(f"accuracy {head.last_accuracy[1]:.1%}")
    parts += filter(None, (_reward(head),))
    parts.append(f"{head.groups_per_second:.1f} groups/s")
    for role, (alive, known) in head.roles.items():
        if not state.receives(Role(role)):
            parts += [f"{some(alive, role)} heard"] if alive else []
        elif known:
            parts.append(f"{alive} of {known} {role}s" if alive < known else some(known, role))
    if head.strangers:
        parts.append(some(head.strangers, "stranger"))
    return Text.assemble((clean(state.run.name), "bold"), "  ", " · ".join(parts))


def _version(head: HeadView, run: Run) -> str:
    return f"version {head.version}" + (f" of {run.stop.versions}" if run.stop.versions else "")


def _reward(head: HeadView) -> str:
    """The last version's; before the first one that of the groups that have come."""
    if head.reward is not None:
        return f"reward {head.reward:.2f}"
    return f"reward {head.coming:.2f} so far" if head.coming is not None else ""


def _work(head: HeadView, now: float, timed: bool = True) -> list[str]:
    return [
        how_far(one.stage, one.unit, one.done, one.total, one.ends - now if timed and one.ends else None)
        for one in head.work
    ]


def _progress(state: SwarmState, now: float) -> list[RenderableType]:
    """What takes long now, and when the run ends: a line each, where there is something to say."""
    lines = " · ".join(_work(head_of(state, now), now)), forecast(state, now)
    return [Text(line, style="dim") for line in lines if line]


def _condition(state: SwarmState, now: float, quiet: float | None) -> Text:
    if quiet is None:
        quiet = max(now - state.last, 0.0) if state.last else 0.0
    said = condition(state, now, (), quiet)
    return Text.assemble((MARKS[said.kind], STYLES[said.kind]), " ", said.text)


def _problems(problems: Sequence[Problem]) -> Table:
    """The problems, their causes, and what to do."""
    table = Table.grid(padding=(0, 1))
    for problem in problems[:PROBLEMS]:
        mark = Text(MARKS[problem.level], style=STYLES[problem.level])
        table.add_row(
            mark, Text.assemble((problem.text, "bold"), " ", problem.cause, " ", (problem.todo, "dim"))
        )
    if len(problems) > PROBLEMS:
        table.add_row("", Text(f"and {len(problems) - PROBLEMS} more", style="dim"))
    return table


def _peers(state: SwarmState, now: float, width: int) -> Table:
    wide = width >= 96
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    if width < NARROW:
        table.add_column("peer", no_wrap=True, max_width=max(width - STATE - 4, 1))
        table.add_column("state", no_wrap=True, max_width=STATE)
    else:
        _add_columns(table, wide)
    # a peer without a subscription to a role receives it only for a while: it is not lost after that
    rows = [row for row in state.rows(now) if row.status != "lost" or state.receives(Role(row.role))]
    for row in rows[:ROWS]:
        name, role, word, *figures = _cells(row, now, wide)
        cells = [name, word] if width < NARROW else [name, role, word, *figures]
        table.add_row(*cells, style="dim" if row.status != "alive" else None)
    if len(rows) > ROWS:
        table.add_row(Text(f"and {len(rows) - ROWS} more", style="dim"))
    return table


def _unheard(state: SwarmState) -> list[RenderableType]:
    """Of a dashboard that does not receive all peers: those that it receives."""
    if not state.peers or state.receives(Role.SAMPLER):
        return []
    text = "Other samplers are not heard here: the dashboard and `swarm status INVITE` show all peers."
    return [Text(text, style="dim")]


def _add_columns(table: Table, wide: bool) -> None:
    table.add_column("peer", no_wrap=True, max_width=36 if wide else 20)
    table.add_column("role", no_wrap=True, min_width=9)
    table.add_column("state", no_wrap=True, max_width=24 if wide else STATE)
    for title in ("lag", "groups", *(("refused", "rate/s", "busy") if wide else ()), "heard"):
        table.add_column(title, justify="right", no_wrap=True, min_width=6)


def _cells(row: Row, now: float, wide: bool) -> list[Text]:
    claims, alive = row.claims, row.status == "alive"
    word = claims.state or "here" if alive else "revoked" if row.revoked else row.status
    if alive and (fetching := claims.fetching) is not None and fetching.size:
        word += f" {fetching.held / fetching.size:.0%}"
    elif alive and (progress := claims.progress) is not None and progress.total:
        word += f" {progress.done}/{progress.total}"
    works = row.version is not None
    figures = [f"{row.lag}", f"{claims.done:,}"] if works else ["–"] * 2
    if wide:
        figures.append(f"{claims.refused:,}" if works else "–")
        figures += [f"{claims.rate:.1f}", f"{claims.busy:.0%}"] if works and alive else ["–"] * 2
    figures.append(duration(max(now - row.heard, 0.0)))
    state = Text.assemble((MARKS[row.status], STYLES[row.status]), " ", word)
    name = Text.assemble((row.name, "bold"), (f" {claims.label}" if claims.label else "", "dim"))
    return [name, Text(row.role), state, *map(Text, figures)]


def _curves(state: SwarmState, width: int) -> Table | None:
    table = Table.grid(padding=(0, 2))
    for name, high in (("reward", None), ("accuracy", 1.0)):
        curve = state.series.get(name)
        if curve is not None and curve.values:
            line = sparkline(curve, width, min(0.0, *curve.values), high)
            table.add_row(Text(name, style="dim"), Text(line, style="cyan"), Text(f"{curve.values[-1]:.2f}"))
    return table if table.row_count else None


def _events(state: SwarmState) -> Table:
    table = Table.grid(padding=(0, 1))
    for line in state.events()[-EVENTS:]:
        again = Text(f" (and {line.count - 1:,} like it)" if line.count > 1 else "", style="dim")
        text = Text(line.text, overflow="ellipsis", style="" if line.level == "info" else STYLES[line.level])
        table.add_row(Text(MARKS[line.level], style=STYLES[line.level]), text + again)
    return table


def _versions(state: SwarmState) -> str:
    newest = state.newest
    return (
        f"{state.version} released; the newest is {newest.weights[:12]}" if newest else "no release was seen"
    )


def _accuracy(state: SwarmState) -> str:
    if not state.accuracies:
        return "was never evaluated"
    (first, before), (last, after) = state.accuracies["first"], state.accuracies["last"]
    judged = state.evaluations.last
    interval = f"; {confidence(judged.low, judged.high)}" if judged is not None else ""
    if first == last:
        return f"{after:.1%} held out at version {last}{interval}"
    return f"{before:.1%} -> {after:.1%} held out (version {first} -> {last}){interval}"


def _verdicts(state: SwarmState) -> str:
    reasons = (str(verdict) for verdict in Verdict if verdict is not Verdict.ADMIT)
    counted = state.tally.verdicts
    refused = [f"{counted[reason]:,} {reason}" for reason in reasons if counted.get(reason)]
    return f"{counted.get('admit', 0):,} admitted; refused: {', '.join(refused) or 'none'}"


def _lag_line(state: SwarmState) -> str:
    total = sum(state.tally.versions.values())
    if not total:
        return "no group was trained"
    mean = sum(lag * groups for lag, groups in state.tally.versions.items()) / total
    oldest = max(state.tally.versions)
    age = f", {duration(max(state.tally.seconds))}" if state.tally.seconds else ""
    window = state.run.window
    allowed = f"{window.versions} versions, {duration(window.seconds)}"
    return f"mean {mean:.1f} versions, at most {oldest}{age}; the window is {allowed}"


def _histogram(state: SwarmState) -> Table:
    """Trained groups by lag, in bins that double: 0, 1, 2-3, 4-7, ..."""
    bins: dict[int, int] = {}
    for lag, groups in state.tally.versions.items():
        bins[lag.bit_length()] = bins.get(lag.bit_length(), 0) + groups
    most = max(*bins.values(), 1)
    table = Table.grid(padding=(0, 1))
    for power in range(max(bins) + 1):
        low, high = (1 << power) >> 1, (1 << power) - 1
        groups = bins.get(power, 0)
        label = f"{low}" if low >= high else f"{low}-{high}"
        bar = Text("█" * round(30 * groups / most), style="cyan")
        table.add_row(Text(label, justify="right", style="dim"), bar, Text(f"{groups:,}"))
    return table


def _agreement(state: SwarmState) -> str:
    seen = state.agreement.view()
    same, different = seen.same, seen.different
    learners = sum(peer.role is Role.LEARNER for peer in state.peers.values())
    if not same and not different:
        return f"{some(learners, 'learner')}; no version was seen at two of them"
    if different:
        return (
            f"{some(learners, 'learner')}; weights DIFFERED in {different} of {same + different} compared"
            " versions"
        )
    return f"{some(learners, 'learner')}; the same weights in all {same} compared versions"
