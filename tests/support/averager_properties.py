"""The Averager port's contract as coroutines over any two or three Averagers: for the ports in memory and for
the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from swarm.net.ports import Average, NotFinite


async def meet(
    peers: Sequence[Any],
    version: int,
    values: Sequence[float],
    weights: Sequence[float],
    deadline: float = 30.0,
    marks: Sequence[bytes] = (),
) -> Any:
    """Everybody averages [value, 2 value, ...] with everybody; returns (outcomes, tensors)."""
    tensors = [torch.arange(1, 6, dtype=torch.float32) * value for value in values]
    calls = [
        peer.averager.average(
            version, [tensor], weight, [other.me for other in peers if other is not peer], deadline, its
        )
        for peer, tensor, weight, its in zip(
            peers, tensors, weights, marks or [b""] * len(peers), strict=True
        )
    ]
    return await asyncio.gather(*calls, return_exceptions=True), tensors


async def members_end_with_the_same_weighted_mean(peers: Sequence[Any]) -> None:
    values, weights = list(range(1, len(peers) + 1)), list(range(2, len(peers) + 2))
    outcomes, tensors = await meet(peers, 7, values, weights)
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    for outcome, tensor in zip(outcomes, tensors, strict=True):
        assert isinstance(outcome, Average) and outcome.members == {peer.me for peer in peers}
        assert outcome.exchanged.keys() < outcome.members and len(outcome.exchanged) == len(peers) - 1
        assert all(size > 0 for size in outcome.exchanged.values())
        torch.testing.assert_close(tensor, torch.arange(1, 6) * mean, rtol=1e-3, atol=1e-3)
        assert tensor.numpy().tobytes() == tensors[0].numpy().tobytes()


async def of_two_members_with_one_group_one_counts(peers: Sequence[Any]) -> None:
    outcomes, tensors = await meet(
        peers, 14, [1.0, 3.0], [1.0, 1.0], marks=[b"group..1", b"group..1group..2"]
    )
    (counts,) = outcomes[0].marks
    value = 1.0 if counts == peers[0].me else 3.0
    for outcome, tensor in zip(outcomes, tensors, strict=True):
        assert outcome.members == {peer.me for peer in peers} and outcome.marks.keys() == {counts}
        torch.testing.assert_close(tensor, torch.arange(1, 6) * value, rtol=1e-3, atol=1e-3)


async def who_has_no_gradient_gets_the_mean_of_the_others(peers: Sequence[Any]) -> None:
    rest = peers[1:]
    values, weights = [0.0, *range(1, len(peers))], [0.0, *range(2, len(peers) + 1)]
    marks = [b"", *(f"group.{k:02}".encode() for k in range(len(rest)))]
    outcomes, tensors = await meet(peers, 15, values, weights, marks=marks)
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    for outcome, tensor in zip(outcomes, tensors, strict=True):
        assert outcome.members == {peer.me for peer in peers}
        assert outcome.marks.keys() == {peer.me for peer in rest}
        torch.testing.assert_close(tensor, torch.arange(1, 6) * mean, rtol=1e-3, atol=1e-3)
        assert tensor.numpy().tobytes() == tensors[0].numpy().tobytes()


async def alone_there_is_no_average(peer: Any, stranger: Any) -> None:
    tensor = torch.ones(3)
    assert await peer.averager.average(8, [tensor], 1.0, [stranger], 20) is None
    assert tensor.tolist() == [1, 1, 1]


async def other_versions_never_meet(one: Any, two: Any) -> None:
    """Nor do other weights of one version."""
    mine, theirs = torch.ones(3), torch.zeros(3)
    for version, weights in ((10, "a"), (9, "b")):
        outcomes = await asyncio.gather(
            one.averager.average(9, [mine], 1.0, [two.me], 20, b"", "a"),
            two.averager.average(version, [theirs], 1.0, [one.me], 20, b"", weights),
        )
        assert outcomes == [None, None]
        assert mine.tolist() == [1, 1, 1] and theirs.tolist() == [0, 0, 0]


async def a_gradient_far_beyond_the_others_counts_for_little_and_is_named_by_all(
    peers: Sequence[Any],
) -> None:
    values = [1.0] * (len(peers) - 1) + [-1000.0]
    outcomes, tensors = await meet(peers, 11, values, [1.0] * len(peers))
    for outcome, tensor in zip(outcomes, tensors, strict=True):
        assert outcome.scaled.keys() == {peers[-1].me} and outcome.scaled[peers[-1].me] < 6 / 1000**2
        left = tensor / torch.arange(1, 6)
        assert (len(peers) - 1.01) / len(peers) < float(left.min()) <= float(left.max()) < 1.001
        assert tensor.numpy().tobytes() == tensors[0].numpy().tobytes()


async def a_weight_beyond_the_batch_counts_as_a_share_of_it(peers: Sequence[Any], groups: int) -> None:
    values = list(range(1, len(peers) + 1))
    _, tensors = await meet(
        peers, 12, values, [float(-(-groups // len(peers)))] * (len(peers) - 1) + [1000.0 * groups]
    )
    torch.testing.assert_close(
        tensors[0], torch.arange(1, 6) * sum(values) / len(values), rtol=1e-3, atol=1e-3
    )


async def who_is_not_finite_is_not_met_and_the_others_go_on(peers: Sequence[Any]) -> None:
    outcomes, tensors = await meet(peers, 13, [1.0] * (len(peers) - 1) + [float("nan")], [1.0] * len(peers))
    assert isinstance(outcomes[-1], NotFinite) and "not finite" in str(outcomes[-1])
    assert all(outcome.members == {peer.me for peer in peers[:-1]} for outcome in outcomes[:-1])
    assert tensors[0].tolist() == [1, 2, 3, 4, 5]


async def a_member_that_most_others_name_does_not_count(
    peers: Sequence[Any],
) -> None:
    liar, marks = peers[-1].me, [f"group..{k}".encode() for k in range(len(peers))]
    for naming in (1, len(peers) - 1):
        for peer in peers[:naming]:
            peer.averager.check([liar], 0)
        outcomes, tensors = await meet(
            peers, 20 + naming, [1.0] * (len(peers) - 1) + [-1.0], [1.0] * len(peers), marks=marks
        )
        counting = {peer.me for peer in peers} - ({liar} if naming > 1 else set())
        for outcome in outcomes:
            assert outcome.marks.keys() == counting and liar in outcome.members
            assert {by: {*its} for by, its in outcome.named.items()} == {
                liar: {peer.me for peer in peers[:naming]}
            }
        if naming == 1:  # it leaves it out of the means that it makes itself
            means = [(tensor / torch.arange(1.0, 6.0)).tolist() for tensor in tensors]
            assert {round(each, 3) for mean in means for each in mean} == {0.333, 1.0}
            assert means == [means[0]] * len(peers)
    for tensor in tensors:
        torch.testing.assert_close(tensor, torch.arange(1.0, 6.0), rtol=1e-3, atol=1e-3)
    for peer in peers:
        peer.averager.check([], 0)
