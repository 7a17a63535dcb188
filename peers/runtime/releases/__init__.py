"""Releases between this peer and the swarm."""
