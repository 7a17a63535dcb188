"""A swarm with an auditor: it takes the replays off the learners, which verify it and act on their own
replays alone."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace
from still_host import membership, still_host
from test_accused_swarm import CHEAT, Slander
from test_audited_swarm import HONEST, OtherText, of, played
from test_roles_swarm import EPOCH

from peers.audits.audit_duty import check_that_groups_are_audited
from peers.audits.auditor_peer import AuditorPeer
from peers.audits.evidence import Unsigned
from peers.audits.replayer import Replayer
from peers.audits.shown_groups import Verdict as Judgement
from peers.audits.submitted_groups import Submitted, SubmittedGroup, SubmittedQuery
from peers.audits.verdicts import SILENT, HonestGroup, VerdictExchange, Verdicts
from peers.errors import WrongUsage
from peers.runtime.host import Host
from swarm.core.audits.accusations import PER_HOUR, Opinion
from swarm.core.audits.auditing import SURE, Audits
from swarm.core.audits.verifiers import TRUSTED, Verifiers
from swarm.draws.heads import Head
from swarm.draws.replays import Replayed
from swarm.events import Audited, Bus, Event, Judged, Rejected
from swarm.frames import wire
from swarm.learn.files.weights import from_bytes
from swarm.limits import EVENT_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import NetError
from swarm.protocol import Role, Service, Topic
from swarm.sample.toy import TableReplay
from swarm.settings.config import Config, DelayLaw, Run, Sampling
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault
from swarm.storage.blocks import digest_of
from swarm.types import Digest, PeerId, Verdict

AUDITOR, LEARNER = "auditor-0", "learner-0"


class Blind(TableReplay):
    """Finds nothing."""

    def __init__(self) -> None:
        super().__init__(from_bytes)

    def replay(
        self, prompt: str, rows: Sequence[Sequence[int]], seed: int, head: Head | None = None
    ) -> Replayed:
        true = super().replay(prompt, rows, seed, head)
        return Replayed(np.zeros_like(true.margins), true.logprobs)


class LateCheat(OtherText):
    """Honest for as many groups as make an auditor trusted, and more."""

    def __init__(self) -> None:
        super().__init__()
        self._honest = 2 * TRUSTED

    def changed(self, prompt: str, tokens: np.ndarray, seed: int) -> np.ndarray:
        self._honest -= 1
        return tokens if self._honest >= 0 else super().changed(prompt, tokens, seed)


def by(told: list[Event], peer: str) -> Counter[str]:
    """Findings of a peer's replays."""
    return Counter(str(event.finding) for event in of(told, Audited) if event.peer == peer)


def named(told: list[Event], kind: str) -> list[str]:
    """Why the auditor is named."""
    refusals = [event for event in of(told, Rejected) if event.kind == kind]
    assert {event.sender for event in refusals} <= {AUDITOR}
    return [event.reason for event in refusals]


def aside(told: list[Event]) -> set[str]:
    return {event.sampler for event in of(told, Audited) if event.until > 0}


def test_a_learner_that_draws_nothing_sets_a_cheat_aside_within_seconds_by_its_replay_of_an_accusation() -> (
    None
):
    told = played(0.4, [OtherText], auditors=(None,), share=0.0)
    (event,) = (event for event in of(told, Audited) if event.until > 0)
    assert (event.peer, event.sampler) == (LEARNER, CHEAT) and event.at - EPOCH < 5
    assert event.why.endswith("; auditor-0 found it first")
    assert Verdict.UNVERIFIED in {one.verdict for one in of(told, Judged) if one.sampler == CHEAT}
    found = by(told, AUDITOR)
    assert found["forged"] == 1 and found["honest"] > HONEST * SURE
    assert by(told, LEARNER)["honest"] < 0.15 * found["honest"]


@pytest.fixture(scope="module")
def shares() -> dict[str, list[Event]]:
    """Honest swarms without an auditor and with one; a replay takes .2 s."""
    settings = {"share": 0.3, "audit_price": 0.2}
    return {
        "alone": played(2.0, [], **settings),
        "audited": played(2.0, [], auditors=(None,), **settings),
    }


