"""Rewards of completions."""
