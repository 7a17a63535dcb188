"""Connects: the ports that roles run over, in memory and on a real network."""

from swarm.net import bare_hivemind

bare_hivemind.enter()
