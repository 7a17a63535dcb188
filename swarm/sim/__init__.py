"""Simulates: the roles that ship, on virtual time and simulated links."""
