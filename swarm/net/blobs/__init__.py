"""Blocks between peers: what is here, who else has it, and fetching it."""
