"""Nouns of the wire as bytes: a sample of each, made of its type alone, in two forms.

    least   the fields without which it is refused        whole   all of its fields

`python tests/support/wire_nouns.py` writes the samples of nouns that are new into the file of this PROTOCOL.
Those that stand there are never written again: they are what peers of the protocol's first version say.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect as types
from places import ROOT

from swarm import PROTOCOL, events
from swarm.frames.wire import Envelope
from swarm.protocol import KEYS, SERVICES, TOPICS

KEPT = Path(__file__).with_name(f"wire_of_protocol_{PROTOCOL}.json")
WITHIN = "Membership Delegation RevocationList SignedRevocations Evidence Announcement".split()
"""Signed, kept or exchanged as bytes inside of others."""


@cache
def nouns() -> Mapping[str, type]:
    """All that the tables of `swarm.protocol` name, the envelope around it, and events that are gossiped."""
    texts = [
        *(row.noun for row in (*TOPICS.values(), *KEYS.values())),
        *(text for row in SERVICES.values() for text in (row.question, row.answer)),
        *WITHIN,
    ]
    named = {word for text in texts for word in re.findall(r"\b[A-Z][A-Za-z]+\b", text)}
    found = {one.__name__: one for one in _structs(named) if one.__name__ in named}
    gossiped = {f"event {one.__name__}": one for one in get_args(events.Gossiped)}
    return dict(sorted({**found, **gossiped, "Envelope": Envelope}.items()))


def sample(kind: type, whole: bool) -> bytes:
    """msgpack of a noun of this type, which its own decoder takes."""
    data = msgspec.msgpack.encode(_made(types.type_info(kind), whole))
    msgspec.msgpack.decode(data, type=kind)
    return data


def _structs(named: Iterable[str]) -> Iterator[type]:
    """The nouns of these names, wherever they are defined."""
    defined = re.compile(rf"^class (?:{'|'.join(named)})\(", re.MULTILINE)
    for path in sorted(path for package in ("swarm", "peers") for path in (ROOT / package).rglob("*.py")):
        if defined.search(path.read_text(encoding="utf-8")):
            module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            here = (one for one in vars(module).values() if isinstance(one, type))
            yield from (
                one for one in here if issubclass(one, msgspec.Struct) and one.__module__ == module.__name__
            )


def _made(of: types.Type, whole: bool) -> Any:
    """A value of a type, as unlike a default as it may be: one that is the default need not be written."""
    match of:
        case types.StructType():
            wanted = [field for field in of.fields if whole or field.required]
            fields = {
                field.encode_name: field.default is not True and _made(field.type, whole) for field in wanted
            }
            tag = {} if of.tag_field is None else {of.tag_field: of.tag}
            return [*tag.values(), *fields.values()] if of.array_like else tag | fields
        case types.UnionType():
            return _made(next(one for one in of.types if not isinstance(one, types.NoneType)), whole)
        case types.DictType():
            return {_made(of.key_type, whole): _made(of.value_type, whole)}
        case types.TupleType():
            return [_made(one, whole) for one in of.item_types]
        case types.VarTupleType() | types.ListType() | types.SetType() | types.FrozenSetType():
            return [_made(of.item_type, whole)] * max(of.min_length or 0, 1)
    return _plain(of)


def _plain(of: types.Type) -> Any:
    match of:
        case types.IntType():
            return (of.ge or 0) + 3
        case types.FloatType():
            return float(of.ge or 0) + 0.5
        case types.StrType():
            return _text(of)
        case types.BytesType():
            return b"\x01" * (of.min_length or 1)
        case types.EnumType():
            return list(of.cls)[-1].value
        case types.LiteralType():
            return of.values[-1]
        case types.BoolType() | types.CustomType() | types.AnyType():
            return True
    raise TypeError(of)


def _text(of: types.StrType) -> str:
    choices = ("a", "a" * 64, "a" * 52, "run", "1", "")
    fits = [text for text in choices if of.pattern is None or re.search(of.pattern, text)]
    return max(fits, key=lambda text: (of.min_length or 0) <= len(text) <= (of.max_length or 1 << 30))


def kept() -> Mapping[str, Mapping[str, str]]:
    """Noun -> form -> its bytes in hexadecimal."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


if __name__ == "__main__":
    made = {
        name: {"least": sample(kind, False).hex(), "whole": sample(kind, True).hex()}
        for name, kind in nouns().items()
    }
    KEPT.write_text(json.dumps(made | dict(kept()), indent=1, sort_keys=True) + "\n")
