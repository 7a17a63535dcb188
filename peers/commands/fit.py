"""`swarm fit`: the table of roles and precisions on this machine, predicted, then measured.

A measurement is a small piece of the real work, chosen so that it takes seconds; what it says is scaled to
the run's own batch. Weights that are not on the disk are made up: time and memory are the same. Data goes to
stdout, what is being done to stderr.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import msgspec
import platformdirs

from peers.build import base_model
from peers.commands import fit_probe
from peers.commands.fit_table import as_data, heading, hints, table
from peers.errors import CANNOT, DONE, CannotHere, UserError
from peers.fit import estimates, fits, hardware
from peers.fit.estimates import ExpectedPace, RunShape, Speed
from peers.fit.fits import GB, LEARNER, Case, FitRow
from swarm.config import Config, Run

DESCRIBING = ["*.json", "*.jinja", "*.model", "*.txt"]
"""Files of a Hub model without its weights."""

BUDGET = 10.0
"""Seconds that one measured call should take; its warm-up takes as long."""

ENDLESS = 60.0
"""Seconds beyond which even the smallest piece is not worth waiting for."""

START = 300.0
"""Seconds for a child to import torch and to read or make up its weights: ten, but minutes on a machine that
is swamped."""

SLOW = 64 << 20
"""Bytes a second that a slow disk writes."""

BESIDE = 256 << 20
"""Bytes that libraries and allocators take in any case: with a tiny model they are all that is measured."""

SLACK = 10
"""Times that a call may take longer than predicted before it is stopped."""


def main(config: Config, name: str, measured: bool, as_json: bool) -> int:
    """Print the table; exit code 0, or 3 when nothing fits."""
    model = locate(config.run)
    machine = hardware.machine()
    case = Case.of(model, config, machine)
    speed = speeds(case, model)
    found = fits.rows(case, speed)
    before = case.corrections.count()
    if measured:
        found = list(measurements(case, model, found, speed))
    if as_json:
        print(json.dumps(as_data(case, name, found), indent=2))
    else:
        print("\n".join([*heading(case, name, speed), "", *table(case, found)]), flush=True)
    for line in hints(case, found, before):
        print(line, file=sys.stderr)
    return DONE if any(row.fits != "no" for row in found) else CANNOT


def locate(run: Run) -> Path:
    """A folder with the model's config and tokenizer, with weights where they are on this disk. Raises
    UserError."""
    name = run.model.name
    if name == "embedded" or Path(name).expanduser().is_dir():
        return base_model.folder(run)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, revision=run.model.revision or None, allow_patterns=DESCRIBING))
    except GatedRepoError as error:
        raise UserError(f"{name} is gated: accept its terms on its page, then run `hf auth login`") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"there is no model {name}: name a folder, a Hub id such as org/model, or a config file"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise CannotHere(
            f"the config of {name} is not on this disk and cannot be downloaded ({type(error).__name__}):"
            " check the network, or name a folder with its config.json and tokenizer"
        ) from error


def has_weights(model: Path) -> bool:
    """Whether all parts of the weights are there: an interrupted download leaves some."""
    index = model / "model.safetensors.index.json"
    if not index.exists():
        return any(model.glob("*.safetensors"))
    return all((model / part).exists() for part in json.loads(index.read_text())["weight_map"].values())


def speeds(case: Case, model: Path) -> Callable[[str], Speed]:
    """dtype -> the device's Speed, measured once for each dtype."""
    known: dict[str, Speed] = {}

    def speed(dtype: str) -> Speed:
        if dtype not in known:
            _say(f"measuring this device's speed in {dtype}")
            shape = (case.anatomy.hidden, 3 * case.anatomy.hidden)
            outcome = fit_probe.run(
                fit_probe.Job(what="speed", folder=str(model), dtype=dtype, shape=shape), START
            )
            if outcome.failed:
                raise CannotHere(
                    f"this machine's speed cannot be measured: {outcome.detail}; `swarm doctor` looks at its"
                    " parts"
                )
            known[dtype] = Speed(outcome.flops, outcome.bandwidth, outcome.launch)
        return known[dtype]

    return speed


# --- measurements -------------------------------------------------------------------------------------------


def measurements(
    case: Case, model: Path, found: list[FitRow], speed: Callable[[str], Speed]
) -> Iterator[FitRow]:
    """The rows; those that fit have measured figures."""
    with ExitStack() as stack:
        folder, random = model, not has_weights(model)
        trouble = "" if any(row.fits != "no" for row in found) else "nothing fits"
        if random and not trouble:
            folder, trouble = stack.enter_context(_made_up(case, model))
        for row in found:
            if row.fits == "no" or trouble or row.gpus > 1:
                why = trouble or "not measured on several GPUs"
                yield row if row.fits == "no" else row._replace(note=why)
                continue
            done = measure(case, folder, row, speed)
            yield done._replace(
                note="; ".join(
                    filter(None, [done.note, "random weights" if random and done.measured else ""])
                )
            )


