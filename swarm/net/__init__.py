"""Connects: the ports that roles run over, in memory and on a real network."""

from swarm.net.libp2p import bare_hivemind

bare_hivemind.enter()
