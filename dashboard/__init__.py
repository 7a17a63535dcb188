"""The dashboard of a swarm: folds events into a state, diagnoses it and serves it, read-only."""
