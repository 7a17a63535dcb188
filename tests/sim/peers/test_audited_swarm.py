"""Audits in the simulator with the roles that ship: each cheat is named and suspended, and nobody else is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from audited_swarms import HONEST, Cheat, OtherText, of, played
from role_swarms import EPOCH

from peers.audits.evidence import SUSPENDED, read_suspended
from peers.errors import CannotHere
from swarm.core.intake.claimed_logprobs import SamplerEvidence
from swarm.draws.heads import Head
from swarm.draws.replays import Replayed
from swarm.events import Audited, Counted, Dropped, Event, Judged, Noted, SetAside, Trained
from swarm.learn.files.weights import from_bytes
from swarm.sample.base import Completions
from swarm.sample.toy import TableReplay, ToyEngine
from swarm.sim.scenario import Fault
from swarm.storage.weights import Weights
from swarm.types import Verdict


class OneToken(Cheat):
    def changed(self, prompt: str, tokens: np.ndarray, seed: int) -> np.ndarray:
        tokens = tokens.copy()
        tokens[0, 0] = (tokens[0, 0] + 1) % 8
        return tokens


class OtherTemperature(Cheat):
    def changed(self, prompt: str, tokens: np.ndarray, seed: int) -> np.ndarray:
        cooler = np.exp(self.row(prompt)[0] / 0.8).cumsum(-1)
        cdf = cooler / cooler[:, -1:]
        return (self._rng_of(seed).random((*tokens.shape, 1)) >= cdf).sum(-1)

    def _rng_of(self, seed: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=seed % (1 << 64)))


class TopP(OtherTemperature):
    def changed(self, prompt: str, tokens: np.ndarray, seed: int) -> np.ndarray:
        p = np.exp(self.row(prompt)[0])
        kept = np.where(p >= np.sort(p, -1)[:, 1:2], p, 0.0).cumsum(-1)  # all but the least likely one
        return (self._rng_of(seed).random((*tokens.shape, 1)) >= kept / kept[:, -1:] - 1e-12).sum(-1)


class CherryPicked(Cheat):
    """Of several draws the one with most letters alike, say."""

    def changed(self, prompt: str, tokens: np.ndarray, seed: int) -> np.ndarray:
        tries = [ToyEngine.sample(self, [prompt], len(tokens), [seed + k])[0].tokens for k in range(1, 4)]
        return max(tries, key=lambda one: int(np.bincount(one).max())).reshape(tokens.shape)


class Relabelled(ToyEngine):
    """Goes on with its first policy, whatever it says."""

    def load(self, weights: Weights) -> None:
        if self.version < 0:
            super().load(weights)


class FalseClaims(ToyEngine):
    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        true = super().sample(prompts, group_size, seeds)
        return [dataclasses.replace(one, logprobs=one.logprobs + np.float32(0.3)) for one in true]


CHEATS: tuple[Callable[[], ToyEngine], ...] = (
    OtherText,
    OneToken,
    OtherTemperature,
    TopP,
    CherryPicked,
    lambda: Relabelled(from_bytes),
    lambda: FalseClaims(from_bytes),
)


RESTART = 50.0
"""When the learner starts again, in seconds."""


class Cheated(NamedTuple):
    told: list[Event]
    disk: Path


@pytest.fixture(scope="module")
def cheated(tmp_path_factory: pytest.TempPathFactory) -> Cheated:
    """All cheats at once; the learner starts again when all are named."""
    disks = tmp_path_factory.mktemp("disks")
    again = Fault(at=RESTART, fault="bounce", peer="learner-0", down=4)
    return Cheated(played(1.02, CHEATS, again, disks=disks, share=1.0), disks)


def test_every_cheat_is_named_and_no_honest_sampler_is(cheated: Cheated) -> None:
    named = {event.sampler for event in of(cheated.told, Audited) if event.until > 0}
    assert named == {f"sampler-{number}" for number in range(len(CHEATS))}
    honest = [event for event in of(cheated.told, Audited) if event.sampler not in named]
    assert len(honest) > 30 and {event.finding for event in honest} <= {"honest", "undecided"}


def test_groups_of_who_was_named_are_unverified_and_those_that_wait_are_dropped(cheated: Cheated) -> None:
    told = cheated.told
    since = {event.sampler: event.at for event in of(told, Audited) if event.until > 0}
    after = [event for event in of(told, Judged) if event.at > since.get(event.sampler, 1e12)]
    verdicts = Counter(event.verdict for event in after)
    assert verdicts[Verdict.UNVERIFIED] > 20 and Verdict.ADMIT not in verdicts
    assert all("suspended for another" in event.detail for event in after)
    assert any(event.why == Verdict.UNVERIFIED for event in of(told, Dropped))
    counted = sum((Counter(event.verdicts) for event in of(told, Counted)), Counter())
    assert counted["unverified"] > 0


def test_who_is_suspended_samples_little_since_nobody_takes_it(cheated: Cheated) -> None:
    since = {event.sampler: event.at for event in of(cheated.told, Audited) if event.until > 0}
    late = [event for event in of(cheated.told, Judged) if event.at < EPOCH + RESTART]
    counts = Counter(event.sampler for event in late if event.at > since.get(event.sampler, 1e12) + 8)
    assert counts and max(counts.values()) < 12, counts


def test_the_sampler_s_own_terminal_says_why(cheated: Cheated) -> None:
    notes = [event for event in of(cheated.told, Noted) if event.peer == "sampler-0"]
    assert any("unverified" in event.text and "not what its seed" in event.text for event in notes)


def test_who_is_honest_is_replayed_less_and_less(cheated: Cheated) -> None:
    honest = {f"sampler-{len(CHEATS) + number}" for number in range(HONEST)}
    counts = [
        sum(event.sampler in honest and event.at < EPOCH + RESTART for event in of(cheated.told, kind))
        for kind in (Audited, Judged)
    ]
    assert 20 * HONEST < counts[0] < counts[1] - 2 * HONEST


def test_who_was_suspended_stays_so_when_the_learner_starts_again(cheated: Cheated) -> None:
    back = [event for event in of(cheated.told, Judged) if event.at > EPOCH + RESTART + 4]
    (evidence,) = cheated.disk.rglob(SUSPENDED)
    assert set(read_suspended(evidence.parent)) == {f"sampler-{number}" for number in range(len(CHEATS))}
    assert len([*evidence.parent.glob("*.evidence")]) == len(CHEATS)
    verdicts = {(event.sampler, event.verdict) for event in back}
    assert ("sampler-0", Verdict.UNVERIFIED) in verdicts and ("sampler-0", Verdict.ADMIT) not in verdicts
    again = [event for event in of(cheated.told, Audited) if event.at > EPOCH + RESTART]
    assert not [event for event in again if event.until > 0]


def test_of_a_learner_that_is_alone_everybody_hears_whom_it_suspends() -> None:
    told = played(0.2, CHEATS[:1], evaluators=1, share=1.0)
    heard = {(one.peer, one.sampler) for one in of(told, SetAside) if one.by == "learner-0" and one.group}
    peers = ("evaluator-0", *(f"sampler-{number}" for number in range(1 + HONEST)))
    assert heard == {(peer, "sampler-0") for peer in peers}


def test_without_a_share_nothing_is_replayed_and_with_invites_alone_neither() -> None:
    assert not of(played(0.2, CHEATS[:1], share=0.0), Audited)
    assert not of(played(0.2, CHEATS[:1], invited=False), Audited)


class NoRoom(TableReplay):
    """Loads a version, and has no memory to replay with."""

    def replay(
        self, prompt: str, rows: Sequence[Sequence[int]], seed: int, head: Head | None = None
    ) -> Replayed:
        raise MemoryError("out of memory")


def no_policy() -> TableReplay:
    raise CannotHere("the model does not fit into the memory of cpu")


@pytest.mark.parametrize("replay", [no_policy, lambda: NoRoom(from_bytes)])
def test_a_learner_that_cannot_replay_says_so_once_and_trains_on(replay: Callable[[], TableReplay]) -> None:
    told = played(0.2, CHEATS[:1], learners=[replay])
    notes = [event for event in of(told, Noted) if "not audited here any more" in event.text]
    assert len(notes) == 1 and "memory" in notes[0].text
    assert not of(told, Audited) and of(told, Trained)


def test_all_groups_of_a_sampler_whose_claims_deviate_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    suspect = "sampler-1"
    monkeypatch.setattr(SamplerEvidence, "suspects", lambda _, sampler: sampler == suspect)
    told = played(1.2, [], share=0.5)
    admitted = Counter(event.sampler for event in of(told, Judged) if event.verdict is Verdict.ADMIT)
    replayed = Counter(event.sampler for event in of(told, Audited))
    shares = {sampler: replayed[sampler] / admitted[sampler] for sampler in admitted}
    assert shares.pop(suspect) > 0.9 and max(shares.values()) < 0.8


def test_training_goes_on_where_claims_deviate_and_replays_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> int:
        return len(of(played(0.7, [], audit_price=1.0), Trained))

    undisturbed = steps()
    monkeypatch.setattr(SamplerEvidence, "suspects", lambda *_: True)
    assert steps() > 0.8 * undisturbed > 10
