"""Conclusions about a sampler from replays of its groups, and from accusations by others."""
