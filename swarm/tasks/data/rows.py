"""Reads the rows of a data set: from a file, a folder, the output of `save_to_disk`, or the Hub.

In comes the part after `data:`, out comes a `datasets.Dataset` with its columns of plain values; images and
audio stay behind. Every failure is a TaskError with a remedy. No code of a data set is ever run. Not handled
here: the meaning of columns (swarm.tasks.data.dataset).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swarm import extras
from swarm.frames.grammar import nearest
from swarm.tasks.base import NotInstalled, TaskError
from swarm.tasks.rewards import spelling

KINDS = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""A file's suffix -> the reader of `datasets` for it."""

PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
"""Suffixes that may come after it: `datasets` unpacks such files, all but .lz4."""

ABOUT = "README.md"
"""File of a folder that may list the others to read."""

WHY = 300
"""Characters of a reader's message: it prints whole schemas."""

NO_DATA = ("config.json", "dataset_info.json", "dataset_infos.json")
"""Files of a folder in which `datasets` sees no data."""

BLOCK = 1000
"""Rows whose bytes are checked at a time."""

DAMAGED = (RecursionError, LookupError, TypeError, AttributeError)
"""Exceptions of `datasets` for values that are nested too deep, and where a file, its folder or README.md
describes itself by another type than expected."""

RECODE = "save it as UTF-8, such as with `iconv -f LATIN1 -t UTF-8`"

PLAIN = ("Value", "List", "LargeList", "Sequence", "ClassLabel", "Json")
"""Kinds of columns that a reward function can be given."""


class DatasetLocation(NamedTuple):
    """The place of a data set."""

    name: str
    """A path, or a Hub id."""
    subset: str = ""
    revision: str = ""
    cache: Path | None = None
    """Where `datasets` keeps its copy; its own folder without."""

    @property
    def path(self) -> Path | None:
        """The file or folder; None for a data set of the Hub."""
        path = Path(self.name).expanduser()
        return path if path.exists() else None


def read(place: DatasetLocation, split: str, texts: Sequence[str] = ()) -> Any:
    """The `datasets.Dataset` of that split; with "" the training split, or the only one. Of files without
    types (.csv, .tsv) columns of `texts` keep their text. Raises TaskError."""
    splits, untyped = _splits(place, texts)
    chosen = split or ("train" if "train" in splits or len(splits) != 1 else next(iter(splits)))
    if chosen not in splits:
        raise TaskError(
            f"data set {place.name} has no split {chosen!r}{nearest(chosen, splits)}; it has"
            f" {', '.join(splits) or 'none'}"
        )
    rows = splits[chosen]
    rows = rows.select_columns([name for name, kind in rows.features.items() if _plain(kind)])
    if not len(rows):
        raise TaskError(f"data set {place.name} has no rows in its split {chosen!r}")
    _check_text(rows, place)
    if untyped:
        return _numbered(rows, texts)
    return spelling.kept(rows, _json_files(place.path), texts)


def _json_files(path: Path | None) -> list[Path]:
    """Those in which numbers may be written otherwise than as the columns have them."""
    if path is None:
        return []
    files = [path] if path.is_file() else sorted(path.glob("*"))
    return [file for file in files if KINDS.get(file.suffix.lower()) == "json" and file.name not in NO_DATA]


def _numbered(rows: Any, texts: Sequence[str]) -> Any:
    """The columns `texts` as numbers where these, written again, equal the file's text."""
    import pyarrow as pa
    from datasets import Value

    for name in set(texts).intersection(rows.column_names):
        written = pa.chunked_array(rows.data.column(name).chunks).cast(pa.string())
        for kind in ("int64", "float64"):
            try:
                same = written.cast(pa.type_for_alias(kind)).cast(pa.string()).equals(written)
            except pa.ArrowInvalid:
                continue
            if same:
                rows = rows.cast_column(name, Value(kind))
                break
    return rows


