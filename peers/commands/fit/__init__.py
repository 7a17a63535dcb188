"""`swarm fit`: which roles fit this machine."""
