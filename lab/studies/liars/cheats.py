"""The ways in which a sampler cheats, for `swarm bench adversaries` (lab.studies.liars.cheating).

    Drawn (the shipping sampler's draw) --Cheat--> its false claim instead, or nothing
    Group (before it is signed)         --Lie-->   the group that it signs

A cheat knows policy, tasks and draws as any sampler does. Unless noted otherwise it claims its version's
log-probabilities for the text that it sends: false ones would give it away. Those of ANYWHERE ask any engine
that has tricks (lab.studies.liars.cheat_tricks), the others know the simulator's table alone. Not handled
here: the swarm around it, the consequences; text that the policy draws and that games the reward.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from statistics import fmean
from typing import cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from lab.studies.liars.cheat_tricks import TableTricks, Tricks, sampled
from peers.sampler.new_group import Drawn
from peers.sampler.sampler import Sampler
from swarm.core.intake.curriculum import SLOTS, Draw, Draws
from swarm.draws.heads import pack, unpack
from swarm.sample.toy import ToyEngine
from swarm.types import Digest, Group, Noise, PeerId

Cheat = Callable[[Sampler, Drawn], Drawn | None]
"""(the sampler, its draw) -> the draw that it claims; None: it sends nothing."""

Lie = Callable[[Group], Group]
"""A group -> the one that is signed."""

VICTIM, FIRST = PeerId("sampler-0"), 2
"""An honest sampler that copies are made of; samplers from this number on cheat."""

TRIES = 8
"""Groups that a cheat draws in order to send one."""

TRUSTED = 60
"""Groups that are honest at first: a third of the next ones is replayed."""

SPARSE = 25
"""One group in so many is forged: more than those that are replayed after a token that is off."""

BUCKETS = 16
"""Tasks of the simulator's."""

FORGED, FORGED_TAIL = -0.001, -20.0
"""Log-probabilities in a forged head, of its token and of the others: any number draws the token."""

OLDER = 8
"""Versions by which a relabelled policy is older than claimed."""


def _tricks(sampler: Sampler, prompt: str) -> Tricks:
    engine = sampler.engine
    if isinstance(engine, ToyEngine):
        return TableTricks(engine.row(prompt)[0], sampler.host.config.run.sampling.heads)
    return cast(Tricks, engine)


def _rows(drawn: Drawn) -> list[list[int]]:
    """The tokens of each completion that was drawn."""
    made = drawn.completions
    return [row.tolist() for row in np.split(made.tokens, np.cumsum(made.lengths)[:-1])]


def _table(sampler: Sampler, prompt: str) -> NDArray[np.float64]:
    """(letters, alphabet) log-probabilities of the version that the sampler has."""
    assert isinstance(sampler.engine, ToyEngine)
    return sampler.engine.row(prompt)[0]


def _said(drawn: Drawn, policy: Tricks, rows: Sequence[Sequence[int]]) -> Drawn:
    """It claims that it drew these tokens, with the log-probabilities of `policy`."""
    said = policy.said(drawn.task.prompt, rows)
    return drawn._replace(completions=dataclasses.replace(said, noise=drawn.completions.noise))


def drawn_again(sampler: Sampler, drawn: Drawn, draw: Draw) -> Drawn:
    """A true group of another task and seed."""
    task = sampler.source.task(draw.task)
    size = sampler.host.config.run.sampling.group_size
    (completions,) = sampler.engine.sample([task.prompt], size, [draw.seed])
    return drawn._replace(task=task, draw=draw, completions=completions)


def _rewards(sampler: Sampler, drawn: Drawn) -> list[float]:
    return sampler.source.rewards(drawn.task, drawn.completions.texts)


def draws_of(sampler: Sampler) -> Draws:
    """The assigned draws of each sampler."""
    return Draws(sampler.host.who.run, sampler.host.config.run.batch.groups)


# --- text ---------------------------------------------------------------------------------------------------


def _other_text() -> Cheat:
    rng = np.random.default_rng(1)

    def cheat(sampler: Sampler, drawn: Drawn) -> Drawn:
        policy = _tricks(sampler, drawn.task.prompt)
        rows = [rng.integers(0, policy.letters, len(row)).tolist() for row in _rows(drawn)]
        return _said(drawn, policy, rows)

    return cheat