def _check_text(rows: Any, place: DatasetLocation) -> None:
    """Raises TaskError for bytes that are no text: `datasets` copies those of a JSON file unread."""
    for number, block in enumerate(rows.with_format("arrow").iter(batch_size=BLOCK)):
        for name, column in zip(block.column_names, block.columns, strict=True):
            try:
                column.validate(full=True)
            except ValueError as error:
                among = f"rows {number * BLOCK + 1} to {number * BLOCK + len(block)}"
                raise TaskError(
                    f"data set {place.name} is not UTF-8 in its column {name!r}, {among} ({error}): {RECODE}"
                ) from error


def _splits(place: DatasetLocation, texts: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """Split -> its rows, and whether the files have no types."""
    try:
        import datasets
        import yaml
    except ImportError as error:
        line = extras.install(extras.PEER)
        raise NotInstalled(
            f"data sets need the package `datasets`, which is not here ({error}): {line}"
        ) from error
    path = place.path
    if path is not None and path.is_file() and not suffix(path):
        raise TaskError(
            f"data set {place.name} is of no known kind: {', '.join(KINDS)}, packed or not, or a folder of"
            " such files"
        )
    datasets.disable_progress_bars()  # a peer's log is no terminal
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its messages are in the TaskError
    try:
        found, untyped = _load(datasets, place, texts)
    except (FileNotFoundError, ConnectionError) as error:
        raise TaskError(_unread(place, error) if path is not None else _absent(place, error)) from error
    except StopIteration as error:
        raise TaskError(f"data set {place.name} has no rows: the file is empty") from error
    except (datasets.exceptions.DatasetsError, ValueError, OSError, yaml.YAMLError, *DAMAGED) as error:
        raise TaskError(_unread(place, error)) from error
    return dict(found) if isinstance(found, dict) else {"train": found}, untyped


def _load(datasets: Any, place: DatasetLocation, texts: Sequence[str]) -> tuple[Any, bool]:
    path, more = place.path, {"cache_dir": str(place.cache) if place.cache else None}
    if path is None:
        if _meant_as_path(place.name):
            raise FileNotFoundError(place.name)
        more["revision"] = place.revision or None
        return _as_text(datasets, texts, place.name, place.subset or None, **more)
    if path.is_dir():
        if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
            return datasets.load_from_disk(str(path)), False
        _check_kinds(path)
        if not (files := _unseen(datasets, path)):
            return _as_text(datasets, texts, str(path), place.subset or None, **more)
        return _of_files(datasets, texts, suffix(next(iter(files.values()))[0]), files, more)
    return _of_files(datasets, texts, suffix(path), str(path), more)


def _of_files(
    datasets: Any, texts: Sequence[str], end: str, files: object, more: Mapping[str, str | None]
) -> tuple[Any, bool]:
    """The contents of files of one kind, which `datasets` does not recognise by their names."""
    if KINDS[end] != "csv":
        return datasets.load_dataset(KINDS[end], data_files=files, **more), False
    tabs = {"sep": "\t"} if end == ".tsv" else {}
    return _as_text(datasets, texts, KINDS[end], data_files=files, **more, **tabs)


def _unseen(datasets: Any, folder: Path) -> dict[str, list[str]]:
    """Split -> its files, where `datasets` would not see some of them: it looks for names in lower case;
    empty where it sees all."""
    ends = ("".join(Path(name).suffixes) for names in _kinds(folder).values() for name in names)
    if all(end == end.lower() for end in ends):
        return {}
    patterns = datasets.data_files.get_data_patterns(str(folder))
    found = datasets.data_files.DataFilesDict.from_patterns(patterns, base_path=str(folder))
    return {split: good for split, files in found.items() if (good := [f for f in files if suffix(f)])}


def _as_text(datasets: Any, texts: Sequence[str], *words: str | None, **more: object) -> tuple[Any, bool]:
    """The tables that `datasets` loads, and whether its files have no types: then columns of `texts` keep
    their text."""
    try:
        return datasets.load_dataset(*words, converters=dict.fromkeys(texts, str), **more), True
    except ValueError:
        found = datasets.load_dataset(*words, **more)  # only the reader of such files has converters
        if any(rows.info.builder_name == "csv" for rows in dict(found).values()):
            raise
        return found, False


def _kinds(folder: Path) -> dict[str, list[str]]:
    """Kind -> the files of it. Empty where a README.md with `configs:` lists the files to read."""
    about = folder / ABOUT
    if about.is_file() and re.search(r"^configs:", about.read_text("utf-8", "replace"), re.MULTILINE):
        return {}
    kinds: dict[str, list[str]] = {}
    for place in _below(folder):
        kind = suffix(place)
        if kind and place.name not in NO_DATA:
            kinds.setdefault("tab" if kind == ".tsv" else KINDS[kind], []).append(str(place))
    return kinds


def _below(folder: Path) -> Iterator[Path]:
    """Files below a folder that `datasets` looks at, as seen from there."""
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and not any(part.startswith((".", "__")) for part in place.parts):
            yield place


def files(name: str) -> dict[str, Path]:
    """Name -> place of each file of a data set that is here; none for one of the Hub."""
    path = DatasetLocation(name).path
    if path is None or path.is_file():
        return {} if path is None else {name: path}
    return {f"{name}/{place}": path / place for place in _below(path) if suffix(place) or place.name == ABOUT}


def suffix(file: str | Path) -> str:
    """The suffix of a data file, without that of its compression: a key of KINDS, or nothing."""
    ends = [end.lower() for end in Path(file).suffixes]
    while ends and ends[-1] in PACKED:
        ends.pop()
    return ends[-1] if ends and ends[-1] in KINDS else ""


def _check_kinds(folder: Path) -> None:
    """Raises TaskError where files are of several kinds: `datasets` reads those of the commonest alone."""
    if len(kinds := _kinds(folder)) > 1:
        named = "; ".join(f"{len(files)} of {kind}, such as {files[0]}" for kind, files in kinds.items())
        raise TaskError(
            f"data set {folder} has files of several kinds ({named}), and only those of one would be read:"
            " name one file, or keep files of one kind in the folder"
        )


def _meant_as_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or bool(suffix(name))


def _unread(place: DatasetLocation, error: Exception) -> str:
    if isinstance(error.__cause__ or error, UnicodeDecodeError):
        return f"data set {place.name} is not UTF-8 ({error.__cause__ or error}): {RECODE}"
    why = " ".join(str(error.__cause__ or error).split())[:WHY]
    if isinstance(error, DAMAGED):
        return (
            f"data set {place.name} cannot be read ({type(error).__name__}: {why}): it is nested too deep, or"
            " what it says of itself is damaged; save it again"
        )
    if "Value is too big" in why:
        why += ": a whole number in it has more than 64 bits; write it as text, in quotes"
    return f"data set {place.name} cannot be read: {why or type(error).__name__}"


def missing(place: DatasetLocation) -> str:
    """A sentence where a path is named and nothing is there; empty for data that are there, or of the
    Hub."""
    if place.path is not None or not _meant_as_path(place.name):
        return ""
    return f"there is no file or folder {place.name} (looked from {Path.cwd()})"


def _absent(place: DatasetLocation, error: Exception) -> str:
    if why := missing(place):
        return why
    if "gated" in str(error):
        return f"data set {place.name} is gated: accept its terms on its page, then run `hf auth login`"
    if isinstance(error, ConnectionError):
        return (
            f"data set {place.name} is not on this disk and the Hub cannot be reached: check the network, or"
            " name a file or folder"
        )
    return (
        f"there is no data set {place.name} on the Hub and no file of that name here: name a file, a folder"
        " or a Hub id"
    )


def _plain(kind: Any) -> bool:
    """A column's feature, also one of lists and dictionaries, that holds text and numbers only."""
    if isinstance(kind, dict):
        return all(map(_plain, kind.values()))
    if isinstance(kind, list):
        return all(map(_plain, kind))
    inner = getattr(kind, "feature", None)
    return (
        type(kind).__name__ in PLAIN
        and (inner is None or _plain(inner))
        and "binary" not in str(getattr(kind, "dtype", ""))
    )
