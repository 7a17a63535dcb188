"""Events: every one of them survives the journal, whatever happens to the file."""

from __future__ import annotations

import math
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm import events
from swarm.events import AnyEvent, Bus, Event, Noted, Trained
from swarm.journal import Journal, from_line, read_journal, to_line
from swarm.types import Count, Finite, PeerId, Root, Size

numbers = st.floats(-1e300, 1e300)
KINDS = get_args(AnyEvent)


def sample(kind: type) -> st.SearchStrategy:  # type: ignore[type-arg]
    """Instances of a struct, by its fields' types."""
    fields = {field.name: of(field.type) for field in msgspec.structs.fields(kind)}
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


def of(kind: object) -> st.SearchStrategy:  # type: ignore[type-arg]
    if kind == Finite:
        return numbers
    if kind == Root:
        return st.from_regex("[0-9a-f]{64}", fullmatch=True)
    if kind in (Count, Size):
        return st.integers(1, (1 << 63) - 1)
    if hasattr(kind, "__metadata__"):
        return within(kind.__origin__, *kind.__metadata__)  # type: ignore[attr-defined]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return sample(kind)
    if getattr(kind, "__origin__", None) is tuple:
        return st.lists(of(kind.__args__[0]), max_size=2).map(tuple)  # type: ignore[attr-defined]
    if getattr(kind, "__origin__", None) is dict:
        return st.dictionaries(of(kind.__args__[0]), of(kind.__args__[1]), max_size=3)  # type: ignore[attr-defined]
    if get_origin(kind) in (Union, UnionType):  # the second of classes alone
        return st.one_of([of(one) for one in get_args(kind)])
    if hasattr(kind, "__supertype__"):
        return of(kind.__supertype__)
    if kind is int:
        return st.integers(-(1 << 63), (1 << 63) - 1)
    return st.from_type(kind)  # type: ignore[arg-type]


def within(kind: type, bounds: msgspec.Meta) -> st.SearchStrategy:  # type: ignore[type-arg]
    if kind is int:
        return st.integers(bounds.ge, (1 << 63) - 1)  # type: ignore[arg-type]
    if kind is bytes:
        return st.binary(max_size=bounds.max_length)
    # 64 characters are the least that any text may have.
    return st.text(max_size=64) if kind is str else of(kind)


def note(text: str, at: float = 1.0) -> Noted:
    return Noted(at=at, peer=PeerId("me"), level="info", text=text)


def test_every_event_class_is_one_of_any_event() -> None:
    classes = {
        kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)
    } - {Event}
    assert classes == set(KINDS)
    assert set(events.GOSSIPED) < classes


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_event_comes_out_of_a_journal_line_as_it_went_in(kind: type) -> None:
    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(sample(kind))
    def check(event: Event) -> None:
        line = to_line(event)
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        assert from_line(line) == event

    check()


def bare_floats(kind: object) -> list[object]:
    """Where in a type a float is not Finite."""
    if kind is float:
        return [kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.name for field in msgspec.structs.fields(kind) if bare_floats(field.type)]
    return [] if kind == Finite else [inner for part in get_args(kind) for inner in bare_floats(part)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_number_of_an_event_has_to_be_finite(kind: type) -> None:
    """JSON writes NaN as null, which is not a number when it is read: such an event would end the journal
    there."""
    assert bare_floats(kind) == []


def test_a_peer_that_reports_a_number_that_is_none_is_not_believed() -> None:
    trained = Trained(
        at=1.0,
        peer=PeerId("liar"),
        version=1,
        groups=1,
        members=1,
        metrics={"kl": math.nan},
        gather=0,
        learn=0,
        average=0,
        step=0,
    )
    with pytest.raises(msgspec.ValidationError, match="metrics"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(trained), type=AnyEvent)


def test_a_journal_holds_what_was_emitted_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "journal")
    bus, seen = Bus(), []
    bus.add(journal)
    bus.add(seen.append)
    for k in range(5):
        bus.emit(note(str(k)))
    journal.close()
    journal.close()
    assert list(read_journal(journal.path)) == seen == [note(str(k)) for k in range(5)]


def test_a_torn_last_line_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = to_line(note("whole"))
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        assert list(read_journal(path)) == [note("whole")]


@pytest.mark.parametrize("torn", [b"", b"{", to_line(note("x" * 200_000))[:-1]])
def test_a_journal_goes_on_after_a_torn_line(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(to_line(note("before")) + torn)
    journal = Journal(path)
    journal(note("after"))
    journal.close()
    assert list(read_journal(path)) == [note("before"), note("after")]


def test_a_journal_that_is_torn_in_its_only_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"event":"no')
    journal = Journal(path)
    journal(note("first"))
    journal.close()
    assert list(read_journal(path)) == [note("first")]


def test_an_event_of_a_newer_program_is_no_event_here() -> None:
    with pytest.raises(msgspec.DecodeError):
        from_line(b'{"event":"teleported","at":1.0,"peer":"me"}\n')


NO_TEXT = b'{"event":"noted","level":"info","text":"\xff","at":1,"peer":"me"}\n'


@pytest.mark.parametrize("line", [NO_TEXT, b'{"event":' + b"[" * 99_999])
def test_a_line_that_python_itself_cannot_read_is_no_event_either(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_line(line)
