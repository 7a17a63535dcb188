"""What `swarm up` says in a log while its peers load: for whom it waits."""

from __future__ import annotations

from nouns import NOW, beat

from dashboard.state import State, fold
from peers.commands.up import missing_peers, new_problem
from swarm import events
from swarm.config import Swarm
from swarm.identity import Keyring
from swarm.protocol import Role


def test_it_says_which_peers_have_not_come_yet() -> None:
    state, wanted = State(), Swarm(learners=1, samplers=2)
    says = [missing_peers(state, wanted)]
    seed = Keyring.new().me
    for role in (Role.SAMPLER, Role.LEARNER, Role.SAMPLER):
        subject = Keyring.new().me
        fold(state, events.Heard(at=NOW, peer=seed, subject=subject, beat=beat(role=role)))
        says.append(missing_peers(state, wanted))
    loading = "(they load the program and the model)"
    assert says == [
        f"waiting for 1 learners and 2 samplers {loading}",
        f"waiting for 1 learners and 1 samplers {loading}",
        f"waiting for 1 samplers {loading}",
        "",
    ]


def test_it_says_the_worst_problem_once_until_it_is_another_one() -> None:
    state, last, told = State(), "", list[str]()
    seed, learner, sampler = (Keyring.new().me for _ in range(3))
    for second in range(60):
        for subject, role in ((seed, Role.SEED), (learner, Role.LEARNER), (sampler, Role.SAMPLER)):
            said = beat(role=role, seq=second + 1)
            fold(state, events.Heard(at=NOW + second, peer=seed, subject=subject, beat=said))
        if second == 10:
            detail = "mine.py:f raised KeyError"
            fold(state, events.Faulted(at=NOW + second, peer=sampler, part="rewards", detail=detail))
        text, last = new_problem(state, NOW + second, last)
        told += [text] if text else []
    rewards, credit = told
    assert "mine.py:f raised KeyError: Try it with `swarm task try`" in rewards
    assert "samplers can dial its address" in credit
