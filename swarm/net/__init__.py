"""Connects: the ports that roles run over, in memory and on a real network."""
