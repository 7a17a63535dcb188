"""`swarm bench`: measures the figures of the README, each compared in the same run with a simple baseline.

    row        what is measured                                        compared with
    join       `swarm join` to its first accepted group, by stages     -
    installed  MB of an installation that reads, watches, takes part   -
    groups     groups/s that one learner admits over real streams      the same bytes over a bare TCP socket
    averaging  seconds a round, 1M and 25M parameters, 2 and 4         bare hivemind; plain TCP, the limit
    averaging-100M  the same, 100M                                     the same
    tokens     tokens/s of a swarm, share that learners compute        one process that does all in turn; TRL
    tokens-13M  the same, a model of 12.7M parameters                  one process that does all in turn
    accuracy   wall and CPU seconds to 60 % of the demo's held-out     one process that does all in turn; TRL
               tasks
    real       wall and CPU seconds of a pretrained model to 90 % of      TRL
               held-out words
    memory     MiB of each role's processes                            -
    patches    a release as a patch on the one before: bytes, speed    XOR + zstd, gaps + values + zstd
    releases   when the last of n receivers has a version, virtual     a plain server: n copies over one line
    rounds     seconds a round where one line of 2 to 4 is slow        equal shares
    faults     next version and full strength after kills, stops, cuts -
    simulator  peer-hours of virtual time a CPU second; a seed's       -
               traffic from many samplers
    learner    CPU seconds, tokens and memory of a gradient whose      a padded row for each completion
               groups go through the model with each prompt once
    learner-smollm2  the same with the pretrained model                the same
    refill     held-out accuracy and tokens of trainings whose batches    batches of all groups as they come
               are filled by signal
    busy       share of their time that learners compute, with kills   gradients and rounds in turns
               and joins too; trained of sampled
    gpu        tokens/s of engines and learner, memory, replays, on a  padded rows; `swarm fit`'s prediction
               GPU (gpu-rehearsal: a tiny model on a CPU)

Without names all rows run but LONG, one after the other, in processes of their own. A row that cannot be
measured here (a package is missing, a peer died) has the reason in the table, and the others are measured.
Progress goes to stderr, the table to stdout; with --json the table too goes to stderr. Not handled here:
whether the figures are good.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lab.figures.table import Conditions, Figure, Gap, Line, Results, Unmeasured
from peers.errors import CANNOT, DONE, UserError, WrongUsage
from peers.runtime import signals
from swarm.processes.processors import processors

ROWS = {
    "join": "lab.rows.joining",
    "installed": "lab.rows.installed",
    "groups": "lab.rows.groups",
    "averaging": "lab.rows.averaging",
    "averaging-100M": "lab.rows.averaging:large",
    "tokens": "lab.rows.tokens",
    "tokens-13M": "lab.rows.tokens:wide",
    "accuracy": "lab.rows.accuracy",
    "real": "lab.rows.real",
    "memory": "lab.rows.memory",
    "patches": "lab.rows.patches",
    "releases": "lab.rows.simulated.releases",
    "rounds": "lab.rows.rounds",
    "faults": "lab.rows.faults",
    "simulator": "lab.rows.simulated.simulator",
    "learner": "lab.rows.learner",
    "learner-smollm2": "lab.rows.learner:smollm2",
    "refill": "lab.rows.simulated.refill",
    "busy": "lab.rows.simulated.busy",
    "gpu": "lab.gpu.row",
    "gpu-rehearsal": "lab.gpu.row:rehearse",
}
"""Row -> the module whose `measure(say)`, or the function behind the colon, returns its figures."""

LONG = (
    "averaging-100M",
    "tokens-13M",
    "real",
    "faults",
    "simulator",
    "learner",
    "learner-smollm2",
    "refill",
    "busy",
    "gpu",
    "gpu-rehearsal",
)
"""Rows of half a minute or more each that the README does without, or that take several minutes: without
names the others are measured, in less than ten minutes on two otherwise idle cores."""

COMPUTING = ("torch", "transformers", "peft", "vllm")
"""Packages whose versions change figures."""

WORSE = 1
"""Exit code where a figure got worse, as `swarm replay --audit` has it for a group that was lost."""


def main(names: Sequence[str], as_json: bool, compare: Path | None = None) -> int:
    """Measure the named rows, by default all but LONG, or those that the table `compare` has. Returns an exit
    code: 0; WORSE where something got worse than in `compare`; 3 when no row could be measured."""
    from lab.figures import comparison, energy

    for name in names:
        if name not in ROWS:
            raise WrongUsage(f"there is no row {name!r}: choose from {', '.join(ROWS)}")
    old = None
    if compare is not None:
        old = comparison.read(compare)
        names = _compared(names, old, compare)
    signals.interrupt()
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    began, load, used = time.monotonic(), os.getloadavg()[0], energy.read()
    lines: list[Line] = []
    for name in names or [name for name in ROWS if name not in LONG]:
        lines += measure(name)
    machine = Conditions(
        cores=processors(),
        load=round(load, 2),
        seconds=round(time.monotonic() - began, 1),
        load_after=round(os.getloadavg()[0], 2),
        processor=_processor(),
        commit=_commit(),
        joules=energy.joules(used, energy.read()),
        began=moment,
        gpus=_gpus(),
        packages=_packages(),
    )
    from lab.figures import table
    from peers.console import Listing, optional_console

    if as_json:
        table.show(lines, machine, optional_console("stderr", None if sys.stderr.isatty() else 200))
        print(table.as_json(lines, machine))
    else:
        table.show(lines, machine, Listing(width=None if sys.stdout.isatty() else 200))
    if old is not None and (
        got_worse := comparison.worse(comparison.changes(old, Results(machine=machine, figures=lines)))
    ):
        for change in got_worse:
            print(f"worse: {change}", file=sys.stderr)
        return WORSE
    return DONE if any(isinstance(line, Figure) for line in lines) else CANNOT


def _compared(names: Sequence[str], old: Results, path: Path) -> Sequence[str]:
    """The rows to measure again, by default all that `old` has. Raises WrongUsage: nothing of `old` would be
    compared."""
    had = dict.fromkeys(line.row for line in old.figures)
    if not names and (lost := [name for name in had if name not in ROWS]):
        print(f"not compared: `swarm bench` no longer has {', '.join(lost)}", file=sys.stderr)
    names = names or [name for name in ROWS if name in had]
    if not any(isinstance(line, Figure) and line.row in names for line in old.figures):
        asked = ", ".join(names) or "any row that there is now"
        raise WrongUsage(
            f"{path} has no figure of {asked}, so nothing can be compared: name rows that it has, or take a"
            " new table with `swarm bench --json`"
        )
    return names


def _processor() -> str:
    """Name of the processor; empty where the system does not report it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _gpus() -> tuple[str, ...]:
    """Those that nvidia-smi names, with their driver."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(" with driver ".join(line.split(", ")) for line in told.splitlines())


def _packages() -> dict[str, str]:
    """Versions of those of COMPUTING that are installed."""
    found = {}
    for name in COMPUTING:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _commit() -> str:
    """Commit of the checkout, with a `+` where files were changed; empty outside of one."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def measure(name: str) -> list[Line]:
    """One row's figures, or a Gap with the reason why there are none."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{name:9} {time.monotonic() - began:5.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        module, _, function = ROWS[name].partition(":")
        return list(getattr(import_module(module), function or "measure")(say))
    except (Unmeasured, UserError) as error:
        say(f"not measured: {error}")
        return [Gap(row=name, why=str(error))]
