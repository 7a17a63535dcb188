"""Averaging in memory: the port's contract, and how rounds break."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import averager_properties
import torch

from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Average, RoundLost
from swarm.settings.config import BatchSize, DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks


def with_peers(promise: Callable[..., Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.5), 1e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            await promise(network, links, *(network.ports(name, lambda kind: 0.0) for name in "abc"))

    run(main())


def test_members_end_with_the_same_weighted_mean() -> None:
    with_peers(
        lambda network, links, *peers: averager_properties.members_end_with_the_same_weighted_mean(peers)
    )


def test_of_two_members_with_one_group_one_counts() -> None:
    promise = averager_properties.of_two_members_with_one_group_one_counts
    with_peers(lambda network, links, a, b, c: promise([a, b]))


def test_who_has_no_gradient_gets_the_mean_of_the_others() -> None:
    promise = averager_properties.who_has_no_gradient_gets_the_mean_of_the_others
    with_peers(lambda network, links, *peers: promise(peers))


def test_of_nobodys_gradients_there_is_no_mean() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        outcomes, _ = await averager_properties.meet([a, b], 1, [0, 0], [0, 0])
        assert all(isinstance(outcome, RoundLost) for outcome in outcomes)

    with_peers(promise)


def test_alone_there_is_no_average() -> None:
    with_peers(lambda network, links, a, b, c: averager_properties.alone_there_is_no_average(a, b.me))


def test_other_versions_never_meet() -> None:
    with_peers(lambda network, links, a, b, c: averager_properties.other_versions_never_meet(a, b))


def test_a_gradient_far_beyond_the_others_counts_for_little_and_is_named_by_all() -> None:
    promise = averager_properties.a_gradient_far_beyond_the_others_counts_for_little_and_is_named_by_all
    with_peers(lambda network, links, *peers: promise(peers))


def test_a_weight_beyond_the_batch_counts_as_a_share_of_it() -> None:
    promise = averager_properties.a_weight_beyond_the_batch_counts_as_a_share_of_it
    with_peers(lambda network, links, *peers: promise(peers, BatchSize().groups))


def test_a_member_that_most_others_name_does_not_count() -> None:
    promise = averager_properties.a_member_that_most_others_name_does_not_count
    with_peers(lambda network, links, *peers: promise(peers))


def test_who_is_not_finite_is_not_met_and_the_others_go_on() -> None:
    with_peers(
        lambda network, links, *peers: averager_properties.who_is_not_finite_is_not_met_and_the_others_go_on(
            peers
        )
    )


def test_a_full_group_starts_at_once() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        outcomes, _ = await averager_properties.meet([a, b, c], 1, [1, 2, 3], [1, 1, 1])
        assert all(outcome.seconds < 1.5 for outcome in outcomes)

    with_peers(promise)


def test_whoever_came_is_averaged_when_somebody_stays_away() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        x, y = torch.zeros(2), torch.ones(2)
        outcomes = await asyncio.gather(
            a.averager.average(1, [x], 1.0, [b.me, c.me], 20),
            b.averager.average(1, [y], 1.0, [a.me, c.me], 20),
        )
        assert [outcome.members for outcome in outcomes] == [{"a", "b"}] * 2
        assert x.tolist() == y.tolist() == [0.5, 0.5]

    with_peers(promise)


def test_the_first_window_that_ends_begins_the_round() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        async def late(seconds: float) -> Any:
            await asyncio.sleep(seconds)
            return await c.averager.average(1, [torch.ones(2)], 1.0, [a.me, b.me], 20)

        for patience, seconds, members in ((5.0, 4.0, {"a", "b", "c"}), (1.0, 4.0, {"a", "b"})):
            outcomes = await asyncio.gather(
                a.averager.average(1, [torch.ones(2)], 1.0, [b.me, c.me], 20, patience=9.0),
                b.averager.average(1, [torch.ones(2)], 1.0, [a.me, c.me], 20, patience=patience),
                late(seconds),
            )
            assert outcomes[0] is not None and outcomes[0].members == members

    with_peers(promise)


def test_who_is_gone_is_waited_for_no_longer() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        async def gone(peer: Any, seconds: float) -> None:
            await asyncio.sleep(seconds)
            peer.averager.gone([c.me])

        def average(peer: Any, other: Any) -> Any:
            return peer.averager.average(1, [torch.ones(2)], 1.0, [other.me, c.me], 90, patience=60.0)

        both = average(a, b), average(b, a)
        one, other, *_ = await asyncio.gather(*both, gone(a, 3.0), gone(b, 4.0))
        assert one.members == other.members == {"a", "b"} and 4.0 < one.seconds < 6.0
        alone, _ = await asyncio.gather(
            a.averager.average(2, [torch.ones(2)], 1.0, [c.me], 90, patience=60.0), gone(a, 1.0)
        )
        assert alone is None and asyncio.get_running_loop().time() < 10.0

    with_peers(promise)


def test_a_peer_that_is_not_expected_is_not_averaged_with() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        x, y = torch.zeros(2), torch.ones(2)
        outcomes = await asyncio.gather(
            a.averager.average(1, [x], 1.0, [c.me], 20), b.averager.average(1, [y], 1.0, [a.me], 20)
        )
        assert outcomes == [None, None]

    with_peers(promise)


def lost_in_the_middle(lose: Callable[[Any, Any], None]) -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        asyncio.get_running_loop().call_later(0.3, lose, network, links)
        outcomes, tensors = await averager_properties.meet([a, b, c], 1, [1, 2, 3], [1, 1, 1])
        assert all(isinstance(outcome, RoundLost) for outcome in outcomes[:2])
        assert [tensor[0].item() for tensor in tensors] == [1, 2, 3]

    with_peers(promise)


def test_a_member_that_crashes_in_the_middle_loses_the_round_for_all_and_changes_nothing() -> None:
    lost_in_the_middle(lambda network, links: network.crash("c"))


def test_a_link_that_is_cut_in_the_middle_loses_the_round_for_all_and_changes_nothing() -> None:
    lost_in_the_middle(lambda network, links: links.partition(["c"], ["a"]))


def test_the_deadline_always_holds() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        since = asyncio.get_running_loop().time()
        outcomes, _ = await averager_properties.meet([a, b, c], 1, [1, 2, 3], [1, 1, 1], deadline=0.4)
        assert all(isinstance(outcome, RoundLost) for outcome in outcomes)
        assert asyncio.get_running_loop().time() - since < 0.5

    with_peers(promise)


def test_after_a_lost_round_the_survivors_can_meet_again() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        asyncio.get_running_loop().call_later(0.3, network.crash, "c")
        await averager_properties.meet([a, b, c], 1, [1, 2, 3], [1, 1, 1])
        outcomes, tensors = await averager_properties.meet([a, b], 1, [1, 3], [1, 1])
        assert all(isinstance(outcome, Average) for outcome in outcomes)
        assert tensors[0][0].item() == 2

    with_peers(promise)


def test_one_that_hands_out_something_else_reduces_nothing_after_some_rounds_and_all_name_it() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        c.averager.hand_out(lambda to, mean: -mean)
        generator, rounds = torch.Generator().manual_seed(1), list[tuple[list[Average], list[torch.Tensor]]]()
        for version in range(12):
            brought = [torch.randn(300, generator=generator) for _ in range(3)]
            tensors = [[one.clone()] for one in brought]
            members = zip((a, b, c), tensors, strict=True)
            calls = (
                one.averager.average(version, its, 1.0, [a.me, b.me, c.me], 60.0) for one, its in members
            )
            outcomes = await asyncio.gather(*calls)
            rounds.append((outcomes, [sum(brought) / 3, *(its[0] for its in tensors)]))
        (first, (mean, *has)), (last, (final, *then)) = rounds[0], rounds[-1]
        turned = torch.cat([mean[:200], -mean[200:]])
        assert all(torch.allclose(one, turned, atol=1e-6) for one in has)
        assert all(outcome.false == frozenset() for outcome in first)
        assert all(outcome.false == {c.me} for outcome in last)
        assert all(torch.allclose(one, final, atol=1e-6) for one in then)

    with_peers(promise)


def test_what_one_hands_to_a_single_member_only_that_one_has() -> None:
    async def promise(network: Any, links: Any, a: Any, b: Any, c: Any) -> None:
        c.averager.hand_out(lambda to, mean: mean * math.nan if to == a.me else mean)
        tensors = [[torch.ones(300)] for _ in "abc"]
        members = zip((a, b, c), tensors, strict=True)
        await asyncio.gather(
            *(one.averager.average(0, its, 1.0, [a.me, b.me, c.me], 60.0) for one, its in members)
        )
        assert tensors[0][0].tolist() == [1.0] * 200 + [0.0] * 100
        assert tensors[1][0].tolist() == tensors[2][0].tolist() == [1.0] * 300

    with_peers(promise)
