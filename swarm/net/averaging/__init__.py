"""Averaging over hivemind: matchmaking, all-reduce, and the process that it runs in."""