@contextmanager
def _made_up(case: Case, model: Path) -> Iterator[tuple[Path, str]]:
    """A folder with the model's files and random weights; or why there can be none."""
    cache = platformdirs.user_cache_path("swarm")
    cache.mkdir(parents=True, exist_ok=True)
    need, free = 2 * case.anatomy.parameters, hardware.disk(cache)
    if 1.2 * need > free:  # a fifth more: other programs write too
        yield (
            model,
            (
                f"no weights here, and no room to make some up ({need / GB:.1f} GB, {free / GB:.1f} free in"
                f" {cache})"
            ),
        )
        return
    with tempfile.TemporaryDirectory(prefix="fit-", dir=cache) as name:
        for file in model.iterdir():
            if ".safetensors" not in file.name:
                (Path(name) / file.name).symlink_to(file.resolve())
        _say(f"making up {need / GB:.1f} GB of random weights: its own are not on this disk")
        outcome = fit_probe.run(fit_probe.Job(what="weights", folder=name), START + need / SLOW)
        yield (
            Path(name),
            f"no weights here, and none could be made up: {outcome.detail}" if outcome.failed else "",
        )


def measure(case: Case, folder: Path, row: FitRow, speed: Callable[[str], Speed]) -> FitRow:
    """Measure one row; corrections learn from it even when the measurement fails."""
    known = case.corrections.of(case.about(row.role, row.kind))
    ask, plain = _piece(case, row, speed, known.time)
    seconds = plain.step * known.time
    if seconds > ENDLESS:
        return row._replace(note=f"not measured: even a small piece takes about {seconds:.0f} s")
    _say(f"measuring {row.role} {row.kind} (about {2 * seconds:.0f} s and a start)")
    machine = case.on(row.role)
    share = machine.gpus[0].free / machine.gpus[0].total if machine.gpus else 0.0
    job = fit_probe.Job(
        what=row.role,  # type: ignore[arg-type]
        folder=str(folder),
        config=_settings(case.config, folder, row, ask),
        prompt=ask.prompt,
        ram=0 if machine.gpus else machine.free,
        gpu=share,
    )
    limit = START + 2 * SLACK * seconds
    outcome = fit_probe.run(job, limit)
    needs, there = (
        fits.needs(case, ask, row.role, row.kind),
        machine.gpus[0].free if machine.gpus else machine.free,
    )
    memory = (needs.easy if row.fits == "yes" else needs.least).model + BESIDE
    if outcome.failed == "memory":
        case.corrections.learn(case.about(row.role, row.kind), max(known.memory, 1.05 * there / memory), None)
        return row._replace(fits="no", why=f"ran out of memory when it was tried ({outcome.detail})")
    if outcome.failed == "time":
        case.corrections.learn(case.about(row.role, row.kind), known.memory, limit / 2 / plain.step)
        return row._replace(note=outcome.detail)
    if outcome.failed or not outcome.tokens:
        return row._replace(note=f"not measured: {outcome.detail or 'no tokens came'}")
    slower = plain.tokens * outcome.seconds / outcome.tokens
    case.corrections.learn(case.about(row.role, row.kind), (outcome.peak + BESIDE) / memory, slower)
    again, whole = fits.row(case, row.role, row.kind), fits.pace(case, case.ask, row, speed)
    return again._replace(
        predicted=row.predicted, measured=ExpectedPace(whole.tokens / slower, whole.step * slower)
    )


def _piece(
    case: Case, row: FitRow, speed: Callable[[str], Speed], factor: float
) -> tuple[RunShape, ExpectedPace]:
    """The largest piece of the work that takes BUDGET, or the smallest there is; and its pace without
    corrections."""
    ask = case.ask
    lengths = [(min(ask.prompt, limit), min(ask.tokens, limit)) for limit in (1 << 20, 256, 64, 16)]
    if row.role == LEARNER:
        sizes = [ask._replace(groups=1, group=group) for group in (ask.group, 2)]
    else:
        sizes = [ask._replace(tasks=tasks) for tasks in (ask.tasks, 1)]
        lengths = [(prompt, min(tokens, 64)) for prompt, tokens in lengths]
    for (prompt, tokens), size in product(lengths, sizes):
        piece = size._replace(prompt=prompt, tokens=tokens)
        pace = fits.pace(case, piece, row, speed)
        if pace.step * factor <= BUDGET:
            break
    return piece, pace


def _settings(config: Config, folder: Path, row: FitRow, ask: RunShape) -> Config:
    """The run's and this peer's settings, with the row's kind and the piece's size."""
    replace, run, peer = msgspec.structs.replace, config.run, config.peer
    # The Hub's cache names a folder after its commit.
    run = replace(run, model=replace(run.model, revision=folder.name))
    sampling = replace(run.sampling, group_size=ask.group, max_tokens=ask.tokens)
    if row.role == LEARNER:
        training, _, name = row.kind.partition("+")
        # The rate does not matter: a step takes as long at any.
        optimizer = replace(run.optimizer, name=name or "adamw", lr=run.optimizer.lr or 1.0)
        run = replace(
            run,
            sampling=sampling,
            model=replace(run.model, training=training),
            optimizer=optimizer,
            batch=replace(run.batch, groups=1, micro=1),
        )
        return Config(run=run, peer=peer)
    small = row.kind in estimates.QUANTIZED
    run = replace(run, sampling=replace(sampling, quantized=small or sampling.quantized))
    engine = replace(
        peer.engine,
        name="hf",
        tasks=ask.tasks,
        dtype="auto" if small else row.kind,
        quantize=row.kind if small else "none",
    )
    return Config(run=run, peer=replace(peer, engine=engine))


# --- what is shown ------------------------------------------------------------------------------------------


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
