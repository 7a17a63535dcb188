"""The commands of `swarm`: one module for each, or for a few that belong together."""