def _one_token(sampler: Sampler, drawn: Drawn) -> Drawn:
    rows, policy = _rows(drawn), _tricks(sampler, drawn.task.prompt)
    rows[0][0] = (rows[0][0] + 1) % policy.letters
    return _said(drawn, policy, rows)


def at_temperature(sampler: Sampler, drawn: Drawn, divisor: float) -> Drawn:
    policy, size = _tricks(sampler, drawn.task.prompt), len(drawn.completions.texts)
    return _said(drawn, policy, policy.cooled(drawn.task.prompt, size, drawn.draw.seed, divisor))


def _top_p(sampler: Sampler, drawn: Drawn, least: float = 0.05) -> Drawn:
    """Tokens of the tail that has this probability are never drawn."""
    p = np.exp(_table(sampler, drawn.task.prompt))
    order = np.sort(p, -1)
    edge = np.take_along_axis(order, (order.cumsum(-1) <= least).sum(-1, keepdims=True), -1)
    kept = np.log(np.where(p >= edge, p, 1e-300))
    rows = sampled(drawn.draw.seed, len(drawn.completions.texts), kept).tolist()
    return _said(drawn, _tricks(sampler, drawn.task.prompt), rows)


def _another_model(sampler: Sampler, drawn: Drawn) -> Drawn:
    shape = _table(sampler, drawn.task.prompt).shape
    return _from(sampler, drawn, np.random.default_rng(drawn.task.index % 97).normal(size=shape))


def _quantised(sampler: Sampler, drawn: Drawn) -> Drawn:
    table = _table(sampler, drawn.task.prompt)
    step = np.ptp(table) / 15 or 1.0  # 4 bits
    return _from(sampler, drawn, np.round(table / step) * step)


def _from(sampler: Sampler, drawn: Drawn, logits: NDArray[np.float64]) -> Drawn:
    """It draws from other logits, and claims their log-probabilities."""
    table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rows = sampled(drawn.draw.seed, len(drawn.completions.texts), table).tolist()
    return _said(drawn, TableTricks(table, sampler.host.config.run.sampling.heads), rows)


def _older() -> Cheat:
    kept = deque[tuple[Digest, dict[str, NDArray[np.float64]]]](maxlen=OLDER + 1)

    def cheat(sampler: Sampler, drawn: Drawn) -> Drawn:
        weights = drawn.policy[0].weights
        if not kept or kept[-1][0] != weights:
            kept.append((weights, {str(bucket): _table(sampler, str(bucket)) for bucket in range(BUCKETS)}))
        return _from(sampler, drawn, kept[0][1][drawn.task.prompt])

    return cheat


def _after(honest: int, then: Cheat, of_each: int = 1) -> Cheat:
    """After so many honest groups it cheats in one of `of_each`."""
    number = count()

    def cheat(sampler: Sampler, drawn: Drawn) -> Drawn | None:
        place = next(number) - honest
        return then(sampler, drawn) if place >= 0 and place % of_each == 0 else drawn

    return cheat


