"""Replays of samplers' groups, and accusations: what a replay shows, shown to learners that replay it."""
