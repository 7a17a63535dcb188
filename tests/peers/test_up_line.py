"""What `swarm up` says in a log while its peers load: for whom it waits."""

from __future__ import annotations

from nouns import NOW, beat

from dashboard.state import State, fold
from peers.commands.up import missing_peers
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
