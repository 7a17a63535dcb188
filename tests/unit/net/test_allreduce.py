"""The all-reduce itself among runners of one process: real parts and codecs, generators in place of
streams."""

import asyncio
import gc
import logging
import os
import threading
from types import SimpleNamespace

import pytest
import torch
from hivemind.p2p import PeerID, ServicerBase

from swarm.core.agreement.shares import AnnouncedLine, shares
from swarm.core.gradient_checks.norm_screening import AnnouncedNorm
from swarm.core.gradient_checks.step_recipe import Ingredient, MeanRecipe
from swarm.net.averaging import allreduce
from swarm.net.averaging.allreduce import Runner
from swarm.net.averaging.codec import SCALE, Codec
from swarm.net.averaging.recomputed_mean import mean_again
from swarm.net.averaging.weighted_mean import weighted_mean
from swarm.norm import norm

GROUP = b"group"


class Wired(Runner):
    """A runner that calls the others directly."""

    def __init__(self, world, me, **kwargs):
        self.world = world
        world[me] = self
        super().__init__(
            p2p=SimpleNamespace(peer_id=me), servicer_type=ServicerBase, prefix="", group_id=GROUP, **kwargs
        )

    def _get_peer_stub(self, peer):
        async def rpc_aggregate_part(stream):
            return self.world[peer].rpc_aggregate_part(stream, SimpleNamespace(remote_id=self.peer_id))

        return SimpleNamespace(rpc_aggregate_part=rpc_aggregate_part)


def reduced(tensors, weights=None, codec="float16", announced=None, kinds=None, groups=1000, lines=None):
    """(what each member ends with, its runner): the means, or the exception that it got. `announced`: norms
    that are not true; `lines`: by default unknown ones."""
    ids = sorted((PeerID(os.urandom(34)) for _ in tensors), key=PeerID.to_bytes)
    norms = announced or [norm(tensor) for tensor in tensors]
    claims = {
        me: AnnouncedNorm(weight, size, 0.0)
        for me, weight, size in zip(ids, weights or [1.0] * len(ids), norms, strict=True)
    }

    buffers = [tensor.clone() for tensor in tensors]

    async def meet():
        world = {}
        for me, buffer, kind in zip(ids, buffers, kinds or [Wired] * len(ids), strict=True):
            kind(
                world,
                me,
                claims=claims,
                groups=groups,
                codec=Codec(codec),
                tensors=[buffer],
                ordered_peer_ids=ids,
                peer_fractions=tuple(shares(lines or [AnnouncedLine()] * len(ids))),
                sender_timeout=2.0,
                reducer_timeout=4.0,
                part_size_bytes=1 << 14,
            )
        return (
            await asyncio.gather(*(runner.reduce() for runner in world.values()), return_exceptions=True),
            world,
        )

    ends, world = asyncio.run(meet())
    return [
        (end or buffer, runner) for end, buffer, runner in zip(ends, buffers, world.values(), strict=True)
    ]


def the_one(results):
    """The means, which are the same bytes at all members."""
    means = [mean for mean, _ in results]
    assert all(isinstance(mean, torch.Tensor) for mean in means), means
    assert len({mean.numpy().tobytes() for mean in means}) == 1
    return means[0]


def draws(count, numel=100_001):
    torch.manual_seed(1)
    return [torch.randn(numel) for _ in range(count)]


@pytest.mark.parametrize(("codec", "error"), [("float16", 2e-3), ("none", 2e-3), ("int8", 0.1)])
def test_the_reducer_of_a_part_ends_with_the_bytes_that_it_sent(codec, error):
    one, two, three = draws(3)
    results = reduced([one, two, three], [1.0, 2.0, 5.0], codec)
    torch.testing.assert_close(the_one(results), (one + 2 * two + 5 * three) / 8, rtol=error, atol=error)
    assert all(not runner.scaled() for _, runner in results)


