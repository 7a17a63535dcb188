"""Groups are checked by their own heads, without a model: honest ones pass, each contradiction is named."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from nouns import floats, ints
from nouns import group as any_group

from swarm.draws import noise
from swarm.draws.heads import MARGIN, STEP, contradiction, pack, unpack
from swarm.types import Array, Group, Noise

SIZE, POSITIONS, SEED, K = 4, 30, -7, 4
SIZES = (K, 20, 9000)
"""Vocabularies: heads are whole, noise is made in one stream, noise is made block by block."""


def logits(vocabulary: int) -> np.ndarray:
    """(T, V) Of a policy that is seldom certain, and of which the first tokens are the most probable."""
    drawn = np.random.default_rng(1).normal(0.0, 2.0, (POSITIONS, vocabulary))
    drawn -= 1.5 * np.log1p(np.arange(vocabulary))
    return drawn - np.log(np.exp(drawn).sum(-1, keepdims=True))


def sampled(of: np.ndarray, said: np.ndarray, seed: int = SEED) -> Group:
    """Draws by the log-probabilities `of`, and claims `said`, (T, V) both."""
    vocabulary = of.shape[1]
    drawn = noise.gumbel_of(noise.of_group(seed, SIZE, vocabulary, POSITIONS).copy())
    return claiming((of + drawn).argmax(-1), said)


def claiming(tokens: np.ndarray, said: np.ndarray) -> Group:
    """The tokens (G, T) with log-probabilities and heads of `said`."""
    place = np.arange(POSITIONS)
    order = np.argsort(-said, -1)[:, :K]
    head = pack(*(np.tile(each, (SIZE, 1)) for each in (order, np.take_along_axis(said, order, -1))))
    return any_group(
        seed=SEED,
        lengths=(POSITIONS,) * SIZE,
        rewards=(0.0,) * SIZE,
        tokens=ints(*tokens.ravel().tolist()),
        logprobs=floats(*said[place, tokens].ravel().tolist()),
        noise=Noise.GUMBEL,
        heads=head,
    )


def tokens_of(group: Group) -> np.ndarray:
    return np.frombuffer(group.tokens.data, np.int32).reshape(SIZE, POSITIONS).copy()


@pytest.mark.parametrize("vocabulary", SIZES)
def test_an_honest_group_contradicts_nothing(vocabulary: int) -> None:
    true = logits(vocabulary)
    group = sampled(true, true)
    assert contradiction(group, vocabulary) is None
    assert group.heads is not None
    inside = unpack(group.heads, SIZE * POSITIONS).tokens == tokens_of(group).reshape(-1, 1)
    assert inside.any() and (vocabulary == K or not inside.any(1).all()), (
        "tokens of the tail are checked, too"
    )


@pytest.mark.parametrize("vocabulary", SIZES)
def test_another_text_seed_or_temperature_is_named_at_the_first_group(vocabulary: int) -> None:
    true = logits(vocabulary)
    cooler = true / 0.8
    tokens = tokens_of(sampled(true, true))
    tokens[2, 7] = (tokens[2, 7] + 1) % vocabulary
    assert "1 of 120 tokens are not what its seed draws" in (
        contradiction(claiming(tokens, true), vocabulary) or ""
    )
    for group in (sampled(true, true, SEED + 1), sampled(cooler, true)):
        assert "tokens are not what its seed draws" in (contradiction(group, vocabulary) or "")


def test_what_a_seed_does_not_draw_passes_under_no_true_head_of_another_temperature() -> None:
    """A cooler policy that tells its own heads is consistent: a forward pass finds that they are false."""
    true = logits(20)
    cooler = true / 0.8 - np.log(np.exp(true / 0.8).sum(-1, keepdims=True))
    assert contradiction(sampled(cooler, cooler), 20) is None


def spoiled(name: str) -> Group:
    true = logits(20)
    good = sampled(true, true)
    assert good.heads is not None
    ids, logprobs = (each.copy() for each in unpack(good.heads, SIZE * POSITIONS))
    claimed = np.frombuffer(good.logprobs.data, np.float32).copy()
    is_in = (ids == tokens_of(good).reshape(-1, 1)).any(1)
    inside, outside = np.flatnonzero(is_in)[0], np.flatnonzero(~is_in)[0]
    match name:
        case "outside the vocabulary":
            ids[3, 1] = 20
        case "outside the vocabulary of 20":
            ids[3, 1] = -1
        case "a token twice":
            ids[3, 1] = ids[3, 0]
        case "does not begin with its most probable":
            logprobs[3] = logprobs[3, ::-1]
        case "of a head add up to":
            logprobs[3] = -0.5
        case "nats beside its head":
            claimed[inside] -= 0.1
        case "nats beside its head: more than the least":
            claimed[outside] = logprobs[outside, -1] + 0.1
        case "of a head and of its token add up to":
            logprobs[outside] = np.log(0.25)
            claimed[outside] = np.log(0.2)
    data = Array(dtype="float32", shape=claimed.shape, data=claimed.tobytes())
    return replace(good, logprobs=data, heads=pack(ids, logprobs))


@pytest.mark.parametrize(
    "name",
    [
        "outside the vocabulary",
        "outside the vocabulary of 20",
        "a token twice",
        "does not begin with its most probable",
        "of a head add up to",
        "nats beside its head",
        "nats beside its head: more than the least",
        "of a head and of its token add up to",
    ],
)
def test_a_head_that_is_none_is_named(name: str) -> None:
    assert name.partition(":")[0] in (contradiction(spoiled(name), 20) or "")


def test_logprobs_are_rounded_to_a_step_and_end_at_64_nats() -> None:
    head = unpack(pack(np.array([[1, 2]]), np.array([[-0.3, -1e9]])), 1)
    assert abs(head.logprobs[0, 0] + 0.3) <= STEP / 2 < MARGIN / 2
    assert head.logprobs[0, 1] == -0xFFFF * STEP


def test_noise_of_some_tokens_is_that_of_the_whole_group() -> None:
    vocabulary = 300
    whole = noise.of_group(SEED, SIZE, vocabulary, 5)
    rows, places = np.array([0, 3, 2]), np.array([4, 0, 2])
    tokens = np.array([[0, 299], [7, 8], [151, 16]], np.int32)
    found = noise.of_tokens(SEED, SIZE, vocabulary, rows, places, tokens)
    np.testing.assert_array_equal(found, whole[rows[:, None], places[:, None], tokens])
