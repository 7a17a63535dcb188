"""Heads: a sampler's most probable tokens at each position, with which groups are checked without their
policy.

    an engine's k highest log-probabilities --pack--> Heads, in the group, signed with it
    group --contradiction--> why its tokens are not those that its seed draws from its own heads, or None
    heads, a policy's log-probabilities --apart--> nats between the two, for audits

A token is the argmax of log-probability plus noise (swarm.draws.noise), and every peer can compute the noise:
the score of the chosen token is at least that of each token of its head. All figures are one engine's, so
that they differ by rounding to STEP, whatever the precision. Of the tail only its mass is known: a token of
it is no more probable than the least of the head, and nothing contradicts one that was passed over. Not
handled here: whether heads are those of the group's version; a forward pass shows that (swarm.draws.replays).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swarm.draws import noise
from swarm.types import Group, Heads, Noise

STEP = 1 / 1024
"""Nats: log-probabilities of heads are multiples of it, from 0 to -64."""

MARGIN = 2 * STEP
"""Nats that figures of one engine may disagree by, four times what rounding moves one: a head's are rounded
by half a STEP, the log-probability that is claimed of a token is not."""

NEGLIGIBLE = -8.0
"""Log-probability below which a head's values do not matter: precisions differ much there."""

STREAM, FORWARD = 1 << 16, 12
"""Blocks of noise that are made in one stream, and how many times those that are needed: one by one they
cost as much, 1.5 ms and .25 us each beside .02 us in a stream."""


class Head(NamedTuple):
    """Heads as numbers."""

    tokens: NDArray[np.int32]
    """(sum T_i, k)"""
    logprobs: NDArray[np.float32]
    """(sum T_i, k) natural-log probabilities, the highest first."""

    def at(self, rows: slice, mask: NDArray[np.bool_]) -> Head:
        """Of heads (N, T, k), those of some rows where the mask (rows, T) is set."""
        return Head(self.tokens[rows][mask], self.logprobs[rows][mask])


def pack(tokens: NDArray[np.integer], logprobs: NDArray[np.floating]) -> Heads:
    """Of (sum T_i, k) tokens and their log-probabilities, the highest first."""
    nats = np.rint(np.clip(-logprobs.astype(np.float64) / STEP, 0, 0xFFFF))
    return Heads(tokens=tokens.astype("<i4").tobytes(), logprobs=nats.astype("<u2").tobytes())


def unpack(heads: Heads, places: int) -> Head:
    """Of `places` tokens, whose bytes have the required number (swarm.core.intake.admission)."""
    logprobs = np.frombuffer(heads.logprobs, "<u2").astype(np.float32) * np.float32(-STEP)
    return Head(np.frombuffer(heads.tokens, "<i4").reshape(places, -1), logprobs.reshape(places, -1))


def of_group(group: Group) -> Head | None:
    """The heads of a group that is not malformed; None in a run without heads."""
    return unpack(group.heads, sum(group.lengths)) if group.heads is not None else None


