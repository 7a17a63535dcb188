"""Slots: what costs a stranger nothing keeps nobody out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.stream_slots import (
    BYTES,
    BYTES_OF_ONE,
    CALLS_OF_ONE,
    OTHER,
    STREAMS,
    STREAMS_OF_ONE,
    StreamPhase,
    StreamSeat,
    StreamSlots,
    deadline,
)
from swarm.limits import FRAME_LIMIT
from swarm.protocol import SERVICES
from swarm.types import PeerId

STRANGERS = [PeerId(f"stranger-{k}") for k in range(40)]
HONEST, MEMBER = PeerId("honest"), PeerId("member")


def slots() -> StreamSlots:
    return StreamSlots(lambda peer: peer == MEMBER)


def seat(table: StreamSlots, peer: PeerId, service: str = "groups", now: float = 0.0) -> StreamSeat:
    arrived, _ = table.arrive(peer, service, now)
    assert arrived is not None
    return arrived


def held(table: StreamSlots, peer: PeerId, size: int) -> StreamSeat:
    """A stream whose message of that size is on its way."""
    mine = seat(table, peer)
    assert table.announce(mine, size, 0.0) == []
    return mine


def call(table: StreamSlots, peer: PeerId, service: str = "groups") -> bool:
    """A stream, a whole message, and whether its handler runs."""
    mine = seat(table, peer, service)
    return table.announce(mine, 100, 0.0) is not None and table.begin(mine, 0.0)


def test_a_header_takes_no_call() -> None:
    table = slots()
    for peer in STRANGERS[:8]:
        for _ in range(STREAMS_OF_ONE):
            table.announce(seat(table, peer), 1 << 20, 0.0)
    assert table.statistics()["calls_in"] == 0
    assert call(table, HONEST)


def test_where_there_are_too_many_streams_the_peer_with_the_most_loses_its_oldest() -> None:
    table = slots()
    few = [seat(table, HONEST, now=0.0) for _ in range(4)]
    many = [seat(table, peer, now=1.0 + k) for k in range(STREAMS_OF_ONE) for peer in STRANGERS[:7]]
    filled = len(few) + len(many)
    more = [seat(table, STRANGERS[7], now=50.0) for _ in range(STREAMS - filled)]
    gone = [table.arrive(HONEST, "groups", 100.0)[1] for _ in range(8)]
    assert gone == many[:8]
    assert not set(few + more) & set(gone)


def test_a_peer_with_all_its_streams_open_pays_for_the_next_itself() -> None:
    table = slots()
    seat(table, HONEST)
    mine = [seat(table, STRANGERS[0], now=float(k)) for k in range(STREAMS_OF_ONE)]
    assert table.arrive(STRANGERS[0], "blobs", 100.0)[1] is mine[0]


def test_of_a_peers_streams_an_idle_one_gives_way_then_one_that_sends_then_one_that_is_answered() -> None:
    table, peer = slots(), STRANGERS[0]
    answered, sends, *more = [seat(table, peer, now=float(k)) for k in range(STREAMS_OF_ONE)]
    for one in (answered, sends, *more[1:]):
        table.announce(one, 100, 50.0)
    table.begin(answered, 50.0)
    table.answer(answered, 50.0)
    idle = more[0]
    for now, gone in ((60.0, idle), (61.0, sends)):
        arrived, gave_way = table.arrive(peer, "groups", now)
        assert gave_way is gone and arrived is not None
        table.announce(arrived, 100, now)


def test_a_stream_is_as_old_as_what_it_does() -> None:
    table, peer = slots(), STRANGERS[0]
    rests, idle, *_ = [seat(table, peer, now=float(k)) for k in range(STREAMS_OF_ONE)]
    table.announce(rests, 100, 50.0)
    table.begin(rests, 51.0)
    table.answer(rests, 52.0)
    table.rest(rests, 53.0)
    assert table.arrive(peer, "groups", 60.0)[1] is idle


def test_where_all_streams_are_in_calls_there_is_no_seat() -> None:
    table = StreamSlots(lambda peer: True)
    callers = iter(STRANGERS[k] for k in range(STREAMS // CALLS_OF_ONE) for _ in range(CALLS_OF_ONE))
    for service in ("groups", "blobs", "states"):
        assert all(call(table, next(callers), service) for _ in range(SERVICES[service].calls))
    assert table.arrive(HONEST, "groups", 1.0) == (None, None)
    assert table.statistics()["streams_in"] == table.statistics()["calls_in"] == STREAMS


def test_a_regular_peer_is_the_last_to_give_way() -> None:
    table = slots()
    for _ in range(STREAMS_OF_ONE):
        seat(table, MEMBER)
    for peer in STRANGERS * 10:
        _, gone = table.arrive(peer, "groups", 1.0)
        assert gone is None or gone.peer != MEMBER


def test_a_call_that_runs_is_never_broken_off() -> None:
    table = slots()
    runs = [mine for _ in range(CALLS_OF_ONE) if table.begin(mine := seat(table, STRANGERS[0]), 0.0)]
    assert len(runs) == CALLS_OF_ONE
    for k in range(5 * STREAMS):
        _, gone = table.arrive(STRANGERS[k % 40], "groups", 1.0)
        assert gone not in runs


def test_what_a_stream_that_gave_way_still_says_is_refused_and_costs_nothing() -> None:
    table = slots()
    idle, coming = seat(table, STRANGERS[0]), seat(table, STRANGERS[0])
    table.announce(coming, 100, 0.0)
    for gone in (idle, coming):
        table.leave(gone)
    assert table.announce(idle, 100, 0.0) is None and not table.begin(coming, 0.0)
    for gone in (idle, coming):
        table.answer(gone, 0.0)
        table.rest(gone, 0.0)
        table.leave(gone)
    assert set(table.statistics().values()) == {0}


def test_a_service_that_is_full_keeps_no_other_one_out() -> None:
    table = slots()
    peers = iter(STRANGERS)
    while call(table, next(peers), "history"):
        pass
    assert (
        call(table, HONEST, "newest") and call(table, HONEST, "groups") and not call(table, HONEST, "history")
    )


def test_strangers_leave_half_of_a_services_calls_to_regular_peers() -> None:
    table = slots()
    ran = sum(call(table, peer, "spec") for peer in STRANGERS)
    assert ran == SERVICES["spec"].calls // 2
    assert sum(call(table, MEMBER, "spec") for _ in range(20)) == SERVICES["spec"].calls - ran


def test_an_ordinary_crowd_with_slow_rewards_is_not_told_busy() -> None:
    """Nine samplers with eight streams each, all of whose groups are being scored."""
    samplers = STRANGERS[:9]
    table = StreamSlots(lambda peer: peer in samplers)
    assert all(call(table, peer) for peer in samplers for _ in range(8))


def test_the_memory_of_half_sent_messages_is_taken_from_whoever_has_the_most() -> None:
    table = slots()
    for peer in STRANGERS[:8]:
        for _ in range(8):
            table.announce(seat(table, peer), FRAME_LIMIT, 0.0)
    assert table.statistics()["bytes_in"] == BYTES
    gone = table.announce(mine := seat(table, HONEST), FRAME_LIMIT, 1.0)
    assert gone is not None and [other.peer in STRANGERS for other in gone] == [True]
    assert table.statistics()["bytes_in"] == BYTES and mine.size == FRAME_LIMIT


def test_a_regular_peers_half_sent_messages_are_kept_though_it_has_the_most() -> None:
    table = slots()
    for peer in (MEMBER, *STRANGERS[:4]):
        for _ in range(8 if peer is MEMBER else 6):
            table.announce(seat(table, peer), FRAME_LIMIT, 0.0)
    assert table.statistics()["bytes_in"] == BYTES
    gone = table.announce(seat(table, HONEST), FRAME_LIMIT, 1.0)
    assert gone is not None and [other.peer in STRANGERS for other in gone] == [True]


def test_a_message_without_bytes_gives_way_to_nobody() -> None:
    table = slots()
    empty = held(table, STRANGERS[0], 0)
    for peer in STRANGERS[:4]:
        for _ in range(8):
            held(table, peer, FRAME_LIMIT)
    gone = table.announce(seat(table, HONEST), FRAME_LIMIT, 1.0)
    assert gone is not None and len(gone) == 1 and empty not in gone


def test_a_message_for_which_there_is_no_room_takes_nobody_elses() -> None:
    """Else streams that gave way would go on outside of the table: nobody is told to close them."""
    table, mebibyte = slots(), 1 << 20
    small, *_ = [held(table, STRANGERS[0], size * mebibyte) for size in (2, 3, 4, 4, 4, 4, 4, 4)]
    for peer, sizes in zip([*STRANGERS[1:5], HONEST], ([4] * 6, [4] * 6, [4] * 6, [3], [4] * 6), strict=True):
        for size in sizes:
            held(table, peer, size * mebibyte)
    before = table.statistics()
    assert before["bytes_in"] == BYTES
    mine = seat(table, HONEST)
    assert table.announce(mine, FRAME_LIMIT, 1.0) is None, "without the small one nobody holds more than it"
    table.leave(mine)
    assert table.statistics() == before and table.begin(small, 2.0)


def test_a_peer_that_would_have_the_most_is_told_to_wait() -> None:
    table = slots()
    mine = [seat(table, STRANGERS[0]) for _ in range(9)]
    told = [table.announce(one, FRAME_LIMIT, 0.0) for one in mine]
    assert told == [[]] * (BYTES_OF_ONE // FRAME_LIMIT) + [None]


def test_a_small_message_has_seconds_and_the_largest_a_minute() -> None:
    assert deadline(100) < 6
    assert 60 < deadline(FRAME_LIMIT) < 90


@pytest.mark.parametrize("service", [*SERVICES, "another"])
def test_one_peer_alone_never_fills_a_service(service: str) -> None:
    table = slots()
    ran = sum(call(table, STRANGERS[0], service) for _ in range(STREAMS_OF_ONE))
    assert ran <= min(CALLS_OF_ONE, SERVICES.get(service, OTHER).calls // 2)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11), st.integers(0, FRAME_LIMIT)), max_size=400))
def test_the_table_counts_right_whatever_comes_and_goes(steps: list[tuple[int, int, int]]) -> None:
    table, seats = slots(), []
    for what, who, size in steps:
        peer = [*STRANGERS[:10], HONEST, MEMBER][who]
        mine = [one for one in seats if one.peer == peer]
        if what <= 1:
            arrived, gone = table.arrive(peer, ["groups", "history"][what], 0.0)
            seats = [one for one in seats if one is not gone] + ([arrived] if arrived else [])
        elif mine and what == 2 and mine[-1].phase is StreamPhase.IDLE:
            gone_now = table.announce(mine[-1], size, 0.0) or []
            seats = [one for one in seats if one not in gone_now]
        elif mine and what == 3 and mine[-1].phase is StreamPhase.READING:
            table.begin(mine[-1], 0.0)
        elif mine and what == 4 and mine[-1].phase in (StreamPhase.READING, StreamPhase.CALLING):
            table.answer(mine[-1], 0.0)
        elif mine and what == 5 and mine[-1].phase is StreamPhase.ANSWERING:
            table.rest(mine[-1], 0.0)
        elif mine and what == 6:
            table.leave(mine[0])
            table.leave(mine[0])
            seats.remove(mine[0])
        told = table.statistics()
        assert told["streams_in"] == len(seats) <= STREAMS
        assert told["calls_in"] == sum(one.phase is StreamPhase.CALLING for one in seats)
        assert told["bytes_in"] == sum(one.size for one in seats) <= BYTES
    for one in seats:
        table.leave(one)
    assert set(table.statistics().values()) == {0}