def test_an_auditor_takes_the_replays_off_a_learner(shares: dict[str, list[Event]]) -> None:
    alone, audited = (by(told, LEARNER)["honest"] for told in shares.values())
    assert TRUSTED <= audited < alone / 3
    assert by(shares["audited"], AUDITOR)["honest"] > alone
    assert not aside(shares["audited"]) and not of(shares["audited"], Rejected)


def test_where_samplers_may_use_fewer_bits_an_auditor_takes_no_group() -> None:
    told = played(0.2, [], auditors=(None,), quantized=True)
    assert of(told, Judged) and not by(told, AUDITOR)
    sampling = Sampling(quantized=True)
    with pytest.raises(WrongUsage, match="no work for an auditor"):
        check_that_groups_are_audited(Config(run=Run(sampling=sampling)))


def test_an_auditor_that_calls_forgeries_honest_is_named_after_rechecks() -> None:
    told = played(0.8, [OtherText], auditors=(Blind,), share=0.0, rechecks=0.25)
    reasons = named(told, Topic.VERDICT)
    assert reasons and all(f"it calls a group of {CHEAT} honest that is forged" in why for why in reasons)
    assert aside(told) == {CHEAT}


def test_what_an_auditor_judged_is_reopened_once_it_was_wrong() -> None:
    told = played(2.0, [LateCheat], auditors=(Blind,), share=0.5, rechecks=0.2)
    why = named(told, Topic.VERDICT)
    assert len(why) == 1 and aside(told) == {CHEAT}
    count = re.search(r"none of its verdicts counts any more \((\d+) did\)", why[0])
    assert count is not None and int(count[1]) > TRUSTED
    (at,) = (event.at for event in of(told, Rejected))
    before, after = (
        len(
            [event for event in of(told, Audited) if event.peer == LEARNER and since <= event.at < since + 15]
        )
        for since in (at - 15, at)
    )
    assert after > 3 * before  # it replays itself again


def test_an_auditor_that_calls_honest_groups_forged_is_named_and_nobody_is_set_aside() -> None:
    told = played(0.5, [], auditors=(lambda: Slander(from_bytes),), share=0.0)
    reasons = named(told, Service.ACCUSED)
    assert reasons and all("honest by a replay here" in why for why in reasons)
    assert not aside(told) and Verdict.UNVERIFIED not in {event.verdict for event in of(told, Judged)}


def test_learners_verify_each_other_s_honest_verdicts_and_name_who_is_wrong() -> None:
    told = played(0.5, [OtherText], learners=(Blind, None), share=1.0, rechecks=0.5)
    refusals = [event for event in of(told, Rejected) if event.kind == Topic.VERDICT]
    assert refusals and {(event.peer, event.sender) for event in refusals} == {("learner-1", LEARNER)}
    assert {event.peer for event in of(told, Audited) if event.until > 0} == {"learner-1"}


def test_who_is_neither_learner_nor_auditor_tells_no_verdicts_and_is_told_of_no_groups() -> None:
    refused: list[str] = []

    def seed(host: Host) -> None:
        asyncio.get_running_loop().call_at(4.0, lambda: tasks.append(asyncio.ensure_future(say(host))))

    async def say(host: Host) -> None:
        said = Verdicts(version=0, weights=Digest(""), groups=())
        await host.ports.gossip.publish(host.topic(Topic.VERDICT), host.seal(said))
        question = wire.encode(SubmittedQuery(life=0, after=0))
        with pytest.raises(NetError) as error:
            await host.ports.mail.send(PeerId(LEARNER), Service.SUBMITTED, question, 5.0)
        refused.append(str(error.value))

    tasks: list[asyncio.Future[None]] = []
    told = played(0.2, [], seed=seed, share=0.0)
    (event,) = of(told, Rejected)
    assert (event.sender, event.kind) == ("seed-0", Topic.VERDICT) and "not a learner" in event.reason
    assert len(refused) == 1 and "only members that audit" in refused[0]


# --- learners that lie to an auditor ------------------------------------------------------------------------

