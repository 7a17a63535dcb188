"""Decisions: plain Python without I/O: `now` and `rng` are arguments, a decision is the return value."""
