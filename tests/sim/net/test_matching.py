"""Matching among many, without a network and in virtual time: streams are generators, ids and delays are
drawn."""

import asyncio
import contextlib
import os

import msgspec
import pytest
from hivemind.p2p import PeerID
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.net.averaging.announcing import (
    Announcement,
    MatchError,
    false_reducers,
    lines_of,
    read_announcement,
    tag,
)
from swarm.net.averaging.matching import Matching
from swarm.sim.clock import run

WINDOW, GRACE = 0.6, 0.3


class Line:
    """Calls of one peer to another; nobody answers for one that is dead or only dials."""

    def __init__(self, world, asker, leader):
        self.world, self.asker, self.leader = world, asker, leader

    async def rpc_join_group(self, request):
        there = self.world.get(self.leader)
        if there is None or there.dial_only:
            raise OSError("nobody listens")
        return there.join(request, self.asker)


def met(starts, **how):
    return run(meet(starts, **how))


async def meet(starts, dial_only=(), dead=0, versions=None, invite=None, patience=0.0, told=None):
    """Groups (sets of numbers, smallest id first) or None, of peers that begin at `starts` seconds, and hear
    `told` seconds later that the dead are gone."""
    ids = sorted((PeerID(os.urandom(34)) for _ in range(len(starts) + dead)), key=PeerID.to_bytes)
    ids = ids[dead:] + ids[:dead]  # the dead ones are the smallest
    world = {}
    for number, me in enumerate(ids[: len(starts)]):
        world[me] = Matching(
            me, number in dial_only, b"schema", WINDOW, GRACE, lambda leader, me=me: Line(world, me, leader)
        )

    async def one(number):
        await asyncio.sleep(starts[number])
        guests = frozenset(ids[n] for n in (invite[number] if invite else range(len(ids))) if n != number)
        version = versions[number] if versions else 1
        invited = tuple(map(tag, (ids[number], *guests)))
        announced = Announcement(version, 1.0, 1.0, 0.0, number in dial_only, 0, invited)
        if told is not None:
            asyncio.get_running_loop().call_later(told, world[ids[number]].gone, ids[len(starts) :])
        group = await world[ids[number]].gather(announced, guests, patience)
        return group and (group.group_id, {ids.index(peer) for peer in group.peer_ids})

    return await asyncio.gather(*map(one, range(len(starts))))


def assert_one_group(outcome, members):
    assert len({outcome[number][0] for number in members}) == 1, outcome
    assert all(outcome[number][1] == set(members) for number in members), outcome


@settings(max_examples=12, deadline=None)
@given(starts=st.lists(st.floats(0, WINDOW / 3), min_size=2, max_size=6), dialler=st.integers(0, 5))
def test_all_that_match_at_the_same_time_meet_whatever_their_order(starts, dialler):
    assert_one_group(met(starts, dial_only={dialler}), range(len(starts)))


@pytest.mark.parametrize("dead", [1, 3])
def test_the_living_meet_when_the_smallest_are_dead(dead):
    assert_one_group(met([0, 0.1, 0.2], dead=dead), range(3))


@pytest.mark.parametrize(("living", "dead"), [(3, 1), (3, 3), (2, 1), (1, 2)])
def test_who_is_gone_is_waited_for_no_longer(living, dead):
    async def scene():
        outcome = await meet([0, 0.1, 0.2][:living], dead=dead, patience=60.0, told=0.4)
        return outcome, asyncio.get_running_loop().time()

    outcome, seconds = run(scene())
    assert seconds < 10.0
    if living > 1:
        assert_one_group(outcome, range(living))
    else:
        assert outcome == [None]


class Breaking(Line):
    """Breaks when the peer that it leads to dies."""

    async def rpc_join_group(self, request):
        return self.until_death(await super().rpc_join_group(request))

    async def until_death(self, replies):
        async with contextlib.aclosing(replies):
            while True:
                try:
                    async with asyncio.timeout_at(self.world["dies"]):
                        reply = await anext(replies)
                except TimeoutError:
                    raise OSError("the stream broke") from None
                except StopAsyncIteration:
                    return
                yield reply


