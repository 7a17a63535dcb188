"""Blocks between peers: held ones, their other holders, and fetching."""
