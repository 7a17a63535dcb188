"""Folds layers of settings (files, environment, `--set`) onto a closed tree of structs.

In come TOML files, environment variables and `key=value` words, weakest first; out comes a tree that
`msgspec.convert` accepts and, for every key, where its value came from. Closed: an unknown key, a wrong type
and a value out of range each raise a ConfigError that names the origin (file and line, variable, option),
what was expected and, for a mistyped key, the nearest known one. A table of free keys (`options`) is closed
only in the type of its values. Not handled here: what the keys mean.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect as shapes

from swarm.settings.sections import PATTERNS

EXTENDS = "extends"
NAME = "NAME"
"""Stands for the name of a table that users name, such as an evaluation set, in keys of a Schema."""

PREFIX = "SWARM__"

_NEARLY = ("SWARM_RUN_", "SWARM_PEER_")
"""Prefixes of variables that look like mistyped settings; SWARM_WORD and others are none."""


class ConfigError(Exception):
    """A setting that cannot be used; the message has its name, its origin and a remedy."""


class Setting(NamedTuple):
    """A value and where it was set."""

    value: Any
    origin: str
    """Where it was set: `FILE line N`, `environment variable NAME` or `--set KEY`."""


Layer = dict[str, Setting]
"""Dotted key -> value and where it was set."""


class Schema:
    """The keys of a tree of structs. `halves` are its top tables; a table of exactly one of them may be named
    without it. In a table of `named` there are tables with names of users, all with the same keys."""

    def __init__(self, root: type[msgspec.Struct], meant: Mapping[str, str] = {}) -> None:
        """`meant`: last part of another program's name for a key -> the key."""
        self._meant = meant
        self.keys: dict[str, msgspec.structs.FieldInfo] = {}
        self.tables: dict[str, type[msgspec.Struct]] = {"": root}
        self.named: dict[str, Any] = {}
        """Table -> type of the names in it."""
        self._walk(root, "")
        self._short: dict[str, str] = {}
        inner = [table for table in self.tables if table.count(".") == 1]
        for table in inner:
            name = table.split(".")[1]
            if name not in self.tables and sum(other.endswith("." + name) for other in inner) == 1:
                self._short[name] = table

    def _walk(self, kind: type[msgspec.Struct], table: str) -> None:
        for field in msgspec.structs.fields(kind):
            path = f"{table}.{field.name}" if table else field.name
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                self.tables[path] = field.type
                self._walk(field.type, path)
            elif (each := _sections(field.type)) is not None:
                self.named[path], kind_of_each = each
                self.tables[path] = self.tables[f"{path}.{NAME}"] = kind_of_each
                self._walk(kind_of_each, f"{path}.{NAME}")
            else:
                self.keys[path] = field

    def general(self, key: str) -> str | None:
        """The key as `keys` and `tables` have it: `run.evaluation.sets.hard.name` ->
        `run.evaluation.sets.NAME.name`; None where the name cannot be one."""
        table, name, rest = self._in_named(key)
        if not name:
            return key
        return f"{table}.{NAME}{rest}" if _fits(name, self.named[table]) else None

    def _in_named(self, key: str) -> tuple[str, str, str]:
        """(table, name in it, rest with its dot) of a key in a table of `named`; else empty ones."""
        for table in self.named:
            if key.startswith(f"{table}."):
                name, dot, rest = key.removeprefix(f"{table}.").partition(".")
                return table, name, dot + rest
        return "", "", ""

    def full(self, key: str) -> str:
        """The full name of a key: `objective.name` -> `run.objective.name`."""
        first, dot, rest = key.partition(".")
        return self._short.get(first, first) + dot + rest

    def kind(self, key: str) -> Any | None:
        """Type of a key, of the values when its parent is a table of free keys; None when there is no such
        key."""
        general = self.general(key) or ""
        if general in self.keys:
            return self.keys[general].type
        parent = general.rpartition(".")[0]
        return self.keys[parent].type.__args__[1] if parent in self.keys and self.is_free(parent) else None

    def is_free(self, key: str) -> bool:
        """Whether a key is a table with keys of any name (`options`)."""
        return isinstance(shapes.type_info(self._field(key).type), shapes.DictType)

    def _field(self, key: str) -> msgspec.structs.FieldInfo:
        return self.keys[key if key in self.keys else self.general(key) or key]

    def default(self, key: str) -> Any:
        """The default of a key, or of a table of `named`."""
        if key in self.named:
            return {}
        field = self._field(key)
        return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()

    def flatten(self, tree: Mapping[str, Any], origin: _Origin, table: str = "") -> Iterator[tuple[str, Any]]:
        """(dotted key, value) of a parsed file. Raises ConfigError for a key that does not exist."""
        for name, value in tree.items():
            key = f"{table}.{name}" if table else self.full(name)
            general = self.general(key)
            if general in self.keys and self.is_free(key) and isinstance(value, dict):
                for option, inner in value.items():
                    if "." in option:
                        where = origin.of(f"{key}.{option}")
                        raise ConfigError(
                            f'{where}: the name "{option}" in {key} has a dot: write one without'
                        )
                    yield f"{key}.{option}", inner
            elif general in self.keys:
                yield key, value
            elif general not in self.tables:
                lies = [] if table else [of for of in self.called(key) if of.count(".") == 1]
                if len(lies) == 1:
                    half = lies[0].partition(".")[0]
                    raise ConfigError(f"{origin.of(key)}: {key} is in no table: write it under [{half}]")
                raise ConfigError(f"{origin.of(key)}: {self.unknown(key)}")
            elif isinstance(value, dict) and (value or table not in self.named):
                yield from self.flatten(value, origin, key)
            else:
                raise ConfigError(f"{origin.of(key)}: {self.not_a_key(key)}")

    def not_a_key(self, table: str) -> str:
        """A sentence about a table that was set like a value, or has none."""
        keys = (key for key in self.keys if key.startswith(f"{self.general(table)}."))
        example = self._own(table, next(keys, f"{table}.NAME"))
        return f"{table} is a table, not a value: set a key in it, such as {example}"

    def _own(self, key: str, text: str) -> str:
        """A text about `key` with the name that is in it."""
        table, name, _ = self._in_named(key)
        return text.replace(f"{table}.{NAME}", f"{table}.{name}") if name else text

    def called(self, name: str, nearly: bool = False) -> list[str]:
        """Keys of this name, in full or by their last part, or with this name in other programs; those of the
        `nearly` same last part where there is none."""
        name = name.lower().replace("-", "_")
        last = name.rpartition(".")[2]
        if (full := self.full(name)) in self.keys and not self.is_free(full):
            return [full]
        settable = [key for key in self.keys if not self.is_free(key) and not self._in_named(key)[0]]
        words = {key.rpartition(".")[2] for key in settable} | set(self._meant)
        if nearly:
            last = next(iter(difflib.get_close_matches(last, words, 1, 0.8)), last)
        found = [key for key in settable if key.rpartition(".")[2] == last]
        meant = self._meant.get(last, "")
        return found or [f"{meant}.{last}" if self.is_free(meant) else meant] if found or meant else []

    def unknown(self, key: str) -> str:
        """A sentence about a key that does not exist, with the nearest one that does."""
        table, own, _ = self._in_named(key)
        if (general := self.general(key)) is None:
            return f"{key}: the name in {table} has to be {describe(self.named[table])}"
        known = [name for name in (*self.keys, *self.tables) if name and (own or not self._in_named(name)[0])]
        return self._own(key, self._unknown(key, general, known))

    def _unknown(self, key: str, general: str, known: Sequence[str]) -> str:
        parent, _, word = general.rpartition(".")
        siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == parent}
        anywhere = {name.rpartition(".")[2]: name for name in known}
        in_full = {name: name for name in known}
        anywhere |= {name: key for name, key in self._meant.items() if name not in anywhere}
        word = word if word in anywhere else word.lower().replace("-", "_")
        if word in anywhere:  # the right word in the wrong table is no typing error
            same = [name for name in known if name.rpartition(".")[2] == word] or [anywhere[word]]
            highest = min(name.count(".") for name in same)
            meant = " or ".join(name for name in same if name.count(".") == highest)
            return f"there is no key {key}; did you mean {meant}?"
        for names in (siblings, anywhere, in_full):
            if near := difflib.get_close_matches(word, names):
                return f"there is no key {key}; did you mean {names[near[0]]}?"
        tail = f"; known there: {', '.join(siblings)}" if siblings else ""
        return f"there is no key {key}{tail} (`swarm config schema` lists all)"