@pytest.mark.parametrize("numel", [5, 100_001, 1_000_003])
@pytest.mark.parametrize("mbit", [(5, 20, 20, 20), (30, 35, 40), (20, 5, 100), (5, 100)])
def test_a_slow_member_sends_its_own_parts_and_fast_ones_the_means(mbit, numel):
    one, two = draws(2, numel)
    tensors = [one, two, (one + two) / 2, (one + two) / 2][: len(mbit)]
    lines = [AnnouncedLine(125_000 * rate) for rate in mbit]
    results = reduced(tensors, lines=lines, codec="none")
    torch.testing.assert_close(the_one(results), sum(tensors) / len(tensors), rtol=1e-5, atol=1e-5)
    parts, total = shares(lines), sum(shares(lines))
    for line, part, (_, runner) in zip(lines, parts, results, strict=True):
        mine = sum(part.numel() for part in runner._parts[runner.ordered_peer_ids.index(runner.peer_id)])
        assert mine == pytest.approx(numel * part / total, abs=1 << 12), line


def test_a_mean_is_encoded_once_for_all_members(monkeypatch):
    encoded = []
    encode = Codec.as_sent
    monkeypatch.setattr(Codec, "as_sent", lambda *mean: encoded.append(1) or encode(*mean))
    results = reduced(draws(4))
    the_one(results)
    assert len(encoded) == sum(runner.tensor_part_reducer.num_parts for _, runner in results) > 4


