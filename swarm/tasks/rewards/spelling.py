"""Numbers as text: with the digits that the file of a data set writes, and without an exponent.

    {"answer": 1e-05}      -> 0.00001                 (repr would be 1e-05)
    {"answer": 2.50}       -> 2.50, which a column of floats has as 2.5
    {"answer": 12345678901234567890123} -> all digits, of which a float has 17
    {"answer": 3.0}        -> 3, since programs write whole numbers so where others beside them are not

In comes a data set that was read from JSON, out comes one whose answers are as they were written: a column
that is text has it, and beside a column of floats, with which reward functions compute, there is another one
(AS_WRITTEN). Not handled: files that are packed, and those whose rows are not those of the columns; of them
numbers are written with the digits that floats have.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

AS_WRITTEN = " as written"
"""Suffix of the name of such a column."""

NUMBERED = r"[0-9][.eE]|[0-9]{17}"
"""A text that may have been a number whose spelling is lost."""


class Spelt(str):
    """A number of a JSON file, as it is written."""


CONSTANTS = ("NaN", "Infinity", "-Infinity")
"""What JSON of Python has beside numbers."""

LONGEST = 400
"""Digits of a number that is written in full: floats have at most 309 before the point."""


def in_full(value: float | Decimal | str) -> str:
    """A finite number, also one that a file writes, without an exponent, and a whole one without `.0`."""
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    written = f"{number:f}" if abs(number.adjusted()) < LONGEST else str(value)
    written = written.removesuffix(".0")
    return "0" if written == "-0" else written


def kept(rows: Any, files: Sequence[Path], names: Sequence[str]) -> Any:
    """The rows of these JSON files, with the files' own text in the columns `names`."""
    lost = [name for name in dict.fromkeys(names) if name in rows.column_names and _may_differ(rows, name)]
    if not lost or not files:
        return rows
    try:
        written = [[row.get(name) for name in lost] for file in files for row in _objects(file)]
    except (ValueError, AttributeError, RecursionError):  # one value that is no list of objects, or no JSON
        return rows
    for place, name in enumerate(lost):
        texts = [row[place] for row in written]
        values = rows[name][:]
        if len(texts) == len(values) and all(map(_same, texts, values)):
            rows = _with(rows, name, texts, values)
    return rows


def _may_differ(rows: Any, name: str) -> bool:
    kind = str(getattr(rows.features[name], "dtype", ""))
    if "string" not in kind:
        return kind.startswith(("float", "int", "timestamp")) or type(rows.features[name]).__name__ == "Json"
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(rows.data.column(name), NUMBERED)).as_py())


def _objects(file: Path) -> Iterator[Any]:
    """Raises ValueError for text that is not JSON."""
    read = json.JSONDecoder(parse_float=Spelt, parse_int=Spelt, parse_constant=Spelt).decode
    with open(file, encoding="utf-8-sig") as lines:
        first = next((line for line in lines if line.strip()), "")
        if first.lstrip().startswith("["):
            yield from read((first + lines.read()).strip())
            return
        yield read(first.strip())
        yield from (read(line.strip()) for line in lines if line.strip())


def _same(text: object, value: object) -> bool:
    """Whether a column may have this value for the file's text: a reader drops digits and zeros."""
    if text is None or text in CONSTANTS:
        return value is None or value == text or (isinstance(value, float) and not math.isfinite(value))
    if not isinstance(text, str):
        return True  # it has no spelling
    if isinstance(value, str) and not isinstance(text, Spelt):
        return text == value
    try:
        return isinstance(value, datetime.datetime) or math.isclose(
            float(text), float(str(value)), rel_tol=1e-6
        )
    except ValueError:
        return False


def _with(rows: Any, name: str, texts: Sequence[Any], values: Sequence[Any]) -> Any:
    from datasets import Value

    said = [
        in_full(text) if isinstance(text, Spelt) else text if isinstance(text, str) else None
        for text in texts
    ]
    if all(isinstance(value, str | datetime.datetime | None) for value in values):
        return _replaced(rows, name, said, Value("string")) if said != list(values) else rows
    if str(getattr(rows.features[name], "dtype", "")) == "float64" and not any(map(_is_text, texts)):
        exact = [float(text) if isinstance(text, Spelt) else None for text in texts]
        rows = _replaced(rows, name, exact, Value("float64")) if exact != list(values) else rows
    known = [in_full(value) if isinstance(value, float) else str(value) for value in values]
    other = [text if text != value else None for text, value in zip(said, known, strict=True)]
    return rows.add_column(name + AS_WRITTEN, other, feature=Value("string")) if any(other) else rows


def _is_text(text: object) -> bool:
    return isinstance(text, str) and not isinstance(text, Spelt)


def _replaced(rows: Any, name: str, values: Sequence[Any], kind: Any) -> Any:
    return rows.remove_columns(name).add_column(name, values, feature=kind).select_columns(rows.column_names)
