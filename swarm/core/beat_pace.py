"""How often the many send heartbeats: the more seldom, the more they are.

    peers that a seed hears --its heartbeat--> slower -> a sampler's heartbeats, its reports, its patience

Gossip brings what one says to all who listen: at the run's pace 10,000 samplers would cost each observer 4
MB/s. Beyond CROWD peers samplers wait longer, so that all of them together say as much as CROWD would; each
tells by how much it is slower, and its silence is judged by that. A learner, an evaluator, a seed and a
mirror keep the run's pace, however large the swarm is: others wait for what they say. Strangers count as long
as a roster knows them: a flood of keys makes samplers beat four or five times as seldom, and no more.
"""

from __future__ import annotations

from swarm.limits import SLOWEST
from swarm.protocol import ROLES, Topic
from swarm.types import Beat

CROWD = 512
"""Peers that an observer hears at the run's pace: 230 heartbeats a second by default, 0.2 MB."""


def slower(peers: int) -> float:
    """How many times as long as the run's pace a sampler waits between heartbeats in a swarm of so many."""
    return round(min(max(1.0, peers / CROWD), SLOWEST), 2)


def granted(beat: Beat) -> float:
    """How many times the run's patience a peer's silence is borne, whatever it says: nobody is waited for
    that is not one of the many."""
    is_one_of_many = ROLES[beat.role].heartbeat is Topic.BEAT_SAMPLER
    return min(max(1.0, beat.slower), SLOWEST) if is_one_of_many else 1.0
