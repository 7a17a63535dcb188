"""Audits as a duty: evaluators, and samplers that ask for it, replay groups beside their own work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest
from still_host import membership, still_host
from test_accused_swarm import CHEAT
from test_audited_swarm import OtherText, of, played
from test_auditor_swarm import LEARNER, aside, by

from peers.audits.audit_duty import has_duty, on_duty
from peers.audits.shown_groups import Verdict
from peers.audits.verdicts import HonestGroup, VerdictExchange, Verdicts
from swarm.core.audits.verifiers import TRUSTED, Verifiers, is_auditor
from swarm.events import Audited, Bus, Evaluated, Event, Noted, Rejected, Sampled
from swarm.limits import EVENT_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Topic
from swarm.sample.base import EngineError
from swarm.sample.toy import ToyEngine
from swarm.settings.config import Config, DelayLaw, Peer
from swarm.settings.peer_limits import Auditing
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

EVALUATOR, HELPER = "evaluator-0", "sampler-1"
PRICE = 0.05


def evaluated(told: list[Event]) -> list[int]:
    return [event.version for event in of(told, Evaluated)]


@pytest.fixture(scope="module")
def found() -> list[Event]:
    """One cheat; the learner draws nothing, the evaluator has half of its time for audits."""
    duties = {EVALUATOR: {"share": 0.5}}
    return played(0.4, [OtherText], evaluators=1, duties=duties, share=0.0, audit_price=PRICE)


def test_an_evaluator_finds_a_cheat_between_evaluations_and_a_learner_sets_it_aside(
    found: list[Event],
) -> None:
    (event,) = (event for event in of(found, Audited) if event.until > 0)
    assert (event.peer, event.sampler) == (LEARNER, CHEAT)
    assert event.why.endswith(f"; {EVALUATOR} found it first")
    assert by(found, EVALUATOR)["honest"] > TRUSTED and not of(found, Rejected)


def test_audits_beside_other_work_take_no_more_than_their_share_and_keep_it_from_nothing() -> None:
    shares = (0.0, 0.05)
    without, told = (
        played(0.7, [], evaluators=1, duties={EVALUATOR: {"share": share}}, audit_price=0.1)
        for share in shares
    )
    assert not by(without, EVALUATOR) and evaluated(told) == evaluated(without) == [0, 10]
    assert 10 <= sum(by(told, EVALUATOR).values()) <= shares[1] * 42.0 / 0.1 + 1


@pytest.fixture(scope="module")
def helped() -> list[Event]:
    """No cheat; a sampler audits, for which a learner waits that has share of its time for itself."""
    duties = {HELPER: {"duty": True, "share": 0.5}}
    return played(2.0, [], duties=duties, share=0.3, audit_price=PRICE)


def test_a_sampler_that_asks_for_it_takes_replays_off_a_learner_but_never_its_own(
    helped: list[Event],
) -> None:
    alone = played(2.0, [], share=0.3, audit_price=PRICE)
    mine = {event.sampler for event in of(helped, Audited) if event.peer == HELPER}
    assert mine == {"sampler-0", "sampler-2"}
    assert by(helped, LEARNER)["honest"] < by(alone, LEARNER)["honest"] - TRUSTED
    assert not aside(helped) and not of(helped, Rejected)
    sampled = [len([one for one in of(told, Sampled) if one.peer == HELPER]) for told in (helped, alone)]
    assert sampled[0] > 0.8 * sampled[1]


class Words:
    """Who is believed of whom."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []

    def take_word(self, verdict: Verdict) -> None:
        self.taken.append((verdict.verifier, verdict.sampler))


def test_the_word_of_a_member_that_was_right_counts_but_not_of_its_own_groups() -> None:
    async def scene() -> None:
        words = Words()
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            learner = still_host(network, "learner", Role.LEARNER)
            verifiers = Verifiers(0.0, Random(1))
            inbox, rechecks = cast(Any, None), cast(Any, words)
            verdicts = VerdictExchange(learner, inbox, rechecks, verifiers)
            groups = [(Digest("1" * 64), PeerId("other")), (Digest("2" * 64), PeerId("mine"))]
            for digest, sampler in groups:
                verdicts.drawn(digest, sampler)
            honest = tuple(HonestGroup(sampler=sampler, group=digest) for digest, sampler in groups)
            said = Verdicts(version=0, weights=Digest("3" * 64), groups=honest)
            shown = membership("mine", Role.SAMPLER)
            for name, member in (("stranger", None), ("mine", shown)):
                for _ in range(TRUSTED):
                    verifiers.right(PeerId(name))
                peer = still_host(network, name, Role.SAMPLER, membership=member)
                learner.take(verdicts.hear, Topic.VERDICT, PeerId(name), peer.seal(said, EVENT_LIMIT))
        assert words.taken == [("mine", "other")]

    run(scene())


def test_who_says_to_audit_is_heard_by_all_and_believed_as_a_member_alone() -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            learner = still_host(network, "learner", Role.LEARNER)
            listening = asyncio.create_task(learner.listen(Topic.BEAT, learner.hear_beat))
            await asyncio.sleep(1.0)
            for name, member in (("stranger", None), ("member", membership("member", Role.SAMPLER))):
                peer = still_host(network, name, Role.SAMPLER, membership=member)
                peer.status.audits = True
                await peer._beats.send()
            await asyncio.sleep(1.0)
            audit = {peer: is_auditor(beat) for peer, beat in learner.roster}
            assert audit == {"stranger": False, "member": True}
            listening.cancel()

    run(scene())


@pytest.mark.parametrize(
    ("role", "audit", "member", "is_its"),
    [
        (Role.EVALUATOR, Auditing(), True, True),
        (Role.EVALUATOR, Auditing(share=0.0), True, False),
        (Role.SAMPLER, Auditing(), True, False),
        (Role.SAMPLER, Auditing(duty=True), True, True),
        (Role.SAMPLER, Auditing(duty=True), False, False),
        (Role.LEARNER, Auditing(duty=True), True, False),
    ],
)
def test_whose_duty_audits_are(role: Role, audit: Auditing, member: bool, is_its: bool) -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            shown = membership("peer", role) if member else None
            config = Config(peer=Peer(audit=audit))
            assert has_duty(still_host(network, "peer", role, config, membership=shown)) is is_its

    run(scene())


def test_a_sampler_that_asks_for_the_duty_and_is_no_member_is_told_that_it_has_none() -> None:
    async def scene() -> None:
        told, bus = list[Event](), Bus()
        bus.add(told.append)
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            config = Config(peer=Peer(audit=Auditing(duty=True)))
            host = still_host(network, "sampler", Role.SAMPLER, config, bus=bus)
            role = cast(Any, object())
            assert on_duty(host, role, cast(Any, None), lambda: 0, cast(Any, None)) is role
        (note,) = (event for event in told if isinstance(event, Noted))
        assert "no member" in note.text

    run(scene())


class NoAnswers(ToyEngine):
    """Has no memory beside replays."""

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        raise EngineError("out of memory")


def test_audits_end_where_the_peer_s_own_engine_fails() -> None:
    duties = {EVALUATOR: {"share": 0.5}}
    told = played(0.5, [], evaluators=1, duties=duties, broken={EVALUATOR: NoAnswers})
    (note,) = (event.text for event in of(told, Noted) if "not audited here any more" in event.text)
    assert "the engine failed beside them" in note