class _Origin(NamedTuple):
    """Finds the line of a key in a TOML file."""

    name: str
    lines: Sequence[str]
    schema: Schema

    def of(self, key: str) -> str:
        table = ""
        best, best_line = 0, 0
        for number, line in enumerate(self.lines, 1):
            text = line.partition("#")[0].strip()
            if text.startswith("["):
                table = self.schema.full(_bare(text))
                here = table
            elif "=" in text:
                word = _bare(text.partition("=")[0])
                here = f"{table}.{word}" if table else self.schema.full(word)
            else:
                continue
            # The key itself or something in it, else the nearest table above it that has a line.
            related = f"{here}.".startswith(f"{key}.") or f"{key}.".startswith(f"{here}.")
            if related and (length := min(len(here), len(key))) > best:
                best, best_line = length, number
        return f"{self.name} line {best_line}" if best_line else self.name


def _bare(key: str) -> str:
    """A key as TOML may write it -> its parts between dots."""
    return re.sub(r"""[][\s"']""", "", key)


def from_file(
    schema: Schema, path: Path, seen: tuple[Path, ...] = (), ships: Sequence[Path] = ()
) -> list[Layer]:
    """The file's layer, after those of the files that it extends: each is beside the one that names it, else,
    where it is a bare name, in one of the folders `ships`."""
    if path.resolve() in seen:
        raise ConfigError(f"{path} extends itself, by way of {' -> '.join(str(step.name) for step in seen)}")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark first
        tree = tomllib.loads(text)
    except OSError as error:
        whose = f", which {seen[-1].name} extends" if seen else ""
        raise ConfigError(f"cannot read {path}{whose}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        kind = "" if path.suffix == ".toml" else "; settings are TOML (`swarm config schema` lists them)"
        raise ConfigError(f"{path} is not TOML: {error}{kind}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply: write fewer brackets in each other") from error
    origin = _Origin(str(path), text.splitlines(), schema)
    base = tree.pop(EXTENDS, None)
    below: list[Layer] = []
    if base is not None:
        if not isinstance(base, str):
            raise ConfigError(f"{origin.of(EXTENDS)}: extends is the name of one file, found {_found(base)}")
        below = from_file(schema, _extended(path, base, ships), (*seen, path.resolve()), ships)
    return [*below, {key: Setting(value, origin.of(key)) for key, value in schema.flatten(tree, origin)}]


def _extended(path: Path, base: str, ships: Sequence[Path]) -> Path:
    """The file that the one at `path` extends."""
    names = [base, *([] if base.endswith(".toml") else [f"{base}.toml"])]
    beside = [path.parent / name for name in names]
    shipped = [folder / names[-1] for folder in ships] if len(Path(base).parts) == 1 else []
    others = [file for file in (*beside, *shipped) if file.is_file() and file.resolve() != path.resolve()]
    if others or not shipped or any(file.exists() for file in beside):
        return [*others, *(file for file in beside if file.exists()), beside[0]][0]
    ours = sorted({file.stem for folder in ships for file in folder.glob("*.toml")})
    raise ConfigError(
        f"cannot read {beside[0]}, which {path.name} extends: No such file; name one beside it, or settings"
        f" that ship: {', '.join(ours)}"
    )


def from_environment(schema: Schema, environ: Mapping[str, str]) -> Layer:
    """`SWARM__RUN__SEED=3`. Every variable with that prefix must name a key, and none may name one by single
    underscores, which would be ignored."""
    meant = {f"SWARM_{key.replace('.', '_').upper()}": key for key in schema.keys}
    for name in sorted(environ):
        if name.startswith(PREFIX):
            continue
        spelt = re.sub("_+", "_", name.upper())
        if near := difflib.get_close_matches(spelt, meant, 1, 0.9) if spelt.startswith(_NEARLY) else ():
            right = PREFIX + meant[near[0]].replace(".", "__").upper()
            raise ConfigError(f"environment variable {name} sets nothing: did you mean {right}?")
    return dict(
        _setting(
            schema, name.removeprefix(PREFIX).lower().replace("__", "."), text, f"environment variable {name}"
        )
        for name, text in sorted(environ.items())
        if name.startswith(PREFIX)
    )


def from_arguments(schema: Schema, arguments: Sequence[str]) -> Layer:
    """`run.seed=3`, as given to `--set`."""
    layer: Layer = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not (equals and key.strip()):
            raise ConfigError(f"--set {argument}: expected KEY=VALUE, such as --set run.seed=3")
        layer.update([_setting(schema, key.strip(), text.strip(), f"--set {key.strip()}")])
    return layer


def from_options(schema: Schema, options: Mapping[str, tuple[str, str]]) -> Layer:
    """Key -> an option that is short for it, and its value."""
    return dict(_setting(schema, key, text, option) for key, (option, text) in options.items())


def _setting(schema: Schema, key: str, text: str, origin: str) -> tuple[str, Setting]:
    key = schema.full(key)
    kind, general = schema.kind(key), schema.general(key)
    is_table = general in schema.tables
    if kind is None or (general in schema.keys and schema.is_free(key)):
        raise ConfigError(f"{origin}: {schema.not_a_key(key) if kind or is_table else schema.unknown(key)}")
    return key, Setting(_parse(kind, text), origin)


def _parse(kind: Any, text: str) -> Any:
    """Parse a command-line word: text needs no quotes, everything else is parsed as TOML."""
    shape = shapes.type_info(kind)
    if isinstance(shape, shapes.StrType | shapes.LiteralType):
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    try:
        parsed = tomllib.loads(f"value = {text}")
        if set(parsed) == {"value"}:
            return parsed["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    return (
        [part.strip() for part in text.split(",") if part.strip()]
        if isinstance(shape, shapes.VarTupleType)
        else text
    )


def fold(schema: Schema, layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Layers, weakest first -> (nested tree without the defaults, origin of every key). Raises ConfigError on
    a wrong value."""
    top: Layer = {}
    for layer in layers:
        top.update(layer)
    tree: dict[str, Any] = {}
    for key, setting in top.items():
        _check(schema, key, setting)
        *tables, last = key.split(".")
        here = tree
        for table in tables:
            here = here.setdefault(table, {})
        here[last] = setting.value
    named = tuple(f"{table}." for table in schema.named)
    origins = {key: "default" for key in schema.keys if not (schema.is_free(key) or key.startswith(named))}
    return tree, origins | {key: setting.origin for key, setting in top.items()}


def _sections(kind: Any) -> tuple[Any, type[msgspec.Struct]] | None:
    """(type of the names, type of each) of a field that is a table of tables."""
    names, each = [*getattr(kind, "__args__", ()), None, None][:2]
    return (names, each) if isinstance(each, type) and issubclass(each, msgspec.Struct) else None


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _check(schema: Schema, key: str, setting: Setting) -> None:
    kind = schema.kind(key)
    if _fits(setting.value, kind) and _fits_a_spec(setting.value):
        return
    raise ConfigError(f"{setting.origin}: {key} wants {describe(kind)}, found {_found(setting.value)}")


def _fits_a_spec(value: Any) -> bool:
    """Whether there is no NaN and no infinity, which TOML has, in a value, and no whole number of more than
    64 bits, which no spec holds."""
    if isinstance(value, list):
        return all(map(_fits_a_spec, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return not isinstance(value, float) or math.isfinite(value)


def describe(kind: Any) -> str:
    """The values that a key accepts, in words: `a whole number of at least 1`."""
    shape = shapes.type_info(kind)
    match shape:
        case shapes.LiteralType():
            return "one of " + ", ".join(str(value) for value in shape.values)
        case shapes.BoolType():
            return "true or false"
        case shapes.StrType():
            empty = " that is not empty" if shape.min_length else ""
            return "a text" + (f" of {PATTERNS[shape.pattern]}" if shape.pattern else empty)
        case shapes.IntType():
            return "a whole number" + _bounds(shape)
        case shapes.FloatType():
            return "a number" + _bounds(shape)
        case shapes.VarTupleType():
            return "a list of " + ("texts" if isinstance(shape.item_type, shapes.StrType) else "numbers")
        case shapes.DictType():
            return "a table"
        case _:
            return "a number, a text, true or false"


def _bounds(shape: shapes.IntType | shapes.FloatType) -> str:
    words = (("of at least", shape.ge), ("above", shape.gt), ("at most", shape.le), ("below", shape.lt))
    limits = [f"{word} {bound:g}" for word, bound in words if bound is not None]
    return " " + " and ".join(limits) if limits else ""


def _found(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'the text "{value}"'
        case dict():
            return "a table"
        case list():
            return f"the list {value}"
        case int() if not _fits_a_spec(value):
            return f"{value}, which has more than 64 bits"
        case _:
            return str(value)
