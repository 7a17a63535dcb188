"""`swarm fit`: which roles and precisions fit this machine, predicted and then measured.

A measurement runs a small piece of the real work, chosen so that it takes seconds, and is scaled to the run's
own batch. Weights that are not on the disk are replaced by random ones, which take the same time and memory.
Results go to stdout, progress to stderr.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import msgspec
import platformdirs

from peers.build.model import base_model
from peers.commands.fit import probe
from peers.commands.fit.table import as_data, heading, hints, table
from peers.errors import CANNOT, DONE, CannotHere, UserError, say
from peers.fit import estimates, fits, hardware
from peers.fit.estimates import ExpectedPace, RunShape, Speed
from peers.fit.fits import GB, LEARNER, Case, FitRow
from swarm.learn.models.pretrained import weight_map
from swarm.settings.config import Config, Run

MODEL_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
"""Files of a Hub model without its weights."""

BUDGET = 10.0
"""Seconds that one measured call should take; its warm-up takes as long."""

TOO_LONG = 60.0
"""Seconds of the smallest piece beyond which nothing is measured."""

START = 300.0
"""Seconds for a child to import torch and to read or generate its weights: ten usually, minutes on an
overloaded machine."""

SLOW_DISK = 64 << 20
"""Bytes a second that a slow disk writes."""

LIBRARY_BYTES = 256 << 20
"""Bytes that libraries and allocators take for any model; of a tiny model nothing else is measured."""

TIMEOUT_FACTOR = 10
"""Multiple of the predicted time after which a call is stopped."""


def main(config: Config, name: str, measured: bool, as_json: bool) -> int:
    """Print the table; exit code 0, or 3 when nothing fits."""
    model = locate(config.run)
    base_model.check_weights(model)
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
        say(line)
    return DONE if any(row.fits != "no" for row in found) else CANNOT


def locate(run: Run) -> Path:
    """A folder with the model's config and tokenizer, with weights where they are on this disk. Raises
    UserError."""
    name = run.model.name
    if name in base_model.MADE or Path(name).expanduser().is_dir():
        return base_model.folder(run)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, revision=run.model.revision or None, allow_patterns=MODEL_FILES))
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
    """Whether all files of the weights are here: an interrupted download leaves some. Raises ModelError."""
    several = weight_map(model)
    return any(model.glob("*.safetensors")) if several is None else all(map(Path.exists, several.values()))


def speeds(case: Case, model: Path) -> Callable[[str], Speed]:
    """dtype -> the device's Speed, measured once for each dtype."""
    known: dict[str, Speed] = {}

    def speed(dtype: str) -> Speed:
        if dtype not in known:
            say(f"measuring this device's speed in {dtype}")
            shape = (case.model_shape.hidden, 3 * case.model_shape.hidden)
            outcome = probe.run(probe.Job(what="speed", folder=str(model), dtype=dtype, shape=shape), START)
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
    """The same rows, with measured figures in those that fit."""
    with ExitStack() as stack:
        folder, random = model, not has_weights(model)
        obstacle = "" if any(row.fits != "no" for row in found) else "nothing fits"
        if random and not obstacle:
            folder, obstacle = stack.enter_context(_random_weights(case, model))
        for row in found:
            if row.fits == "no" or obstacle or row.gpus > 1:
                why = obstacle or "not measured on several GPUs"
                yield row if row.fits == "no" else row._replace(note=why)
                continue
            done = measure(case, folder, row, speed)
            yield done._replace(
                note="; ".join(
                    filter(None, [done.note, "random weights" if random and done.measured else ""])
                )
            )


@contextmanager
def _random_weights(case: Case, model: Path) -> Iterator[tuple[Path, str]]:
    """A folder with the model's files and random weights; or the reason why there is none."""
    cache = platformdirs.user_cache_path("swarm")
    cache.mkdir(parents=True, exist_ok=True)
    need, free = 2 * case.model_shape.parameters, hardware.disk(cache)
    if 1.2 * need > free:  # a fifth more: other programs write too
        yield (
            model,
            (
                f"no weights here, and no disk space for random ones ({need / GB:.1f} GB, {free / GB:.1f}"
                f" free in {cache})"
            ),
        )
        return
    with tempfile.TemporaryDirectory(prefix="fit-", dir=cache) as name:
        for file in model.iterdir():
            if ".safetensors" not in file.name:
                (Path(name) / file.name).symlink_to(file.resolve())
        say(f"writing {need / GB:.1f} GB of random weights: the model's own are not on this disk")
        outcome = probe.run(probe.Job(what="weights", folder=name), START + need / SLOW_DISK)
        yield (
            Path(name),
            f"no weights here, and random ones failed: {outcome.detail}" if outcome.failed else "",
        )


