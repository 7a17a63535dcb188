"""The wire of a protocol stays as its first version wrote it: peers that are let in can read each other."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import wire_nouns

from swarm import PROTOCOL
from swarm.frames import wire

KEPT = wire_nouns.kept()
SAID = [(name, form) for name, forms in KEPT.items() for form in forms]


def test_the_bytes_of_every_noun_of_this_protocol_are_kept() -> None:
    assert sorted(wire_nouns.nouns()) == sorted(KEPT), (
        "a noun that is new: `python tests/support/wire_nouns.py` keeps its bytes; one that is gone or has"
        f" another name raises swarm.PROTOCOL, which is {PROTOCOL} and begins with bytes of its own"
    )


@pytest.mark.parametrize(("name", "form"), SAID)
def test_what_the_first_version_of_this_protocol_says_is_read_and_said_again(name: str, form: str) -> None:
    """Read: no field is required that it did not send, and none has another type. Said again: each field that
    it may need has its name and its value still."""
    first = bytes.fromhex(KEPT[name][form])
    noun = wire.decode(first, wire_nouns.nouns()[name])
    missing = lacks(msgspec.msgpack.decode(first), msgspec.msgpack.decode(wire.encode(noun)))
    assert not missing, (
        f"{name} is another one on the wire: raise swarm.PROTOCOL, or give the new field a default"
    )


def test_a_field_that_is_new_and_required_or_has_another_name_is_found() -> None:
    first = bytes.fromhex(KEPT["Receipt"]["whole"])
    fields = msgspec.msgpack.decode(first)
    renamed = msgspec.defstruct(
        "Receipt", [(name, Any, None) for name in fields if name not in ("type", "credit")]
    )
    assert lacks(fields, msgspec.to_builtins(msgspec.msgpack.decode(first, type=renamed))) == [
        "type",
        "credit",
    ]
    stricter = msgspec.defstruct("Receipt", [("wisdom", int)])
    with pytest.raises(wire.WireError, match="wisdom"):
        wire.decode(first, stricter)


def lacks(first: Any, again: Any) -> list[str]:
    """Names of fields of `first` that `again` has not, or with another value."""
    if isinstance(first, Mapping):
        return [name for name in first if name not in again or lacks(first[name], again[name])]
    if isinstance(first, list) and isinstance(again, list) and len(first) == len(again):
        return [name for pair in zip(first, again, strict=True) for name in lacks(*pair)]
    return [] if first == again else [f"{first!r}, now {again!r}"]
