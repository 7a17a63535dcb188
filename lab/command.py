"""`swarm bench` and `swarm sim --nemesis`: from parsed arguments to rows of the table, or to one study.

    names of rows --lab.bench--> a table
    gradient, staleness, band, adversaries --lab.studies--> a folder
    nemesis --lab.studies.nemesis--> trials

peers.verbs loads this module where it is there. Not handled here: the arguments (peers.cli).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from lab import bench as rows
from peers.commands.parsing.parser import did_you_mean
from peers.errors import CannotHere, WrongUsage, say, writing
from peers.runtime import signals
from swarm import extras

ADVERSARIES = ("learners", "samplers", "honest")
"""The parts of the study `adversaries`."""

STUDIES = {
    "gradient": ("--quick", "--out", "--methods", "--seed"),
    "staleness": ("--quick", "--out", "--methods", "--minutes", "--seed"),
    "band": ("--quick", "--out", "--minutes"),
    "adversaries": ("--quick", "--out", "--minutes"),
    "nemesis": ("-n", "--seed"),
}
"""Study -> the options that it takes."""

_STUDYING: dict[str, object] = {
    "--quick": False,
    "--out": None,
    "--methods": "",
    "--minutes": 0.0,
    "--seed": None,
    "-n": None,
}
"""Options of studies -> their defaults."""

_MEASURING: dict[str, object] = {"--json": False, "--compare": None}
"""As these, of rows."""


def bench(args: argparse.Namespace) -> int:
    """`swarm bench`: measure rows, or do the one study that is named. Returns an exit code. Raises
    WrongUsage."""
    whose = [kind for kind in ADVERSARIES if getattr(args, kind)]
    if whose and args.names != ["adversaries"]:
        raise WrongUsage("--learners, --samplers and --honest are for the study adversaries")
    if not set(args.names) & set(STUDIES):
        return _rows(args)
    if len(args.names) > 1:
        raise WrongUsage(f"a study takes minutes to hours: name only one of {', '.join(STUDIES)}")
    (name,) = args.names
    _check_study(args, name)
    if name == "nemesis":
        from lab.studies import nemesis

        return nemesis.many(100 if args.n is None else args.n, args.seed or 0)
    methods = [method.strip() for method in args.methods.split(",") if method.strip()]
    with writing(args.out):
        return study(name, args.quick, args.out, methods, args.minutes, args.seed, whose or ADVERSARIES)


def trial(seed: int, journal: Path | None) -> int:
    """`swarm sim --nemesis SEED`. Returns an exit code."""
    from lab.studies import nemesis

    with writing(journal):
        if journal is not None:  # events that its peers cannot write are a broken promise of theirs
            journal.parent.mkdir(parents=True, exist_ok=True)
            journal.open("wb").close()
        return nemesis.main(seed, journal)


def _given(args: argparse.Namespace, options: Mapping[str, object]) -> list[str]:
    return [name for name, default in options.items() if getattr(args, name.lstrip("-")) != default]


def _check_study(args: argparse.Namespace, name: str) -> None:
    """Raise WrongUsage for options that would change nothing."""
    takes = STUDIES[name]
    if other := [option for option in _given(args, _STUDYING | _MEASURING) if option not in takes]:
        raise WrongUsage(f"the study {name} takes no {', '.join(other)}; it takes {', '.join(takes)}")
    if not args.minutes >= 0:
        raise WrongUsage(f"--minutes {args.minutes} is no time: give some, or 0: no limit")


def _rows(args: argparse.Namespace) -> int:
    """Measure rows; an unknown name that resembles a study's was meant as one."""
    for name in args.names:
        if name not in rows.ROWS and (near := did_you_mean(name, STUDIES)):
            raise WrongUsage(f"there is no study {name!r}{near}")
    if _given(args, _STUDYING):
        raise WrongUsage(f"{', '.join(_STUDYING)} are for the studies: {', '.join(STUDIES)}")
    return rows.main(args.names, args.json, args.compare)


def study(
    name: str,
    quick: bool,
    out: Path | None,
    methods: Sequence[str],
    minutes: float,
    seed: int | None,
    whose: Collection[str] = ADVERSARIES,
) -> int:
    """Run or resume a study; `out` is its folder (default: ./bench-NAME, or ./bench-NAME-quick), `seed` its
    first one, `whose` selects ADVERSARIES, all within `minutes`.

    Returns an exit code. Raises CannotHere without matplotlib, before hours are spent.
    """
    from lab.studies.method_names import chosen

    if importlib.util.find_spec("matplotlib") is None:
        raise CannotHere(
            f"a study draws its figures with matplotlib, which is not installed: {extras.install('bench')}"
        )

    signals.interrupt()
    for label in methods:
        chosen(label)  # before anything is measured, a word that names no method is refused
    folder = out or Path(f"bench-{name}-quick" if quick else f"bench-{name}")
    if name == "gradient":
        from lab.studies.gradient import gradient

        return gradient.main(quick, folder, methods, seed or 0)
    if name == "band":
        from lab.studies.liars import band

        return band.main(quick, folder, minutes)
    if name == "adversaries":
        from lab.studies.liars import adversaries, cheating, honest

        parts = {"learners": adversaries.main, "samplers": cheating.main, "honest": honest.main}
        return _within(minutes, [partial(parts[part], quick, folder) for part in whose])
    from lab.studies.staleness import staleness

    return staleness.main(quick, folder, methods, minutes, 1 if seed is None else seed)


def _within(minutes: float, parts: Sequence[Callable[[float], int]]) -> int:
    """Do one part after the other, each in the rest of the time; 0: no limit. Returns an exit code."""
    end, codes = time.monotonic() + 60 * minutes, []
    for part in parts:
        left = (end - time.monotonic()) / 60 if minutes else 0.0
        if minutes and left <= 0:
            say("the time is up, and parts of the study are left: the same command goes on there")
            break
        codes.append(part(left))
    return max(codes)
