"""Who is revoked is out of a simulated swarm within half a minute, at everybody, and stays out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cache
from random import Random
from typing import Any

import pytest
from role_swarms import EPOCH, Told, scenario
from still_host import membership, still_host

from peers.commands import sim
from peers.runtime.host import Host
from swarm.core import revocation
from swarm.core.revocation import YOU
from swarm.events import Averaged, Event, Judged, Left, Lost, Noted, Released, Trained
from swarm.frames import wire
from swarm.frames.run_types import Revocation
from swarm.limits import RELEASE_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Refused
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault
from swarm.sim.world import SimPeer, World
from swarm.types import Digest, PeerId, Release, Verdict

AT, WITHIN = 15.0, 30.0
"""Seconds into the run of the revocation, and then until everybody obeys."""

CAME, BACK = 50.0, 55.0
"""Seconds at which a newcomer joins, and at which a learner is back that knew the list and lost it."""

STAYS, GOES = PeerId("sampler-1"), PeerId("learner-1")
"""Revoked peers: one that goes on as if it was not, and an honest one."""

THIRD = PeerId("learner-2")


def release(version: int, at: float) -> Release:
    return Release(
        version=version,
        weights=Digest(f"{version:064x}"),
        size=10,
        parent=Digest(f"{version - 1:064x}"),
        publisher=GOES,
        learners=1,
        groups=8,
        released=at,
    )


SHOWERS = {"stranger": None, "auditor": Role.AUDITOR, "learner": Role.LEARNER, "seed": Role.SEED}


@pytest.mark.parametrize("shower", SHOWERS)
def test_a_release_of_who_was_revoked_counts_as_of_before_by_an_invited_seed_s_or_learner_s_word_alone(
    shower: str,
) -> None:
    role = SHOWERS[shower]

    async def scene() -> bool:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            me = still_host(network, "ada", Role.LEARNER)
            out = still_host(network, GOES, Role.LEARNER, membership=membership(GOES, Role.LEARNER))
            other = network.ports(PeerId(shower), lambda _: 0.0)
            if role is not None:
                mine = membership(shower, role)
                assert me.trust.objection(other.me, role, mine, me.now()) is None
            at = me.now()
            entries = [Revocation(at=int(at), peer=GOES)]
            me.revocations.take(revocation.sealed(me.config.run.name, 1, entries, lambda _: b""))
            await me.ports.clock.sleep(600)
            back = out.frames.seal(release(7, at - 1), RELEASE_LIMIT)
            late = out.frames.seal(release(8, me.now()), RELEASE_LIMIT)
            for sealed in (back, late):

                async def newest(*_: object, sealed: bytes = sealed) -> bytes:
                    return sealed

                await other.mail.serve("newest", newest)
                await me.queries.ask_newest([other.me])
            with pytest.raises(wire.WireError, match="revoked"):
                me.releases.receive(back)  # as of a board, which anybody writes
            assert not me.releases.known(8, release(8, 0.0).weights)
            return bool(me.releases.known(7, release(7, 0.0).weights))

    assert run(scene()) is (role in (Role.LEARNER, Role.SEED))


class Revoked(Told):
    """Two learners and two samplers, of which one each is revoked."""

    def __init__(self) -> None:
        self.all = []
        self.hosts: dict[str, Host] = {}
        self.refusals: list[str] = []
        late = Fault(at=CAME, fault="host", peer="sampler-2")
        bounced = Fault(at=BACK - 5, fault="bounce", peer="learner-0", down=5.0)
        played = scenario(1.3, (2, 2), late, bounced)
        self.outcome = World(played, self.spawn, sinks=[self.all.append]).run()

    def spawn(self, peer: SimPeer) -> Coroutine[Any, Any, None]:
        def role(host: Host, parts: sim.PolicyParts) -> sim.RoleProgram:
            self.hosts[peer.name] = host
            loop = asyncio.get_running_loop()
            if peer.name == "seed-0":
                loop.call_at(AT, self.revoke, host)
            if peer.name == STAYS:
                host.leave = lambda: None  # type: ignore[method-assign]
                loop.call_at(AT + WITHIN, lambda: loop.create_task(self.ask_all(host)))
            return sim.role_of(host, parts)

        return sim.run_peer(peer, sim.policy_parts(peer.config), role)

    def revoke(self, seed: Host) -> None:
        entries = [Revocation(at=int(seed.now()), peer=peer) for peer in (STAYS, GOES)]
        seed.revocations.take(revocation.sealed("roles", 2, entries, lambda _: b""))
        seed.revocations.take(revocation.sealed("roles", 1, (), lambda _: b""))

    async def ask_all(self, host: Host) -> None:
        """Some service of everybody."""
        for peer in ("seed-0", "learner-0", "sampler-0"):
            try:
                await host.ports.mail.send(PeerId(peer), "newest", b"")
            except Refused as error:
                self.refusals.append(str(error))


@cache
def swarm() -> Revoked:
    return Revoked()


def heard(peer: str, since: float = 0.0, until: float = 1e9) -> list[Noted]:
    return [one for one in swarm().of(Noted, peer, since, until) if "has revoked" in one.text]


def test_everybody_has_the_list_within_half_a_minute_and_who_comes_later_by_its_first_look() -> None:
    for peer in ("seed-0", "learner-0", "learner-1", "sampler-0", "sampler-1"):
        assert len(heard(peer, AT, AT + WITHIN)) == 1, peer
    assert STAYS in heard("sampler-0")[0].text and GOES in heard("sampler-0")[0].text
    assert heard("sampler-2", CAME, CAME + WITHIN) and heard("learner-0", BACK, BACK + WITHIN)
    assert {host.trust.revocations.number for host in swarm().hosts.values()} == {2}, (
        "an older one is nothing"
    )


def test_nothing_of_a_revoked_sampler_is_taken_though_it_stays() -> None:
    told = swarm()
    mine = [one for one in told.of(Judged) if one.sampler == STAYS and one.verdict is Verdict.ADMIT]
    assert [one for one in mine if one.at < EPOCH + AT] and max(one.at for one in mine) < EPOCH + AT + WITHIN
    assert told.refusals == [YOU] * 3, "its mail is not read"
    others = told.of(Judged, "learner-0", AT + WITHIN)
    assert [one for one in others if one.sampler == "sampler-0" and one.verdict is Verdict.ADMIT]
    assert not told.of(Lost, "learner-0", AT + WITHIN, BACK - 5), "it is no peer that is missed"


def test_a_revoked_learner_leaves_and_the_other_trains_alone() -> None:
    told = swarm()
    assert told.of(Left, GOES, AT, AT + WITHIN) and swarm().hosts[GOES].revocations.refused.startswith(YOU)
    assert any(one.members == 2 for one in told.of(Trained, "learner-0", until=AT))
    alone = told.of(Trained, "learner-0", AT + WITHIN)
    assert alone and all(one.members == 1 for one in alone)
    assert not told.of(Averaged, GOES, AT + WITHIN)


def test_two_of_three_learners_that_are_revoked_and_stay_have_no_vote() -> None:
    told = list[Event]()

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        def role(host: Host, parts: sim.PolicyParts) -> sim.RoleProgram:
            if peer.name == "seed-0":
                entries = [Revocation(at=int(host.now() + AT), peer=each) for each in (GOES, THIRD)]
                sealed = revocation.sealed("roles", 1, entries, lambda _: b"")
                asyncio.get_running_loop().call_at(AT, lambda: host.revocations.take(sealed))
            if peer.name in (GOES, THIRD):
                host.leave = lambda: None  # type: ignore[method-assign]
            return sim.role_of(host, parts)

        return sim.run_peer(peer, sim.policy_parts(peer.config), role)

    World(scenario(0.9, (3, 4)), spawn, sinks=[told.append]).run()
    released = [event.release for event in told if isinstance(event, Released)]
    before = [one for one in released if one.released < EPOCH + AT]
    after = [one for one in released if one.released > EPOCH + AT + 15.0]
    assert max(one.learners for one in before) == 3
    assert len(after) > 5 and {(one.publisher, one.learners) for one in after} == {("learner-0", 1)}