def test_a_good_round_warns_of_nothing(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hivemind"), "handlers", [caplog.handler])
    the_one(reduced(draws(3)))
    gc.collect()  # hivemind's objects warn when they go
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_gradients_that_float16_cannot_hold_are_averaged(scale):
    one, two = draws(2)
    mean = the_one(reduced([one * scale, two * scale])) / scale
    torch.testing.assert_close(mean, (one + two) / 2, rtol=2e-3, atol=2e-3)


def test_one_far_gradient_counts_for_little_and_is_named_by_all():
    tensors = draws(4)
    tensors[2] *= -1000
    results = reduced(tensors)
    tensors[2] *= 0
    torch.testing.assert_close(the_one(results), sum(tensors) / 4, rtol=2e-2, atol=2e-2)
    for _, runner in results:
        assert runner.scaled() == {str(runner.ordered_peer_ids[2]): pytest.approx(5e-6, rel=0.02)}


def test_what_is_not_finite_counts_as_zeros_and_its_sender_is_named():
    class Broken(Wired):
        """Sends parts that are not finite."""

        async def _generate_input_for_peer(self, index):
            async for message in super()._generate_input_for_peer(index):
                values = self._codec.extract(message.tensor_part).numel()
                message.tensor_part.buffer = SCALE.pack(1.0) + b"\xff\x7f" * values
                yield message

    tensors = draws(4)
    results = reduced(tensors, kinds=[Wired, Wired, Broken, Wired])
    fair = [result for k, result in enumerate(results) if k != 2]
    assert torch.isfinite(the_one(fair)).all()
    assert all(runner.scaled() == {str(runner.ordered_peer_ids[2]): 0.0} for _, runner in fair)


def test_parts_beyond_what_was_announced_are_held_to_it_and_break_no_round():
    tensors = draws(4)
    honest = norm(tensors[0])
    tensors[2] *= -1000
    results = reduced(tensors, announced=[honest] * 4)
    liar = str(results[2][1].peer_id)
    fair = [result for k, result in enumerate(results) if k != 2]
    assert norm(the_one(fair)) < 1.5 * honest
    assert all(runner.scaled().keys() == {liar} for _, runner in fair)


def test_of_two_a_reducer_holds_the_parts_of_the_other_to_what_was_announced():
    one, two = draws(2)
    (mean, runner), (_, liar) = reduced([one, -1000 * two], announced=[norm(one)] * 2)
    assert norm(mean) < 1.5 * norm(one) and runner.scaled().keys() == {str(liar.peer_id)}


def test_a_part_is_added_up_while_the_one_before_it_is(monkeypatch):
    meeting = threading.Barrier(2)

    def met(*arguments):
        """A sum that ends once another one has begun."""
        meeting.wait(1.5)
        return weighted_mean(*arguments)

    monkeypatch.setattr(allreduce, "weighted_mean", met)
    one, two = draws(2, 80_000)
    results = reduced([one, two], lines=[AnnouncedLine(), AnnouncedLine(dial_only=True)])
    assert len(results[0][1].spans) % 2 == 0
    torch.testing.assert_close(the_one(results), (one + two) / 2, rtol=2e-3, atol=2e-3)


def test_a_weight_beyond_the_batch_counts_as_a_share_of_it():
    one, two = draws(2)
    torch.testing.assert_close(
        the_one(reduced([one, two], [4.0, 1e6], groups=8)), (one + two) / 2, rtol=2e-3, atol=2e-3
    )


class Inflating(Wired):
    """Sends means that are larger than they are."""

    async def _accumulate_parts_streaming(self, stream, sender_index):
        async for message in super()._accumulate_parts_streaming(stream, sender_index):
            packed = message.tensor_part
            message.tensor_part.CopyFrom(self._codec.compress(self._codec.extract(packed) * 1000))
            yield message


def test_means_larger_than_any_mean_of_the_members_are_held_to_it_by_all_and_break_no_round():
    tensors = draws(3)
    results = reduced(tensors, kinds=[Wired, Inflating, Wired])
    liar = str(results[1][1].peer_id)
    assert norm(the_one([results[0], results[2]])) < 1.5 * norm(tensors[0])
    assert [runner.scaled().keys() for _, runner in (results[0], results[2])] == [{liar}, {liar}]


def lying(change):
    """A runner whose means are what `change` makes of the values that go over the wire."""

    class Lying(Wired):
        async def _accumulate_parts_streaming(self, stream, sender_index):
            async for message in super()._accumulate_parts_streaming(stream, sender_index):
                change(message.tensor_part, self._codec)
                yield message

    return Lying


def false(value):
    return lying(lambda packed, codec: packed.CopyFrom(codec.compress(value(codec.extract(packed)))))


def not_finite(packed, codec):
    packed.buffer = SCALE.pack(1.0) + b"\xff\x7f" * codec.extract(packed).numel()


@pytest.mark.parametrize(
    "liar",
    [
        lying(not_finite),
        false(torch.zeros_like),
        false(torch.neg),
        false(lambda mean: mean.flip(0)),
    ],
    ids=["not finite", "zeros", "turned around", "of another order"],
)
def test_a_mean_without_the_gradients_breaks_no_round_and_each_member_notes_whose_it_is(liar):
    results = reduced(draws(4), kinds=[Wired, liar, Wired, Wired], weights=[2.0, 1.0, 1.0, 1.0])
    name = str(results[1][1].peer_id)
    fair = [result for k, result in enumerate(results) if k != 1]
    assert torch.isfinite(the_one(fair)).all()
    for _, runner in fair:
        presences = runner.presences()
        assert presences.pop(name) < -0.4 and min(presences.values()) > 0.4 and len(presences) == 3


def test_one_that_is_handed_another_mean_has_other_bytes_than_the_rest():
    class FalseToOne(Wired):
        """Turns around the means that the first member gets."""

        async def _accumulate_parts_streaming(self, stream, sender_index):
            async for message in super()._accumulate_parts_streaming(stream, sender_index):
                if sender_index == 0:
                    packed = message.tensor_part
                    packed.CopyFrom(self._codec.compress(-self._codec.extract(packed)))
                yield message

    (deceived, _), *fair = reduced(draws(4), kinds=[Wired, FalseToOne, Wired, Wired])
    assert not torch.equal(deceived, the_one(fair))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_never_travels(bad):
    one, two = draws(2)
    two[7] = bad
    outcomes = [outcome for outcome, _ in reduced([one, two], announced=[1.0, 1.0])]
    assert all(isinstance(outcome, Exception) for outcome in outcomes), outcomes


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("codec", ["float16", "none", "int8"])
def test_the_same_tensors_make_the_same_mean_again(count, codec):
    tensors = draws(count, 30_001)
    tensors[0] *= 40  # beyond what its norm counts for
    weights, lines = (
        [1.0, 3.0, 0.7, 2.0][:count],
        [AnnouncedLine(125_000 * rate) for rate in (20, 5, 100, 30)[:count]],
    )
    made = the_one(results := reduced(tensors, weights, codec, groups=8, lines=lines))
    order = results[0][1].ordered_peer_ids
    recipe = MeanRecipe(
        members=tuple(
            Ingredient(peer=str(peer), weight=weight, norm=norm(one), usual=0.0, share=share)
            for peer, weight, one, share in zip(order, weights, tensors, shares(lines), strict=True)
        ),
        part=1 << 14,
    )
    assert torch.equal(mean_again(tensors, recipe, 8, codec), made)
    assert not torch.equal(mean_again([tensors[0] * 1.001, *tensors[1:]], recipe, 8, codec), made)
