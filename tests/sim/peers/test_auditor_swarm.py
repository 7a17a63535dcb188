"""A swarm with an auditor: it accuses samplers that cheat, and learners act on their own replays alone."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from accused_swarms import CHEAT, Slander
from audited_swarms import HONEST, OtherText, of, played
from auditor_tasks import Tasks
from msgspec.structs import replace
from role_swarms import EPOCH
from still_host import still_host

from peers.audits.auditor_peer import AuditorPeer
from peers.audits.evidence import Unsigned
from peers.audits.replayer import Replayer
from peers.audits.submitted_groups import Submitted, SubmittedGroup, SubmittedQuery
from peers.build.assembly import check_that_groups_are_audited
from peers.errors import WrongUsage
from peers.runtime.host import Host
from peers.runtime.watching.suspensions import Accusation
from swarm.core.audits.accusations import PER_HOUR
from swarm.core.audits.auditing import SURE, Audits
from swarm.events import Audited, Event, Judged, Rejected
from swarm.frames import wire
from swarm.learn.files.weights import from_bytes
from swarm.limits import RELEASE_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import NetError
from swarm.protocol import Role, Service, Topic
from swarm.settings.config import Config, DelayLaw, Run, Sampling
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault
from swarm.storage.blocks import digest_of
from swarm.types import Digest, PeerId, Verdict

AUDITOR, LEARNER = "auditor-0", "learner-0"
SCARCE = {"share": 0.01, "audit_price": 0.05}
"""A replay takes 50 ms, and a learner has time for one in 5 s."""


class LateCheat(OtherText):
    """Honest for as many groups as are all replayed of a newcomer."""

    def __init__(self) -> None:
        super().__init__()
        self._honest = SURE

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


def suspended(told: list[Event]) -> set[str]:
    return {event.sampler for event in of(told, Audited) if event.until > 0}


def test_a_learner_without_time_suspends_a_cheat_within_seconds_by_its_replay_of_an_accusation() -> None:
    told = played(0.8, [LateCheat], auditors=(None,), **SCARCE)
    forged = next(event for event in of(told, Audited) if event.peer == AUDITOR and event.finding == "forged")
    (event,) = (event for event in of(told, Audited) if event.until > 0)
    assert (event.peer, event.sampler) == (LEARNER, CHEAT) and 0 < event.at - forged.at < 6
    assert event.why.endswith("; auditor-0 found it first")
    assert Verdict.UNVERIFIED in {one.verdict for one in of(told, Judged) if one.sampler == CHEAT}
    found = by(told, AUDITOR)
    assert found["forged"] <= 6 and found["honest"] > HONEST * SURE
    assert by(told, LEARNER)["honest"] < 0.15 * found["honest"]


def test_where_samplers_may_use_fewer_bits_an_auditor_takes_no_group() -> None:
    told = played(0.2, [], auditors=(None,), quantized=True)
    assert of(told, Judged) and not by(told, AUDITOR)
    sampling = Sampling(quantized=True)
    with pytest.raises(WrongUsage, match="no work for an auditor"):
        check_that_groups_are_audited(Config(run=Run(sampling=sampling)))


def test_an_auditor_that_calls_honest_groups_forged_is_named_and_nobody_is_suspended() -> None:
    told = played(0.5, [], auditors=(lambda: Slander(from_bytes),), share=1.0)
    reasons = named(told, Service.ACCUSED)
    assert reasons and all("honest by a replay here" in why for why in reasons)
    assert not suspended(told) and Verdict.UNVERIFIED not in {event.verdict for event in of(told, Judged)}


def test_who_is_neither_learner_nor_auditor_accuses_nobody_and_is_told_of_no_groups() -> None:
    refused: list[str] = []

    def seed(host: Host) -> None:
        asyncio.get_running_loop().call_at(4.0, lambda: tasks.append(asyncio.ensure_future(say(host))))

    async def say(host: Host) -> None:
        said = Accusation(PeerId(CHEAT), Digest("f" * 64), version=0, weights=Digest(""))
        await host.ports.gossip.publish(host.topic(Topic.ACCUSED), host.seal(said, RELEASE_LIMIT))
        question = wire.encode(SubmittedQuery(life=0, after=0))
        with pytest.raises(NetError) as error:
            await host.ports.mail.send(PeerId(LEARNER), Service.SUBMITTED, question, 5.0)
        refused.append(str(error.value))

    tasks: list[asyncio.Future[None]] = []
    told = played(0.2, [], seed=seed, share=1.0)
    mine = [event for event in of(told, Rejected) if event.peer == LEARNER]
    assert [(event.sender, event.kind) for event in mine] == [("seed-0", Topic.ACCUSED)]
    assert "not a learner" in mine[0].reason
    assert len(refused) == 1 and "only auditors" in refused[0]


# --- learners that lie to an auditor ------------------------------------------------------------------------

FRAME = b"what a sampler signed"
TRUE = SubmittedGroup(group=digest_of(FRAME), sampler=PeerId(CHEAT), version=1, weights=Digest("1" * 64))


def read(self: AuditorPeer, frame: bytes, one: SubmittedGroup) -> Any:
    if (digest_of(frame), one.sampler) != (TRUE.group, TRUE.sampler):
        raise Unsigned("it is another one")
    return SimpleNamespace(sampler=one.sampler, task=1, weights=one.weights)


@pytest.fixture
def all_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """An auditor draws all groups, holds all versions and reads FRAME."""
    monkeypatch.setattr(Audits, "drawn", lambda *_: True)
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


@pytest.mark.usefixtures("all_drawn")
def test_what_a_learner_lists_and_does_not_show_is_taken_of_another_one() -> None:
    others = replace(TRUE, sampler=PeerId("nobody"))
    assert asked(("liar", TRUE, b""), ("honest", TRUE, FRAME)) == ["liar", "honest"]
    assert asked(("liar", others, FRAME), ("honest", TRUE, FRAME)) == ["liar", "honest"]


@pytest.mark.usefixtures("all_drawn")
def test_a_group_that_came_is_taken_once_and_nobody_is_asked_twice_for_what_it_does_not_show() -> None:
    assert asked(("one", TRUE, FRAME), ("other", TRUE, FRAME), ("one", TRUE, FRAME)) == ["one"]
    assert asked(*[("liar", TRUE, b"")] * 3, ("honest", TRUE, FRAME)) == ["liar", "honest"]


def test_throw_away_names_that_cheat_keep_no_later_cheat_from_being_suspended() -> None:
    names = PER_HOUR + 8
    late = Fault(at=0.2, fault="bounce", peer=CHEAT, down=18.0)
    told = played(0.6, [OtherText] * (1 + names), late, auditors=(None,), **SCARCE)
    assert suspended(told) == {f"sampler-{number}" for number in range(1 + names)}
    (event,) = (event for event in of(told, Audited) if event.until > 0 and event.sampler == CHEAT)
    assert event.at - EPOCH < 28
