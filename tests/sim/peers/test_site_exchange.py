"""What other learners say of contributions and lists: what counts, what is fetched, and who is named when it
is wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest
import torch
from nouns import beat
from still_host import membership, still_host

from peers.learner.site_exchange import KEEP, LARGEST_LIST, SETTLED, SiteExchange, Taken
from swarm.core.agreement.site_lists import PATIENCE, entries
from swarm.core.membership import Trust
from swarm.events import Event, Noted, Rejected
from swarm.frames import wire
from swarm.frames.site_types import CONTRIBUTED, Contributed, Contribution, ContributionList, ListEntry
from swarm.learn.learners.site_learner import SiteLearner
from swarm.learn.models.tabular import Tabular
from swarm.limits import RELEASE_LIMIT
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Service, Topic
from swarm.settings.config import (
    Averaging,
    Config,
    DelayLaw,
    EngineSettings,
    Optimizer,
    Peer,
    Run,
    TaskSettings,
)
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import Blocks
from swarm.types import Digest, PeerId

CONFIG = Config(
    run=Run(
        name="sites",
        task=TaskSettings(name="toy"),
        optimizer=Optimizer(lr=0.1),
        averaging=Averaging(mode="sites", density=0.25),
    ),
    peer=Peer(engine=EngineSettings(name="toy", tasks=1)),
)
WEIGHTS = Digest("a" * 64)


class One:
    """A learner's exchange at version 7, whose learner has stepped; its role is the host's."""

    def __init__(self, network: MemoryNetwork, name: str, role: Role = Role.LEARNER) -> None:
        trust = Trust("sites", b"owner", False, lambda *_: True)
        self.network, who = network, {"membership": membership(name, role)}
        self.host = still_host(network, name, role, CONFIG, trust=trust, **who)
        self.told: list[Event] = []
        self.host.bus.add(self.told.append)
        self.learner = SiteLearner(Tabular(), CONFIG.run)
        self.learner.version = 7
        self.learner.step_locally(torch.randn(self.learner.size, generator=torch.Generator().manual_seed(1)))
        self.exchange = SiteExchange(self.host, self.learner, lambda: (self.learner.version, WEIGHTS))
        self.said: list[Topic] = []
        """By the exchange."""
        say = self.exchange._publish

        async def told(topic: Topic, sealed: bytes) -> None:
            self.said.append(topic)
            await say(topic, sealed)

        self.exchange._publish = told  # type: ignore[method-assign]

    @property
    def me(self) -> PeerId:
        return self.host.ports.me

    async def say(self, topic: Topic, noun: object) -> None:
        sealed = self.host.seal(noun, RELEASE_LIMIT)
        await self.host.ports.gossip.publish(self.host.topic(topic), sealed)

    def hold(self, values: bytes, **changes: Any) -> Contribution:
        """A contribution of mine with these values."""
        return self.hold_bytes(wire.encode(Contributed(groups=bytes(8), values=values)), **changes)

    def hold_bytes(self, data: bytes, **changes: Any) -> Contribution:
        blocks = Blocks.of(data)
        self.exchange._blobs.hold(7, blocks)
        good = Contribution(
            version=7,
            weights=WEIGHTS,
            learner=self.me,
            root=blocks.root,
            size=blocks.size,
            groups=8,
            weight=8.0,
        )
        return msgspec.structs.replace(good, **changes)

    def listed(self, *entries: ListEntry, **changes: Any) -> ContributionList:
        blocks = Blocks.of(wire.encode(entries))
        self.exchange._blobs.hold(7, blocks)
        good = ContributionList(
            version=7, weights=WEIGHTS, leader=self.me, root=blocks.root, size=blocks.size
        )
        return msgspec.structs.replace(good, **changes)

    async def took(self, seconds: float) -> Taken | None:
        """The first list that it takes, after so many seconds."""
        taken = None
        for _ in range(int(2 * seconds)):
            await asyncio.sleep(0.5)
            taken = taken or await self.exchange.take()
        return taken

    def rejected(self) -> list[str]:
        return [f"{event.sender} {event.reason}" for event in self.told if isinstance(event, Rejected)]


def entry(one: Contribution, **changes: Any) -> ListEntry:
    good = ListEntry(
        learner=one.learner, root=one.root, size=one.size, groups=one.groups, weight=one.weight, share=1.0
    )
    return msgspec.structs.replace(good, **changes)


Promise = Callable[[One, One, One], Awaitable[None]]


def among(promise: Promise, third: Role = Role.LEARNER) -> None:
    """Two learners and a third peer that know each other, in virtual time."""

    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.02), 12.5e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            all_ = [One(network, "one"), One(network, "two"), One(network, "three", third)]
            for here in all_:
                for there in all_:
                    if there is not here:
                        here.host.roster.receive(there.me, beat(name=there.me, version=7), here.host.now())
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one.exchange.run()) for one in all_]
                await asyncio.sleep(0.1)
                await promise(*all_)
                for task in running:
                    task.cancel()

    run(main())


def test_what_one_contributes_the_others_have() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await one.exchange.contribute(8, 6.5, b"first...second..")
        await asyncio.sleep(1.0)
        for other in (two, three):
            gathered = other.exchange.gathered()
            assert gathered.named["one"].weight == 6.5  # type: ignore[index]
            assert gathered.norms == one.exchange.gathered().norms
            assert not other.rejected()

    among(promise)


def test_a_list_and_all_that_it_names_come_to_who_heard_of_none_of_it() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        for each in (one, two):
            await each.exchange.contribute(8, 8.0, each.me.encode().ljust(8))
        await asyncio.sleep(1.0)
        three.learner.version = 6  # it is late
        three.exchange.gathered()
        await one.exchange.close()
        three.learner.version = 7
        taken = await three.took(10)
        mine = await one.exchange.take()
        assert taken is not None and taken == mine
        assert taken.members == {"one", "two"} and taken.groups == 16
        assert [one.factor for one in taken.counted] == [0.5, 0.5]
        assert taken.marks == {"one": b"one     ", "two": b"two     "}
        assert one.exchange.mine(taken) and not three.exchange.mine(taken)

    among(promise)


def test_what_was_said_is_said_again_to_who_did_not_hear_it() -> None:
    """A contribution until there is a list, and a list while somebody contributes to its version."""

    async def promise(one: One, two: One, three: One) -> None:
        beat = CONFIG.run.pace.beat
        three.learner.version = two.learner.version = 6
        await one.exchange.contribute(8, 8.0, bytes(8))
        await asyncio.sleep(1.0)
        two.learner.version = 7
        await asyncio.sleep(beat)
        assert two.exchange.gathered().named.keys() == {"one"}
        await one.exchange.close()
        one.learner.version, said = 8, len(one.said)
        await asyncio.sleep(3 * beat)
        assert len(one.said) == said
        three.exchange._lists.clear()  # it did not come
        three.learner.version = 7
        await three.exchange.contribute(8, 8.0, b"third   ")
        await asyncio.sleep(beat + 1.0)
        assert {*one.said[said:]} == {Topic.COUNTED}
        taken = await three.took(5)
        assert taken is not None and taken.members == {"one"}

    among(promise)


def test_at_another_version_nothing_is_left_of_the_one_before() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await one.exchange.contribute(8, 8.0, bytes(8))
        await two.say(Topic.COUNTED, two.listed(entry(two.hold(b"nothing"))))
        await asyncio.sleep(1.0)
        assert await one.exchange.take() is None
        await asyncio.sleep(1.0)
        assert await one.exchange.take() is None and one.exchange._refused
        await one.exchange.close()
        assert (taken := await one.exchange.take()) is not None and not one.exchange.undecided
        one.learner.version, said = 8, len(one.said)
        assert one.exchange.undecided and not one.exchange.gathered().named
        assert not one.exchange.mine(taken) and await one.exchange.take() is None
        assert not one.exchange._refused and not one.exchange._tried
        await asyncio.sleep(3 * CONFIG.run.pace.beat)
        assert len(one.said) == said
        await one.exchange.contribute(5, 5.0, b"another ")
        await one.exchange.close()
        after = await one.exchange.take()
        assert after is not None and after.groups == 5 and one.exchange.mine(after)

    among(promise)


def test_what_a_list_names_and_is_not_here_any_more_is_fetched_again() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await two.exchange.contribute(8, 8.0, bytes(8))
        await asyncio.sleep(1.0)
        del one.exchange._blobs._whole[one.exchange.gathered().named[two.me].root]
        await two.exchange.close()
        await asyncio.sleep(1.0)
        assert await one.exchange.take() is None
        taken = await one.took(5)
        assert taken is not None and taken.members == {"two"}

    among(promise)


def test_what_i_named_in_a_life_before_is_not_named_by_me() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        before = one.host.seal(one.hold(one.learner.contribution()), RELEASE_LIMIT)
        for each in (one, three):  # others pass on what was said
            each.exchange._receive(before)
        assert three.exchange.gathered().named.keys() == {"one"}
        assert not one.exchange.gathered().named and not one.rejected()

    among(promise)


def test_of_two_with_the_same_group_one_is_listed_also_where_one_of_them_closes() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        for each in (one, two):
            await each.exchange.contribute(8, 8.0, b"the same")
        await asyncio.sleep(1.0)
        for each in (one, two):
            listed = entries(each.exchange.gathered(), 0.0, 1)
            assert len(listed) == 1

    among(promise)


def test_a_learner_that_is_heard_of_later_gives_what_another_one_does_not() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        data = one.exchange._packed(bytes(8))[0].whole
        two.hold_bytes(data)
        named = one.hold_bytes(data)
        three.host.roster.forget(two.me)
        await one.say(Topic.CONTRIBUTION, named)
        await asyncio.sleep(0.03)
        cast(SimLinks, three.network.links).oneway([one.me], [three.me])
        await asyncio.sleep(1.0)
        assert not three.exchange.gathered().norms
        assert three.host.roster.receive(two.me, beat(name=two.me, seq=2, version=7), three.host.now())
        await asyncio.sleep(3.0)
        assert three.exchange.gathered().norms

    among(promise)


NONE = wire.encode(Contributed(groups=b"", values=b"nothing"))
TOO_MANY = wire.encode(Contributed(groups=bytes(8 * CONTRIBUTED + 8), values=b""))


@pytest.mark.parametrize("data", [b"nothing", b"\1" + bytes(100), NONE, TOO_MANY])
def test_bytes_that_are_no_contribution_name_their_learner(data: bytes) -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await two.say(Topic.CONTRIBUTION, two.hold_bytes(data))
        await asyncio.sleep(1.0)
        gathered = one.exchange.gathered()
        assert gathered.useless == {"two"} and not gathered.norms and not gathered.missing()
        assert len(one.rejected()) == 1 and one.rejected()[0].startswith("two contribution to version 7: ")

    among(promise)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"learner": PeerId("one")}, "not signed by one"),
        ({"size": 1 << 40}, "at most"),
        ({"size": 0}, "at most"),
        ({"weight": -1.0}, "weight"),
        ({"groups": 0}, "groups"),
    ],
)
def test_a_forged_name_of_a_contribution_is_refused(changes: dict[str, Any], why: str) -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await two.say(Topic.CONTRIBUTION, two.hold(b"anything", **changes))
        await asyncio.sleep(1.0)
        assert not three.exchange.gathered().named
        assert len(three.rejected()) == 1 and why in three.rejected()[0]

    among(promise)


def test_a_sampler_contributes_nothing_and_closes_no_list() -> None:
    async def promise(one: One, two: One, sampler: One) -> None:
        contribution = sampler.hold(sampler.learner.contribution())
        await sampler.say(Topic.CONTRIBUTION, contribution)
        await sampler.say(Topic.COUNTED, sampler.listed(entry(contribution)))
        await asyncio.sleep(1.0)
        assert not one.exchange.gathered().named and one.exchange.undecided
        assert len(one.rejected()) == 2 and all("three" in told for told in one.rejected())

    among(promise, third=Role.SAMPLER)


def test_a_second_contribution_of_a_learner_does_not_count() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        first = two.hold(two.learner.contribution())
        await two.say(Topic.CONTRIBUTION, first)
        await asyncio.sleep(0.5)
        await two.say(Topic.CONTRIBUTION, two.hold(b"another"))
        await asyncio.sleep(0.5)
        assert one.exchange.gathered().named == {"two": first}
        assert len(one.rejected()) == 1 and "the first counts" in one.rejected()[0]

    among(promise)


@pytest.mark.parametrize("changes", [{"version": 8}, {"version": 6}, {"weights": Digest("b" * 64)}])
def test_what_belongs_to_another_version_is_not_for_me(changes: dict[str, Any]) -> None:
    async def promise(one: One, two: One, three: One) -> None:
        contribution = two.hold(two.learner.contribution(), **changes)
        await two.say(Topic.CONTRIBUTION, contribution)
        await two.say(Topic.COUNTED, two.listed(entry(contribution), **changes))
        await asyncio.sleep(1.0)
        assert not one.exchange.gathered().named and one.exchange.undecided and not one.rejected()

    among(promise)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"weight": 0.0}, "weight"),
        ({"weight": 1e12}, "weight"),
        ({"share": 2.0}, "share"),
        ({"size": 1 << 40}, "bytes"),
    ],
)
def test_a_list_that_says_what_cannot_be_is_refused_and_its_leader_named(
    changes: dict[str, Any], why: str
) -> None:
    async def promise(one: One, two: One, three: One) -> None:
        contribution = two.hold(two.learner.contribution())
        await two.say(Topic.COUNTED, two.listed(entry(contribution, **changes)))
        await asyncio.sleep(0.5)
        assert not one.exchange.undecided
        assert await one.exchange.take() is None
        assert one.exchange.undecided
        assert len(one.rejected()) == 1 and one.rejected()[0].startswith("two list of version 7: ")
        assert why in one.rejected()[0]

    among(promise)


def test_a_list_of_what_is_no_contribution_is_refused() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await two.say(Topic.COUNTED, two.listed(entry(two.hold(b"nothing"))))
        await asyncio.sleep(0.5)
        assert await one.exchange.take() is None
        await asyncio.sleep(1.0)
        assert await one.exchange.take() is None and one.exchange.undecided
        assert "no contribution" in one.rejected()[-1]
        told = len(one.rejected())
        await two.say(Topic.COUNTED, two.listed(entry(two.hold(b"nothing"))))
        await asyncio.sleep(0.5)
        assert one.exchange.undecided and len(one.rejected()) == told, "it is not asked for again"

    among(promise)


@pytest.mark.parametrize("size", [0, LARGEST_LIST + 1])
def test_a_list_of_a_size_that_no_list_has_is_refused(size: int) -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await two.say(Topic.COUNTED, two.listed(size=size))
        await asyncio.sleep(0.5)
        assert one.exchange.undecided and len(one.rejected()) == 1
        await two.say(Topic.COUNTED, two.listed(size=LARGEST_LIST))
        await asyncio.sleep(0.5)
        assert not one.exchange.undecided

    among(promise)


def test_a_holder_that_gives_other_bytes_is_named() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        async def lie(sender: PeerId, question: bytes) -> bytes:
            return b"other bytes"

        await two.host.ports.mail.serve(Service.CONTRIBUTIONS, lie)
        await two.say(Topic.CONTRIBUTION, two.hold(two.learner.contribution()))
        await asyncio.sleep(1.0)
        assert not one.exchange.gathered().norms and not one.exchange.gathered().useless
        assert one.rejected() and all(told.startswith("two ") for told in one.rejected())

    among(promise)


@pytest.mark.parametrize("data", [b"\xc1", wire.encode(["nonsense"])])
def test_a_list_that_cannot_be_read_is_refused(data: bytes) -> None:
    async def promise(one: One, two: One, three: One) -> None:
        blocks = Blocks.of(data)
        two.exchange._blobs.hold(7, blocks)
        await two.say(Topic.COUNTED, two.listed(root=blocks.root, size=blocks.size))
        await asyncio.sleep(0.5)
        assert await one.exchange.take() is None and one.exchange.undecided
        assert len(one.rejected()) == 1

    among(promise)


def test_a_list_whose_contribution_nobody_has_is_waited_for() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        missing = entry(two.hold(b"held"), root=Digest("e" * 64))
        await two.say(Topic.COUNTED, two.listed(missing))
        for _ in range(10):
            await asyncio.sleep(1.0)
            assert await one.exchange.take() is None
            one.exchange.give_up()
        assert not one.exchange.undecided and not one.rejected()

    among(promise)


@pytest.mark.parametrize("listed", [True, False], ids=["a contribution", "the list"])
def test_a_list_that_nobody_gives_in_time_makes_way_for_another(listed: bool) -> None:
    """Its leader announced it and was gone."""

    async def promise(one: One, two: One, three: One) -> None:
        missing = entry(two.hold(b"held"), root=Digest("e" * 64))
        changes = {} if listed else {"root": Digest("d" * 64)}
        await two.say(Topic.COUNTED, two.listed(missing, **changes))
        for second in range(int(PATIENCE) + 2):
            await asyncio.sleep(1.0)
            assert await one.exchange.take() is None
            one.exchange.give_up()
            assert not one.exchange.undecided or second >= PATIENCE
        assert one.exchange.undecided and not one.rejected()
        assert [event.text for event in one.told if isinstance(event, Noted)] == [
            "no peer gives what the list of version 7 is made of (two): going on without it"
        ]
        await one.exchange.contribute(8, 8.0, b"")
        await one.exchange.close()
        taken = await one.exchange.take()
        assert taken is not None and taken.members == {"one"}

    among(promise)


def test_of_a_version_the_first_list_counts() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        first, second = (each.hold(each.learner.contribution()) for each in (two, three))
        await two.say(Topic.COUNTED, two.listed(entry(first)))
        await asyncio.sleep(0.5)
        await three.say(Topic.COUNTED, three.listed(entry(second)))
        taken = await one.took(5)
        assert taken is not None and taken.members == {"two"} and not one.exchange.mine(taken)

    among(promise)


def test_lists_of_versions_far_from_mine_push_out_neither_mine_nor_the_next_ones() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        contribution = two.hold(two.learner.contribution())
        await two.say(Topic.COUNTED, two.listed(entry(contribution)))
        await two.say(Topic.COUNTED, two.listed(entry(contribution), version=8))
        for k in range(2 * KEEP):
            await three.say(Topic.COUNTED, three.listed(version=10**6 + k, weights=Digest("b" * 64)))
            await three.say(Topic.COUNTED, three.listed(version=0, weights=Digest(f"{k:064x}")))
        await asyncio.sleep(1.0)
        assert not one.exchange.undecided and len(one.exchange._lists) == KEEP
        one.learner.version = 8
        for k in range(KEEP):
            await three.say(Topic.COUNTED, three.listed(version=7, weights=Digest(f"{k:064x}")))
        await asyncio.sleep(0.5)
        assert not one.exchange.undecided

    among(promise)


def test_a_list_that_i_close_stays_among_those_of_later_versions() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        for version in range(8, 8 + KEEP):  # `one` is late
            await three.say(Topic.COUNTED, three.listed(version=version, weights=Digest("b" * 64)))
        await one.exchange.contribute(8, 8.0, b"")
        await asyncio.sleep(1.0)
        await one.exchange.close()
        taken = await one.exchange.take()
        assert taken is not None and taken.members == {"one"} and not one.rejected()

    among(promise)


@pytest.mark.parametrize("learned", [0, SETTLED], ids=["a weight", "a norm"])
def test_a_list_that_gives_its_leader_more_than_is_its_due_is_refused_and_another_one_comes(
    learned: int,
) -> None:
    async def promise(one: One, two: One, three: One) -> None:
        for _ in range(learned):
            one.exchange.used(Taken((), (), (1e-6,), {}))
        lie = entry(two.hold(two.learner.contribution()), weight=8.0 if learned else 1e6)
        await one.exchange.contribute(8, 8.0, b"")
        await two.say(Topic.COUNTED, two.listed(lie))
        await asyncio.sleep(1.0)
        assert await one.exchange.take() is None
        await asyncio.sleep(1.0)
        assert await one.exchange.take() is None and one.exchange.undecided
        (told,) = one.rejected()
        assert told.startswith(f"two list of version 7: {'norm' if learned else 'weight'}")

    among(promise)


def test_whose_contribution_was_scaled_is_told_and_by_how_much() -> None:
    shares = {"one": 1.0, "two": 0.25}
    listed = [
        ListEntry(learner=PeerId(name), root=WEIGHTS, size=1, groups=3, weight=3.0, share=share)
        for name, share in shares.items()
    ]
    taken = Taken(tuple(listed), (), (), {})
    assert (taken.scaled, taken.members, taken.groups) == ({"two": 0.25}, {"one", "two"}, 6)


def test_a_norm_is_held_against_no_list_before_i_know_what_is_usual() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        for _ in range(SETTLED - 1):
            one.exchange.used(Taken((), (), (1e-6,), {}))
        await two.say(Topic.COUNTED, two.listed(entry(two.hold(two.learner.contribution()))))
        taken = await one.took(5)
        assert taken is not None and not one.rejected()

    among(promise)


def test_a_list_that_is_refused_takes_no_place_of_what_learners_named_themselves() -> None:
    async def promise(one: One, two: One, three: One) -> None:
        await two.exchange.contribute(8, 8.0, b"")
        await asyncio.sleep(1.0)
        mine = one.exchange.gathered().named[two.me]
        forged = entry(three.hold_bytes(wire.encode(Contributed(groups=b"", values=b"none"))), learner=two.me)
        await three.say(Topic.COUNTED, three.listed(forged))
        for _ in range(3):
            await asyncio.sleep(1.0)
            assert await one.exchange.take() is None
        gathered = one.exchange.gathered()
        assert gathered.named == {"two": mine} and gathered.norms.keys() == {"two"}
        assert one.exchange.undecided and [told.split()[0] for told in one.rejected()] == ["three"]

    among(promise)


def test_what_was_named_before_a_list_came_and_is_here_after_it_is_nothing_against_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its learner named it to some and gave it slowly, and something else to the leader."""
    real = SiteExchange._fetched

    async def promise(one: One, two: One, three: One) -> None:
        none = two.hold_bytes(wire.encode(Contributed(groups=b"", values=b"none")))

        async def slow(self: SiteExchange, named: Contribution | ContributionList, first: PeerId) -> Blocks:
            found = await real(self, named, first)
            if named.root == none.root:
                await asyncio.sleep(2.0)
            return found

        monkeypatch.setattr(SiteExchange, "_fetched", slow)
        await two.say(Topic.CONTRIBUTION, none)
        await asyncio.sleep(1.0)
        values = two.learner.contribution()
        await three.say(Topic.COUNTED, three.listed(entry(two.hold(values))))
        await asyncio.sleep(0.5)
        await one.exchange.take()  # what it names is asked for
        await asyncio.sleep(2.0)
        taken = await one.took(2)
        assert taken is not None and [each.data for each in taken.counted] == [values]
        assert not one.rejected()

    among(promise)


def test_what_a_list_names_of_me_that_i_did_not_name_is_not_mine() -> None:
    """It is of my life before."""

    async def promise(one: One, two: One, three: One) -> None:
        before = two.hold(two.learner.contribution(), learner=PeerId("one"))
        await one.exchange.contribute(8, 8.0, b"another ")
        await two.say(Topic.COUNTED, two.listed(entry(before)))
        taken = await one.took(5)
        assert taken is not None and taken.members == {"one"}
        assert not one.exchange.mine(taken)

    among(promise)