FRAME = b"what a sampler signed"
TRUE = SubmittedGroup(
    group=digest_of(FRAME), sampler=PeerId(CHEAT), version=1, weights=Digest("1" * 64), wanted=True
)


class Tasks:
    """Rewards that cost nothing."""

    async def tasks(self, numbers: Sequence[int]) -> list[Any]:
        return [SimpleNamespace(prompt="") for _ in numbers]


def read(self: AuditorPeer, frame: bytes, one: SubmittedGroup) -> Any:
    if (digest_of(frame), one.sampler) != (TRUE.group, TRUE.sampler):
        raise Unsigned("it is another one")
    return SimpleNamespace(sampler=one.sampler, task=1, weights=one.weights)


@pytest.fixture
def no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """An auditor draws nothing but what is wanted, holds all versions and reads FRAME."""
    monkeypatch.setattr(Audits, "drawn", lambda *_: False)
    monkeypatch.setattr(Replayer, "hold", lambda *_: object())
    monkeypatch.setattr(AuditorPeer, "_read", read)


def asked(*listed: tuple[str, SubmittedGroup, bytes]) -> list[str]:
    """Learners list these groups to an auditor, one after another, and show these frames. Who is asked for
    one."""
    told: list[str] = []

    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, AUDITOR, Role.AUDITOR)
            auditor = AuditorPeer(host, cast(Any, None), 8, cast(Any, object))
            auditor._reward_calls = cast(Any, Tasks())

            async def answer(_: PeerId, question: bytes) -> bytes:
                learner, one, frame = lists[0]
                if not wire.decode(question, SubmittedQuery).group:
                    return wire.encode(Submitted(life=1, last=1, groups=(one, one)))
                told.append(learner)
                return frame

            lists = deque(listed)
            for learner in {learner for learner, *_ in listed}:
                await still_host(network, learner, Role.LEARNER).ports.mail.serve(Service.SUBMITTED, answer)
            while lists:
                await auditor._ask(PeerId(lists[0][0]))
                lists.popleft()
            assert len(auditor._queue) <= 1

    run(main())
    return told


@pytest.mark.usefixtures("no_draws")
def test_what_a_learner_lists_and_does_not_show_or_does_not_want_is_taken_of_another_one() -> None:
    others = replace(TRUE, sampler=PeerId("nobody"))
    assert asked(("liar", TRUE, b""), ("honest", TRUE, FRAME)) == ["liar", "honest"]
    assert asked(("liar", others, FRAME), ("honest", TRUE, FRAME)) == ["liar", "honest"]
    assert asked(("one", replace(TRUE, wanted=False), FRAME), ("other", TRUE, FRAME)) == ["other"]


@pytest.mark.usefixtures("no_draws")
def test_a_group_that_came_is_taken_once_and_nobody_is_asked_twice_for_what_it_does_not_show() -> None:
    assert asked(("one", TRUE, FRAME), ("other", TRUE, FRAME), ("one", TRUE, FRAME)) == ["one"]
    assert asked(*[("liar", TRUE, b"")] * 3, ("honest", TRUE, FRAME)) == ["liar", "honest"]


def test_throw_away_names_that_cheat_keep_no_later_cheat_from_being_set_aside() -> None:
    names = PER_HOUR + 8
    late = Fault(at=0.2, fault="bounce", peer=CHEAT, down=30.0)
    told = played(0.8, [OtherText] * (1 + names), late, auditors=(None,), share=0.0)
    assert aside(told) == {f"sampler-{number}" for number in range(1 + names)}
    (event,) = (event for event in of(told, Audited) if event.until > 0 and event.sampler == CHEAT)
    assert event.at - EPOCH < 40


# --- words that a replay contradicts later ------------------------------------------------------------------


class Words:
    """Takes words and reopens them."""

    def __init__(self) -> None:
        self.audits = Audits()

    def take_word(self, verdict: Judgement) -> None:
        self.audits.word(verdict.sampler, verdict.verifier)

    def reopen(self, verifier: PeerId) -> int:
        return self.audits.reopen(verifier)


