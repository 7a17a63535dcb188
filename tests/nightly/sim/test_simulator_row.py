"""The row `simulator`: peers' hours for CPU, and a seed's gossip once the swarm is settled."""

from __future__ import annotations

from lab.rows.simulated import simulator


def test_it_measures_what_peers_cost_and_what_a_seed_hears() -> None:
    cost, memory, heard = simulator.measure(lambda _: None, peers=(8,), crowds=(4,), hours=0.05)
    assert cost.value > 0 and "callbacks a peer-hour" in cost.note
    assert memory.value > 0
    assert 0.5 < heard.value < 4.0, "four heartbeats of less than a kilobyte in 2 to 2.5 s"
