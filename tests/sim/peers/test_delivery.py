"""Deliveries of the sampler that ships, on the ports of memory: whatever comes of one, the sampler goes on
and nothing storms."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import msgspec
import pytest
from nouns import beat, release
from role_swarms import Told, scenario
from still_host import RUN, still_host

from peers.runtime.frames import Frames
from peers.sampler.outbox import Outbox
from peers.sampler.sampler import OUTBOX, Sampler
from swarm import events
from swarm.core.intake.deliveries import LONGEST, SHORTEST, TABLE, DeliveryLoss, NextStep, Outcome
from swarm.core.stream_slots import RATE
from swarm.frames import wire
from swarm.limits import MAIL_LIMIT
from swarm.net.memory.network import EPOCH, MemoryNetwork
from swarm.net.ports import Refused
from swarm.protocol import Role
from swarm.settings.config import BatchSize, Config, DelayLaw, Run, Sampling, Window
from swarm.sim.clock import run
from swarm.sim.flows import AccessLine
from swarm.sim.links import SimLinks
from swarm.tasks.toy import Toy
from swarm.types import Array, Digest, Group, PeerId, Receipt, Times, Verdict

LINK = 0.05
"""Seconds of a message's way to a learner."""

NEAR, FAR = PeerId("learner-0"), PeerId("learner-1")
SAMPLER = PeerId("sampler-0")


def group_of(number: int, tokens: int = 4) -> Group:
    array = Array(dtype="int32", shape=(tokens,), data=os.urandom(4 * tokens))
    return Group(
        id=f"{number:032x}",
        sampler=SAMPLER,
        task=number,
        version=0,
        weights=Digest(""),
        draw=0,
        seed=number,
        lengths=(tokens - 1, 1),
        tokens=array,
        logprobs=array,
        rewards=(0.0, 1.0),
        times=Times(released=EPOCH, fetched=EPOCH, used=EPOCH, finished=EPOCH, sent=EPOCH),
    )


def receipt(verdict: Verdict, credit: int = 64) -> bytes:
    return wire.encode(Receipt(verdict=verdict, detail="told why", version=0, credit=credit))


class Site:
    """A sampler's host among learners that answer as a script says; `sent` is what arrived: (learner, group,
    seconds)."""

    def __init__(self, network: MemoryNetwork, window: Window) -> None:
        self.network = network
        config = Config(run=Run(sampling=Sampling(group_size=2), window=window))
        self.host = still_host(network, SAMPLER, Role.SAMPLER, config)
        self.told: list[events.Event] = []
        self.host.bus.add(self.told.append)
        engine: Any = None
        self.sampler = Sampler(self.host, engine, Toy(1, {}), None)
        self.sent: list[tuple[PeerId, str, float]] = []

    async def learner(
        self, peer: PeerId, answer: Callable[[Group], Awaitable[bytes]], credit: int = 64
    ) -> None:
        ports = self.network.ports(peer, lambda kind: 0.0)
        frames = Frames(RUN, ports.keyring, None, None)

        async def receive(sender: PeerId, message: bytes) -> bytes:
            group = frames.read(message, MAIL_LIMIT, Group)[1]
            self.sent.append((peer, group.id, self.host.now() - EPOCH))
            return await answer(group)

        await ports.mail.serve("groups", receive)
        self.heard(peer, credit)

    def heard(self, peer: PeerId, credit: int, seq: int = 1) -> None:
        self.host.roster.receive(peer, beat(name=peer, seq=seq, credit=credit, at=EPOCH), self.host.now())


def on_site(
    play: Callable[[Site], Awaitable[None]],
    window: Window | None = None,
    lines: Mapping[PeerId, AccessLine] | None = None,
) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=LINK), 1e9, Random(1), lines)
        async with MemoryNetwork(Random(2), links) as network:
            await play(Site(network, window or Window()))

    run(main())


async def takes(group: Group) -> bytes:
    return receipt(Verdict.ADMIT)


def once(outcome: Outcome) -> Callable[[Group], Awaitable[bytes]]:
    """Ends the first delivery of a group in `outcome`; every later one is admitted."""
    met = Counter[str]()

    async def answer(group: Group) -> bytes:
        met[group.id] += 1
        if met[group.id] > 1:
            return receipt(Verdict.ADMIT)
        match outcome:
            case DeliveryLoss.REFUSED:
                raise Refused("busy: too many calls at once, try later")
            case DeliveryLoss.SILENT:
                await asyncio.sleep(60.0)
            case DeliveryLoss.DAMAGED:
                return b"no receipt"
        return receipt(Verdict(outcome))

    return answer