def measure(case: Case, folder: Path, row: FitRow, speed: Callable[[str], Speed]) -> FitRow:
    """Measure one row; its corrections are updated even when the measurement fails."""
    known = case.corrections.of(case.about(row.role, row.kind))
    run_shape, plain = _piece(case, row, speed, known.time)
    seconds = plain.step * known.time
    if seconds > TOO_LONG:
        return row._replace(note=f"not measured: even a small piece takes about {seconds:.0f} s")
    say(f"measuring {row.role} {row.kind} (about {2 * seconds:.0f} s and a start)")
    machine = case.on(row.role)
    share = machine.gpus[0].free / machine.gpus[0].total if machine.gpus else 0.0
    job = probe.Job(
        what=row.role,  # type: ignore[arg-type]
        folder=str(folder),
        config=_settings(case.config, folder, row, run_shape),
        prompt=run_shape.prompt,
        ram=0 if machine.gpus else machine.free,
        gpu=share,
    )
    limit = START + 2 * TIMEOUT_FACTOR * seconds
    outcome = probe.run(job, limit)
    needs, there = (
        fits.needs(case, run_shape, row.role, row.kind),
        machine.gpus[0].free if machine.gpus else machine.free,
    )
    memory = (needs.easy if row.fits == "yes" else needs.least).model + LIBRARY_BYTES
    if outcome.failed == "memory":
        case.corrections.learn(case.about(row.role, row.kind), max(known.memory, 1.05 * there / memory), None)
        return row._replace(fits="no", why=f"more memory than there is, when measured ({outcome.detail})")
    if outcome.failed == "time":
        case.corrections.learn(case.about(row.role, row.kind), known.memory, limit / 2 / plain.step)
        return row._replace(note=outcome.detail)
    if outcome.failed or not outcome.tokens:
        return row._replace(note=f"not measured: {outcome.detail or 'no tokens came'}")
    slower = plain.tokens * outcome.seconds / outcome.tokens
    case.corrections.learn(case.about(row.role, row.kind), (outcome.peak + LIBRARY_BYTES) / memory, slower)
    again, whole = fits.row(case, row.role, row.kind), fits.pace(case, case.run_shape, row, speed)
    return again._replace(
        predicted=row.predicted,
        measured=ExpectedPace(whole.tokens / slower, whole.step * slower),
        padded=outcome.padded,
    )


def _piece(
    case: Case, row: FitRow, speed: Callable[[str], Speed], factor: float
) -> tuple[RunShape, ExpectedPace]:
    """The largest piece of the work that takes at most BUDGET, else the smallest piece; and its pace without
    corrections."""
    run_shape = case.run_shape
    lengths = [
        (min(run_shape.prompt, limit), min(run_shape.tokens, limit)) for limit in (1 << 20, 256, 64, 16)
    ]
    if row.role == LEARNER:
        sizes = [run_shape._replace(groups=1, group=group) for group in (run_shape.group, 2)]
    else:
        sizes = [run_shape._replace(tasks=tasks) for tasks in (run_shape.tasks, 1)]
        lengths = [(prompt, min(tokens, 64)) for prompt, tokens in lengths]
    for (prompt, tokens), size in product(lengths, sizes):
        piece = size._replace(prompt=prompt, tokens=tokens)
        pace = fits.pace(case, piece, row, speed)
        if pace.step * factor <= BUDGET:
            break
    return piece, pace


def _settings(config: Config, folder: Path, row: FitRow, run_shape: RunShape) -> Config:
    """The run's and this peer's settings, with the row's kind and the piece's size."""
    replace, run, peer = msgspec.structs.replace, config.run, config.peer
    # The Hub's cache names a folder after its commit.
    run = replace(run, model=replace(run.model, revision=folder.name))
    sampling = replace(run.sampling, group_size=run_shape.group, max_tokens=run_shape.tokens)
    if row.role == LEARNER:
        training, _, name = row.kind.partition("+")
        # Any rate will do: a step takes the same time.
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
        tasks=run_shape.tasks,
        dtype="auto" if small else row.kind,
        quantize=row.kind if small else "none",
    )
    return Config(run=run, peer=replace(peer, engine=engine))