def test_who_followed_a_leader_that_dies_asks_the_others_again():
    async def scene():
        ids = sorted((PeerID(os.urandom(34)) for _ in range(4)), key=PeerID.to_bytes)
        here, world = ids[:3], {"dies": asyncio.get_running_loop().time() + WINDOW / 3}
        for me in here:

            def line(leader, me=me):
                return (Breaking if leader == ids[0] else Line)(world, me, leader)

            world[me] = Matching(me, False, b"schema", WINDOW, GRACE, line)
        announced = Announcement(1, 1.0, 1.0, 0.0, False, 0, tuple(map(tag, ids)))
        first, *rest = (
            asyncio.create_task(world[me].gather(announced, frozenset(ids) - {me})) for me in here
        )
        await asyncio.sleep(WINDOW / 6)
        assert all(world[me]._leader == ids[0] for me in here[1:]), "they wait for the fourth"
        await asyncio.sleep(WINDOW / 6)
        first.cancel()
        del world[ids[0]]
        for group in await asyncio.gather(*rest):
            assert group is not None and set(group.peer_ids) == {*here[1:]}

    run(scene())


def test_two_that_only_dial_need_a_third():
    assert met([0, 0], dial_only={0, 1}) == [None, None]
    assert_one_group(met([0, 0, 0.1], dial_only={0, 1}), range(3))


def test_patient_ones_wait_beyond_the_window_for_a_late_one():
    late = [0, 0.1, WINDOW + 0.4]
    assert_one_group(met(late, patience=0.8), range(3))
    assert_one_group(met(late), range(2))


def test_versions_and_those_not_invited_stay_apart():
    assert met([0, 0], versions=[1, 2]) == [None, None]
    outcome = met([0, 0, 0], invite=[[1, 2], [1, 2], [1, 2]])
    assert outcome[0] is None
    assert_one_group(outcome, [1, 2])


@pytest.mark.parametrize("weight", [-1.0, -1e-9, float("nan"), float("inf"), 1e9])
def test_a_weight_that_is_no_number_of_groups_is_not_believed(weight):
    with pytest.raises(MatchError, match="weight"):
        read_announcement(msgspec.msgpack.encode(Announcement(1, weight, 1.0, 1.0, False, 0, ())))


@pytest.mark.parametrize("norm", [-1.0, float("nan"), float("inf"), 1e31])
def test_a_norm_that_no_gradient_has_is_not_believed(norm):
    for norms in ((norm, 1.0), (1.0, norm)):
        with pytest.raises(MatchError, match="norm"):
            read_announcement(msgspec.msgpack.encode(Announcement(1, 1.0, *norms, False, 0, ())))


def test_a_line_slower_than_nothing_is_not_believed():
    with pytest.raises(MatchError, match="cannot be read"):
        read_announcement(msgspec.msgpack.encode(Announcement(1, 1.0, 1.0, 1.0, False, -1, ())))


def test_an_announcement_deeper_than_any_stack_is_not_believed():
    with pytest.raises(MatchError, match="cannot be read"):
        read_announcement(b"\x81\xa1x" + b"\x91" * 16000)


def told(doubts, dial_only=()):
    ids = [PeerID(bytes([k]) * 34) for k in range(len(doubts))]
    one = Announcement(1, 1.0, 1.0, 1.0, False, 0, ())
    return ids, {
        ids[k]: msgspec.structs.replace(
            one, dial_only=k in dial_only, doubted=tuple(tag(ids[n]) for n in its)
        )
        for k, its in enumerate(doubts)
    }


@pytest.mark.parametrize(
    ("doubts", "false"),
    [
        ([[3], [3], [3], [0, 1, 2]], [3]),
        ([[3], [3], [], [0]], [3]),
        ([[3], [], [], [0, 1, 2]], []),
        ([[1], []], []),
    ],
    ids=["by all", "by most", "by one", "of two"],
)
def test_who_reduces_nothing_follows_from_what_all_members_announced(doubts, false):
    ids, group = told(doubts)
    assert list(false_reducers(group)) == [ids[k] for k in false]
    assert [line.dial_only for line in lines_of(group, false_reducers(group))] == [
        k in false for k in range(len(ids))
    ]


def test_who_alone_can_be_dialled_reduces_whatever_is_doubted():
    assert not false_reducers(told([[2], [2], []], dial_only=(0, 1))[1])
