"""Runs a study's cells: small independent experiments, on all cores, each written to a ledger as soon as it
is done.

    cells, in the order in which they matter --worker processes--> rows --> ledger.jsonl, one line a cell

A cell is a frozen struct with everything its row depends on, its seed included; its key is a digest of it, so
an interrupted study is resumed, and a changed plan keeps every row that it still contains. A line that a
crash left incomplete is computed again. A cell that raises is a bug and ends the study; a training that
diverges is a row that says so. Not handled here: what a cell computes, and how rows become a report.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from swarm.limits import UNREADABLE
from swarm.processes.processors import processors
from swarm.storage.durable import write_durably
from swarm.types import Struct

Row = dict[str, float | str]
"""Column -> value. A value read from a ledger equals the written one, and a count is still whole."""

INFINITE: dict[float | str, float] = {"Infinity": math.inf, "-Infinity": -math.inf}
"""Text in a ledger -> the number, which JSON cannot represent; NaN is null."""

WRITTEN: dict[float | str, float | str] = {value: text for text, value in INFINITE.items()}

Say = Callable[[str], None]
EVERY = 5.0
"""Seconds between two lines of progress: often enough to see that it lives."""


class CellResult(Struct):
    key: str
    cell: msgspec.Raw
    row: dict[str, int | float | str | None]


def to_stderr(text: str) -> None:
    """The `say` of a command: a line at once, beside the data on standard output."""
    print(text, file=sys.stderr, flush=True)


def key(cell: msgspec.Struct) -> str:
    """Hex digest of the whole cell."""
    return hashlib.sha256(
        type(cell).__name__.encode() + msgspec.json.encode(cell, order="sorted")
    ).hexdigest()[:16]


def read(ledger: Path) -> dict[str, Row]:
    """Key -> row of every cell that is done. A torn last line is not there."""
    if not ledger.exists():
        return {}
    rows: dict[str, Row] = {}
    for text in ledger.read_bytes().splitlines():
        try:
            line = msgspec.json.decode(text, type=CellResult)
        except UNREADABLE:
            continue  # a crash tore it: the cell is done again
        rows[line.key] = {
            name: math.nan if value is None else INFINITE.get(value, value)
            for name, value in line.row.items()
        }
    return rows


def complete(
    cells: Sequence[msgspec.Struct],
    work: Callable[..., Row],
    ledger: Path,
    say: Say,
    *,
    jobs: int = 0,
    budget: float = math.inf,
) -> list[Row | None]:
    """The row of each cell, done now or found in the ledger; None where `budget` seconds ran out first.

    `work(cell)` is a module's function: it runs in `jobs` processes (0: one a core), each with one thread.
    """
    done = read(ledger)
    todo = list({key(cell): cell for cell in cells if key(cell) not in done}.values())
    if todo and budget > 0:
        say(f"{len(todo)} of {len(cells)} cells to do, {len(cells) - len(todo)} in {ledger}")
        done |= _do(todo, work, ledger, say, jobs or processors(), budget)
    return [done.get(key(cell)) for cell in cells]


Cell = TypeVar("Cell", bound=msgspec.Struct)


def measured(
    cells: Sequence[Cell], work: Callable[..., Row], csv_file: Path, minutes: float
) -> list[tuple[Cell, Row]]:
    """The cells that are done, with their rows, which `csv_file` has too, beside the ledger. `minutes`: as
    much time for it; 0: no limit."""
    rows = complete(cells, work, csv_file.parent / "ledger.jsonl", to_stderr, budget=60 * minutes or math.inf)
    done = [(cell, row) for cell, row in zip(cells, rows, strict=True) if row is not None]
    write_durably(csv_file, as_csv([msgspec.structs.asdict(cell) | row for cell, row in done]).encode())
    return done


def _do(
    todo: Sequence[msgspec.Struct], work: Callable[..., Row], ledger: Path, say: Say, jobs: int, budget: float
) -> dict[str, Row]:
    ledger.parent.mkdir(parents=True, exist_ok=True)
    began = said = time.monotonic()
    rows: dict[str, Row] = {}
    queue = iter(todo)
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_alone)
    with ledger.open("ab") as file:
        if file.tell() and not ledger.read_bytes().endswith(b"\n"):
            file.write(b"\n")
        try:
            running: dict[Future[Row], msgspec.Struct] = {
                pool.submit(work, cell): cell for cell in islice(queue, jobs)
            }
            while running:
                for future in wait(running, timeout=EVERY, return_when=FIRST_COMPLETED).done:
                    cell, row = running.pop(future), future.result()
                    rows[key(cell)] = row
                    file.write(_line(cell, row))
                    file.flush()
                    if time.monotonic() - began < budget:
                        running |= {pool.submit(work, another): another for another in islice(queue, 1)}
                if time.monotonic() - said >= EVERY or not running:
                    said = time.monotonic()
                    say(_progress(len(rows), len(todo), said - began))
        finally:
            for process in multiprocessing.active_children():
                process.terminate()  # those still at work after Ctrl-C, or when a cell raised
            pool.shutdown(cancel_futures=True)
    return rows


def _line(cell: msgspec.Struct, row: Row) -> bytes:
    line = CellResult(
        key=key(cell),
        cell=msgspec.Raw(msgspec.json.encode(cell)),
        row={name: WRITTEN.get(value, value) for name, value in row.items()},
    )
    return msgspec.json.encode(line) + b"\n"


def _progress(done: int, all_: int, seconds: float) -> str:
    left = seconds / done * (all_ - done) if done else float("nan")
    return f"{done} of {all_} cells, {seconds:.0f} s" + (
        f", about {left:.0f} s to go" if 0 < done < all_ else ""
    )


def _alone() -> None:
    """A worker: one thread, and Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when a cell's module imports it
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def as_csv(rows: Collection[Row]) -> str:
    """With every column that some row has, in the order of first sight."""
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