@pytest.mark.parametrize("outcome", [*Verdict, *DeliveryLoss])
def test_after_each_outcome_of_a_delivery_the_sampler_does_what_the_table_says(outcome: Outcome) -> None:
    async def play(site: Site) -> None:
        group = group_of(1, tokens=1_000_000 if outcome is DeliveryLoss.TOO_LARGE else 4)
        if outcome is DeliveryLoss.UNREACHABLE:
            site.heard(NEAR, 64)  # it is heard, and nobody is there until later
            soon = LINK + SHORTEST / 2
            asyncio.get_running_loop().call_later(
                soon, lambda: site.network.tasks.create_task(site.learner(NEAR, takes))
            )
        else:
            await site.learner(NEAR, once(outcome))
        delivery = asyncio.create_task(site.sampler._deliver(group))
        await asyncio.sleep(SHORTEST / 4)  # it is on its way
        await site.learner(FAR, takes)
        await delivery
        went, then = [peer for peer, _, _ in site.sent], TABLE[outcome]
        nowhere = outcome in (DeliveryLoss.UNREACHABLE, DeliveryLoss.TOO_LARGE)
        expected = {
            NextStep.DONE: [],
            NextStep.DROPPED: [],
            NextStep.AGAIN: [NEAR],
            NextStep.ELSEWHERE: [FAR],
        }[then]
        assert went == ([] if nowhere else [NEAR]) + expected
        assert site.host.status.refused == (then is NextStep.DROPPED)
        assert site.host.roster.beat(NEAR) and site.host.roster._known[NEAR].in_flight == 0
        notes = [event.text for event in site.told if isinstance(event, events.Noted)]
        assert len(notes) == (then is not NextStep.DONE), notes
        assert all(str(outcome.value) in note or "does not fit" in note for note in notes)
        if not nowhere and expected:
            assert site.sent[1][2] - site.sent[0][2] >= 0.75 * SHORTEST, "not before a pause"

    on_site(play)


async def refuses(group: Group) -> bytes:
    raise Refused("busy: too many calls at once, try later")


async def over_quota(group: Group) -> bytes:
    return receipt(Verdict.OVER_QUOTA)  # with a credit that is not there


@pytest.mark.parametrize("answer", [refuses, over_quota])
def test_a_full_outbox_does_not_storm_a_learner_that_takes_nothing(
    answer: Callable[[Group], Awaitable[bytes]],
) -> None:
    seconds = 90.0

    async def play(site: Site) -> None:
        await site.learner(NEAR, answer)
        deliveries = [asyncio.create_task(site.sampler._deliver(group_of(i))) for i in range(OUTBOX)]
        await asyncio.sleep(seconds)
        at = [when for _, _, when in site.sent]
        first = [when for when in at if when < LINK + SHORTEST / 2]
        assert len(first) == 64, "what its credit allows"
        growing = math.ceil(math.log(LONGEST / SHORTEST, 1.5))
        assert len(at) - 64 <= growing + seconds / (0.75 * LONGEST), "one at a time, with a pause that grows"
        notes = [event for event in site.told if isinstance(event, events.Noted)]
        assert 5 < len(notes) <= len(at) - 63
        for delivery in deliveries:
            delivery.cancel()
        await asyncio.wait(deliveries)

    on_site(play)


def test_a_learner_that_takes_groups_again_gets_all_that_wait() -> None:
    async def play(site: Site) -> None:
        closed = True

        async def answer(group: Group) -> bytes:
            return receipt(Verdict.OVER_QUOTA if closed else Verdict.ADMIT)

        await site.learner(NEAR, answer)
        deliveries = [asyncio.create_task(site.sampler._deliver(group_of(i))) for i in range(200)]
        await asyncio.sleep(20.0)
        closed, opened = False, site.host.now() - EPOCH
        await asyncio.gather(*deliveries)
        assert site.host.status.refused == 0
        assert max(when for _, _, when in site.sent) - opened < 4 * LONGEST

    on_site(play)


def test_a_group_that_grew_too_old_while_it_waited_is_sent_to_nobody() -> None:
    async def play(site: Site) -> None:
        await site.learner(NEAR, refuses)
        site.host.releases.candidates.receive(release(version=1), b"")
        site.host.releases.candidates.hold(release(version=1))
        await site.sampler._deliver(group_of(1))
        assert max(when for _, _, when in site.sent) <= 5.0 < site.host.now() - EPOCH
        assert site.host.status.refused == 1

    on_site(play, Window(seconds=5.0))


def test_samplers_outlast_a_learner_whose_rewards_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """More groups than mail answers at once would be scored at the learner; the swarm trains at the speed of
    its rewards."""
    monkeypatch.setattr(Toy, "slow", True)
    played = scenario(2.0, (1, 6), batch=BatchSize(groups=128, close_after=10.0))
    told = Told(
        msgspec.structs.replace(
            played, prices=played.prices | {"score": DelayLaw(law="constant", seconds=4.0)}
        )
    )
    refused = [event for event in told.of(events.Noted, "sampler") if "refused" in event.text]
    assert not refused
    assert len(told.of(events.Judged)) > 20 and told.of(events.Trained)


def test_a_large_group_has_as_long_on_a_slow_line_as_its_learner_gives_it() -> None:
    async def play(site: Site) -> None:
        await site.learner(NEAR, takes)
        async with asyncio.timeout(40.0):  # it would come again and again, and never as a whole
            await site.sampler._deliver(group_of(1, tokens=1 << 18))
        assert [peer for peer, *_ in site.sent] == [NEAR] and site.host.status.admitted == 1

    on_site(play, lines={SAMPLER: AccessLine(up=RATE, down=RATE)})


def test_no_later_life_delivers_a_group_that_fits_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def said(self: Outbox, group: str) -> None:
        done.append(group)

    async def play(site: Site) -> None:
        await site.learner(NEAR, takes)
        await site.sampler._deliver(group := group_of(1, tokens=1_000_000))
        assert done == [group.id] and not site.sent

    monkeypatch.setattr(Outbox, "done", said)
    on_site(play)