def _in_turns() -> Cheat:
    """Of two, one forges while the other earns trust."""
    forge, number = _other_text(), count()

    def cheat(sampler: Sampler, drawn: Drawn) -> Drawn | None:
        mine = sampler.host.ports.me == f"sampler-{FIRST}"
        return forge(sampler, drawn) if (next(number) // TRUSTED) % 2 == mine else drawn

    return cheat


# --- heads --------------------------------------------------------------------------------------------------


def _forged(sampler: Sampler, drawn: Drawn, said: Drawn) -> Drawn:
    """For the tokens that it did not draw, the head claims that nothing else is likely."""
    made = said.completions
    assert made.heads is not None
    head = unpack(made.heads, len(made.tokens))
    false = made.tokens != drawn.completions.tokens
    letters = _table(sampler, said.task.prompt).shape[1]
    others = (made.tokens[:, None] + np.arange(head.tokens.shape[1])) % letters
    alone = np.full(head.logprobs.shape, FORGED_TAIL)
    alone[:, 0] = FORGED
    heads = pack(
        np.where(false[:, None], others, head.tokens), np.where(false[:, None], alone, head.logprobs)
    )
    logprobs = np.where(false, np.float32(FORGED), made.logprobs)
    return said._replace(completions=dataclasses.replace(made, heads=heads, logprobs=logprobs))


def _under_forged_heads(cheat: Cheat) -> Cheat:
    def forged(sampler: Sampler, drawn: Drawn) -> Drawn | None:
        said = cheat(sampler, drawn)
        return _forged(sampler, drawn, said) if said is not None else None

    return forged


def _cooler_throughout(sampler: Sampler, drawn: Drawn) -> Drawn:
    """Another temperature, also in its heads and claims."""
    return _from(sampler, drawn, _table(sampler, drawn.task.prompt) / 0.8)


def _unnamed(cheat: Cheat) -> Cheat:
    """The same, as of an engine whose groups cannot be replayed."""

    def unnamed(sampler: Sampler, drawn: Drawn) -> Drawn | None:
        if (made := cheat(sampler, drawn)) is None:
            return None
        return made._replace(completions=dataclasses.replace(made.completions, noise=Noise.UNKNOWN))

    return unnamed


# --- draws --------------------------------------------------------------------------------------------------


def _cherry_picked(sampler: Sampler, drawn: Drawn, named: bool = False) -> Drawn:
    """The best group of several seeds, which is `named` or claimed to be of the draw's seed."""
    seeds = [drawn.draw.seed, *range(1, TRIES)]
    tries = [drawn_again(sampler, drawn, drawn.draw._replace(seed=seed)) for seed in seeds]
    best = max(tries, key=lambda one: sum(_rewards(sampler, one)))
    return best if named else best._replace(draw=drawn.draw)


def _other_task(sampler: Sampler, drawn: Drawn) -> Drawn:
    return drawn_again(sampler, drawn, drawn.draw._replace(task=7))


def _own_seed(sampler: Sampler, drawn: Drawn) -> Drawn:
    return drawn_again(sampler, drawn, drawn.draw._replace(seed=drawn.draw.number))


def _copied(sampler: Sampler, drawn: Drawn, of: PeerId) -> Drawn:
    """Another sampler's group, under its own name and number."""
    theirs = draws_of(sampler).of(drawn.policy[0].weights, of, drawn.draw.number)
    return drawn_again(sampler, drawn, theirs)


def _copied_at_its_place(of: PeerId) -> Cheat:
    """The same, at the number that its own order has for that task and seed."""
    places: dict[Digest, dict[tuple[int, int], int]] = {}

    def cheat(sampler: Sampler, drawn: Drawn) -> Drawn:
        weights, draws, me = drawn.policy[0].weights, draws_of(sampler), sampler.host.ports.me
        if weights not in places:
            places.clear()
            slots = SLOTS * sampler.host.config.run.batch.groups
            mine = (draws.of(weights, me, number) for number in range(1 << (slots - 1).bit_length()))
            places[weights] = {(draw.task, draw.seed): draw.number for draw in mine}
        copy = _copied(sampler, drawn, of)
        return copy._replace(draw=copy.draw._replace(number=places[weights][copy.draw[1:]]))

    return cheat


def _again() -> Cheat:
    """The text of its first group, for each task and seed."""
    first: list[list[list[int]]] = []

    def cheat(sampler: Sampler, drawn: Drawn) -> Drawn:
        first.append(_rows(drawn))
        del first[1:]
        return _said(drawn, _tricks(sampler, drawn.task.prompt), first[0])

    return cheat


def _left_out(one_in: int) -> Cheat:
    number = count(1)
    return lambda sampler, drawn: drawn if next(number) % one_in else None


def _curated() -> Cheat:
    """Genuine groups, those alone that are worth less than the mean of the last ones."""
    last = deque[float](maxlen=TRUSTED)

    def cheat(sampler: Sampler, drawn: Drawn) -> Drawn | None:
        last.append(fmean(_rewards(sampler, drawn)))
        return drawn if last[-1] <= fmean(last) else None

    return cheat


# --- claims -------------------------------------------------------------------------------------------------


def _claimed(drawn: Drawn, logprobs: NDArray[np.float32]) -> Drawn:
    said = np.minimum(logprobs, 0.0).astype(np.float32)
    return drawn._replace(completions=dataclasses.replace(drawn.completions, logprobs=said))


def _tuned(sampler: Sampler, drawn: Drawn) -> Drawn:
    """Its worse half counts more and its better half less, with a mean ratio near 1."""
    order = np.argsort(np.argsort(_rewards(sampler, drawn), kind="stable"), kind="stable")
    shift = np.where(order < len(order) / 2, -0.1, 0.1)
    return _claimed(drawn, drawn.completions.logprobs + np.repeat(shift, drawn.completions.lengths))


CHEATS: dict[str, Callable[[], Cheat]] = {
    "honest": lambda: lambda _, drawn: drawn,
    "it sends nothing": lambda: lambda *_: None,
    "other text": _other_text,
    "other text, no noise named": lambda: _unnamed(_other_text()),
    "one token changed": lambda: _one_token,
    "one token in one group of 25": lambda: _after(0, _one_token, SPARSE),
    "another model": lambda: _another_model,
    "weights in 4 bits": lambda: _quantised,
    "an older version, relabelled": _older,
    "temperature .8": lambda: partial(at_temperature, divisor=0.8),
    "top-p .95": lambda: _top_p,
    "cherry-picked groups": lambda: _cherry_picked,
    "ground seeds": lambda: partial(_cherry_picked, named=True),
    "own seeds": lambda: _own_seed,
    "other tasks": lambda: _other_task,
    "copies of others' groups": lambda: partial(_copied, of=VICTIM),
    "copies at their place": lambda: _copied_at_its_place(VICTIM),
    "its own group again": _again,
    "every second group dropped": lambda: _left_out(2),
    "one group of 12 dropped": lambda: _left_out(12),
    "curation of genuine groups": _curated,
    "claims: one for every token": lambda: lambda _, d: _claimed(d, d.completions.logprobs * 0 - 2),
    "claims: 1.5 nats too low": lambda: lambda _, d: _claimed(d, d.completions.logprobs - 1.5),
    "claims: too high, 0": lambda: lambda _, d: _claimed(d, d.completions.logprobs * 0),
    "claims: tuned": lambda: _tuned,
    "honest until trusted": lambda: _after(TRUSTED, _other_text()),
    "two that take turns": _in_turns,
    "30 identities that take turns": _other_text,
}
"""A sampler's draws and claims instead."""

ANYWHERE = ("other text", "one token changed", "claims: 1.5 nats too low")
"""Cheats of any policy whose engine has Tricks; so is `at_temperature`."""

FORGERIES: dict[str, Callable[[], Cheat]] = {
    "temperature .8, of heads too": lambda: _cooler_throughout,
    "other text, forged heads": lambda: _under_forged_heads(_other_text()),
    "one token in one group of 25, a forged head": lambda: _after(0, _under_forged_heads(_one_token), SPARSE),
}
"""Cheats whose groups do not contradict their own heads."""

HEADED = (
    "honest",
    "other text",
    "one token changed",
    "one token in one group of 25",
    "weights in 4 bits",
    "temperature .8",
    "top-p .95",
    "cherry-picked groups",
    "claims: tuned",
    *FORGERIES,
)
"""Cheats that are tried in runs with heads."""

LIES: dict[str, Lie] = {
    "pinned rewards": lambda group: replace(group, rewards=(1.0,) * len(group.rewards)),
    "a lie about lengths": lambda group: replace(group, lengths=_moved(*group.lengths)),
    "a false time of release": lambda group: _later(group, 30.0),
    "a release that nobody knows": lambda group: replace(group, weights=Digest("0" * 64)),
}
"""Its changes to a finished group."""

PARTNERS = 2
"""Names of those that collude."""

IDENTITIES = {"two that take turns": PARTNERS, "30 identities that take turns": 30}
"""Cheats with more than one name; more than PARTNERS come one after another."""


def _moved(first: int, second: int, *others: int) -> tuple[int, ...]:
    """The first completion takes a token of the second."""
    return (first + 1, second - 1, *others)


def _later(group: Group, seconds: float) -> Group:
    return replace(group, times=replace(group.times, released=group.times.released + seconds))
