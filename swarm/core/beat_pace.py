"""How often samplers send heartbeats: the larger the swarm, the less often.

    peers that a seed counts --its heartbeat--> slower -> a sampler's heartbeats, its reports, its patience

Gossip brings each message to all subscribers: at the run's pace 10,000 samplers would cost each observer 4
MB/s. Beyond CROWD peers samplers wait longer, so that all of them together send as much as CROWD would; each
announces by how much it is slower, and its silence is judged by that. A learner, an evaluator, a seed and a
mirror keep the run's pace, however large the swarm is: others wait for their messages. Strangers count as
long as a roster knows them: a flood of keys slows samplers' heartbeats four or five times, and no more.
"""

from __future__ import annotations

from swarm.limits import SLOWEST
from swarm.protocol import ROLES, Topic
from swarm.types import Beat

CROWD = 512
"""Peers whose heartbeats an observer receives at the run's pace: 230 a second by default, 0.2 MB."""


def slower(peers: int) -> float:
    """How many times as long as the run's pace a sampler waits between heartbeats in a swarm of so many."""
    return round(min(max(1.0, peers / CROWD), SLOWEST), 2)


def granted(beat: Beat) -> float:
    """Multiple of the run's patience for a peer's silence, whatever it claims: only samplers get more than
    one."""
    is_one_of_many = ROLES[beat.role].heartbeat is Topic.BEAT_SAMPLER
    return min(max(1.0, beat.slower), SLOWEST) if is_one_of_many else 1.0