@pytest.mark.parametrize("opinion", [Opinion.AGREED, Opinion.DISAGREED, Opinion.UNDECIDED])
def test_all_who_called_a_group_honest_are_compared_with_its_replay_though_one_was_believed(
    opinion: Opinion,
) -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            told, bus = list[Event](), Bus()
            bus.add(told.append)
            learner = still_host(network, LEARNER, Role.LEARNER, bus=bus)
            words, verifiers = Words(), Verifiers(0.0, Random(1))
            for _ in range(TRUSTED):
                verifiers.right(PeerId(AUDITOR))
            verdicts = VerdictExchange(learner, cast(Any, None), cast(Any, words), verifiers)
            verdicts.drawn(TRUE.group, TRUE.sampler)
            for name in ("before", AUDITOR, "after"):
                shown = membership(name, Role.AUDITOR)
                peer = still_host(network, name, Role.AUDITOR, membership=shown)
                honest = HonestGroup(sampler=TRUE.sampler, group=TRUE.group)
                said = Verdicts(version=1, weights=TRUE.weights, groups=(honest,))
                learner.take(verdicts.hear, Topic.VERDICT, PeerId(name), peer.seal(said, EVENT_LIMIT))
            assert words.audits.proven(TRUE.sampler)
            verdicts.replayed(TRUE.group, opinion)
            forged = opinion is Opinion.AGREED
            named = [event.sender for event in of(told, Rejected)]
            assert named == (["before", AUDITOR, "after"] if forged else [])
            assert verifiers.counts(PeerId(AUDITOR)) is words.audits.proven(TRUE.sampler) is not forged
            more = 1 if opinion is Opinion.DISAGREED else 0
            for name in ("before", "after"):
                assert verifiers._of(PeerId(name)).right == more

    run(scene())


def test_a_word_that_comes_while_a_group_is_replayed_here_takes_no_replay_s_place() -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            learner = still_host(network, LEARNER, Role.LEARNER)
            words, verifiers = Words(), Verifiers(0.0, Random(1))
            for _ in range(TRUSTED):
                verifiers.right(PeerId(AUDITOR))
            verdicts = VerdictExchange(learner, cast(Any, None), cast(Any, words), verifiers)
            verdicts.drawn(TRUE.group, TRUE.sampler)
            verdicts.begun(TRUE.group)
            verdicts._take(
                Judgement(PeerId(AUDITOR), True, TRUE.sampler, TRUE.group, 1, TRUE.weights), may_count=True
            )
            assert not words.audits.proven(TRUE.sampler)
            verdicts.replayed(TRUE.group, Opinion.AGREED)
            assert not verifiers.counts(PeerId(AUDITOR))

    run(scene())


def test_a_trusted_auditor_that_falls_silent_is_not_waited_for_until_it_speaks() -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            learner = still_host(network, LEARNER, Role.LEARNER)
            shown = membership(AUDITOR, Role.AUDITOR)
            auditor = still_host(network, AUDITOR, Role.AUDITOR, membership=shown)
            verifiers = Verifiers(0.0, Random(1))
            verdicts = VerdictExchange(learner, cast(Any, None), cast(Any, Words()), verifiers)
            for _ in range(TRUSTED):
                assert not verdicts.trusted()
                verifiers.right(PeerId(AUDITOR))
            listening = asyncio.create_task(learner.listen(Topic.BEAT, learner.hear_beat))

            async def pause(seconds: float) -> bool:
                await asyncio.sleep(seconds)
                await auditor._beats.send()
                await asyncio.sleep(0.1)
                return verdicts.trusted()

            assert await pause(30.0)
            verdicts.drawn(TRUE.group, TRUE.sampler)
            assert await pause(SILENT / 2) and not await pause(SILENT / 2)
            verdicts.drawn(Digest("2" * 64), TRUE.sampler)
            assert not await pause(1.0)
            said = Verdicts(version=1, weights=TRUE.weights, groups=())
            learner.take(verdicts.hear, Topic.VERDICT, PeerId(AUDITOR), auditor.seal(said, EVENT_LIMIT))
            assert await pause(1.0) and await pause(30.0)
            listening.cancel()

    run(scene())
