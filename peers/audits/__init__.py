"""Replays of samplers' groups, and accusations: evidence of a cheat, for learners to replay."""
