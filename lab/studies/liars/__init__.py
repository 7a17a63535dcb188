"""`swarm bench adversaries` and `band`: the cost of cheating samplers and lying learners, and figures of
honest ones."""