def apart(head: Head, logprobs: NDArray[np.float32], highest: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N,) nats by which heads of N tokens differ from a policy that gives `logprobs` (N, k) to their tokens,
    and whose highest ones are `highest` (N, k): a head with other figures, or without the most probable."""
    said, given, best = (np.maximum(each, NEGLIGIBLE) for each in (head.logprobs, logprobs, highest))
    return np.maximum(np.abs(said - given), np.abs(said - best)).max(1)


def contradiction(group: Group, vocabulary: int) -> str | None:
    """Why a group that is not malformed contradicts its own heads, or None."""
    head = of_group(group)
    assert head is not None
    tokens, claimed = np.frombuffer(group.tokens.data, "<i4"), np.frombuffer(group.logprobs.data, "<f4")
    if (problem := _inconsistency(head, tokens, claimed, vocabulary)) is not None:
        return problem
    margins = _margins(group, head, tokens, claimed, vocabulary)
    off = margins > MARGIN
    if not off.any():
        return None
    return (
        f"{off.sum()} of {len(tokens)} tokens are not what its seed draws from its own heads: one is"
        f" {margins.max():.3g} nats off"
    )


def _inconsistency(
    head: Head, tokens: NDArray[np.int32], claimed: NDArray[np.float32], vocabulary: int
) -> str | None:
    """Why heads are those of no distribution, or of another one than the log-probabilities claimed."""
    if head.tokens.min() < 0 or head.tokens.max() >= vocabulary:
        return f"a token of its heads is outside the vocabulary of {vocabulary}"
    if (np.diff(np.sort(head.tokens, 1), axis=1) == 0).any():
        return "a head has a token twice"
    if (np.diff(head.logprobs, axis=1) > 0).any():
        return "a head does not begin with its most probable token"
    mass = np.exp(head.logprobs.astype(np.float64)).sum(1)
    if mass.max() > 1 + MARGIN:
        return f"the probabilities of a head add up to {mass.max():.4g}"
    inside = head.tokens == tokens[:, None]
    is_in = inside.any(1)
    said = np.where(is_in, (head.logprobs * inside).sum(1), head.logprobs[:, -1])
    above = np.maximum(claimed, -0xFFFF * STEP) - said
    apart = np.where(is_in, np.abs(above), above)
    if apart.max() > MARGIN:
        return f"the log-probability that it claims of a token is {apart.max():.3g} nats beside its head"
    whole = np.where(is_in, mass, mass + np.exp(claimed.astype(np.float64)))
    if whole.max() > 1 + MARGIN:
        return f"the probabilities of a head and of its token add up to {whole.max():.4g}"
    return None


def _margins(
    group: Group, head: Head, tokens: NDArray[np.int32], claimed: NDArray[np.float32], vocabulary: int
) -> NDArray[np.float64]:
    """(sum T_i,) nats by which each token is away from those that the group's noise can draw."""
    if group.noise == Noise.INVERSE:
        return _inverse(group, head, tokens, claimed, vocabulary)
    asked = np.concatenate([head.tokens, tokens[:, None]], 1)
    drawn = _gumbel(group, asked, vocabulary).astype(np.float64)
    best = (head.logprobs + drawn[:, :-1]).max(1)
    return np.nan_to_num(np.maximum(best - (claimed + drawn[:, -1]), 0.0), nan=np.inf)


def _gumbel(group: Group, tokens: NDArray[np.int32], vocabulary: int) -> NDArray[np.float32]:
    """The noise of `tokens` (sum T_i, n) at their places."""
    lengths = np.array(group.lengths)
    size, longest = len(lengths), int(lengths.max())
    rows = np.repeat(np.arange(size), lengths)
    places = np.arange(len(rows)) - (lengths.cumsum() - lengths)[rows]
    if longest * size * noise.blocks_of(vocabulary) <= STREAM + FORWARD * tokens.size:
        words = noise.of_group(group.seed, size, vocabulary, longest)
        return noise.gumbel_of(words[rows[:, None], places[:, None], tokens])
    return noise.gumbel_of(noise.of_tokens(group.seed, size, vocabulary, rows, places, tokens))


def _inverse(
    group: Group, head: Head, tokens: NDArray[np.int32], claimed: NDArray[np.float32], vocabulary: int
) -> NDArray[np.float64]:
    """Of a table's groups (swarm.sample.toy): -log(1 - d), where the uniform number is at least d away from
    those that draw the token, wherever in the order of tokens the tail's mass lies."""
    if len({*group.lengths}) > 1:
        return np.full(len(tokens), np.inf)
    drawn = noise.uniform(group.seed, len(group.lengths), group.lengths[0]).ravel()
    p, own = np.exp(head.logprobs.astype(np.float64)), np.exp(claimed.astype(np.float64))
    lower, higher = head.tokens < tokens[:, None], head.tokens > tokens[:, None]
    is_in = ~(lower | higher).all(1)
    tail = np.maximum(1 - p.sum(1) - np.where(is_in, 0.0, own), 0.0)
    most = p[:, -1]
    before = np.minimum(tail, (tokens - lower.sum(1)) * most)
    after = np.minimum(tail, (vocabulary - 1 - tokens - higher.sum(1)) * most)
    begins = (p * lower).sum(1)
    away = np.maximum(begins + tail - after - drawn, drawn - (begins + before + own))
    return -np.log1p(-np.clip(away, 0.0, 1 - 1e-12))
