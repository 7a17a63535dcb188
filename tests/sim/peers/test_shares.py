"""A stranger without a model beside honest samplers: the roles that ship, with one that fabricates groups as
fast as it can."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from role_swarms import Told, scenario
from rows import nightly

from peers.commands import sim
from peers.sampler.new_group import make_group
from peers.sampler.sampler import Sampler
from swarm.events import Judged
from swarm.frames.run_types import Membership
from swarm.net.ports import NetError
from swarm.sample.base import Completions
from swarm.settings.config import BatchSize, Sampling
from swarm.sim.world import SimPeer
from swarm.types import Times, Verdict

EVERY = 0.1
"""Seconds between two groups of one stranger: ten a second, fourteen times what the honest ones sample
together."""


class Fabricator(Sampler):
    """Sends groups that nobody sampled, of a policy that it never fetched, to every learner and without
    asking for credit."""

    async def run(self) -> None:
        host, run = self.host, self.host.config.run
        while not host.stop.is_set():
            await host.ports.clock.sleep(EVERY)
            if (release := host.releases.candidates.wanted((), host.now())) is None:
                continue
            drawn = self.curriculum.next(release.weights)
            task, size = self.source.task(drawn.task), run.sampling.group_size
            tokens = array("i", [host.rng.randrange(8) for _ in range(4 * size)])
            texts = [
                "".join(chr(ord("a") + token) for token in tokens[4 * i : 4 * i + 4]) for i in range(size)
            ]
            made = Completions(
                texts=texts, lengths=[4] * size, tokens=tokens, logprobs=array("f", [-2.0] * len(tokens))
            )
            now = host.now()
            times = Times(released=release.released, fetched=now, used=now, finished=now, sent=now)
            rewards = self.source.rewards(task, texts)
            group = make_group(host.ports.me, release, drawn, made, rewards, times)
            for learner in host.roster.learners():
                try:
                    await host.ports.mail.send(learner, "groups", host.seal(group))
                except NetError:
                    continue


def told(monkeypatch: pytest.MonkeyPatch, strangers: int, learners: int = 1) -> Told:
    """Three honest samplers, invited, and strangers that fabricate."""
    fabricates = {f"sampler-{3 + i}" for i in range(strangers)}
    invited = sim._membership

    def membership(peer: SimPeer) -> Membership | None:
        return None if peer.name in fabricates else invited(peer)

    def sampler(host: Any, *rest: Any) -> Sampler:
        return (Fabricator if host.who.name in fabricates else Sampler)(host, *rest)

    monkeypatch.setattr(sim, "_membership", membership)
    monkeypatch.setattr("peers.sampler.sampler.Sampler", sampler)
    batch = BatchSize(groups=16, close_after=5.0)
    takes_all = Sampling(group_size=4, max_tokens=4, replayable=False)
    return Told(scenario(1.7, (learners, 3 + strangers), sample=4.0, batch=batch, sampling=takes_all))


def admitted(swarm: Told, honest: bool, since: float) -> int:
    names = {"sampler-0", "sampler-1", "sampler-2"}
    judged = (event for event in swarm.of(Judged, since=since) if event.verdict is Verdict.ADMIT)
    return sum((event.sampler in names) is honest for event in judged)


@pytest.mark.parametrize(
    ("strangers", "learners"),
    [(1, 1), *nightly([(1, 2), (4, 1)])],
)
def test_strangers_that_fabricate_have_their_share_and_cost_the_honest_nothing(
    strangers: int, learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, loud = told(monkeypatch, 0, learners), told(monkeypatch, strangers, learners)
    since = 40.0  # by then the honest have delivered enough to bind them
    honest, strange = admitted(loud, True, since), admitted(loud, False, since)
    assert honest >= 0.9 * admitted(quiet, True, since)
    assert 0 < strange <= 1.05 * BatchSize().share * (honest + strange) + 1  # the one under way
    refused = {event.detail for event in loud.of(Judged, since=since) if event.verdict is Verdict.OVER_QUOTA}
    assert any("run.batch" in detail and "send more later" in detail for detail in refused)
