"""Replays of samplers' groups, and what auditors tell each other."""
