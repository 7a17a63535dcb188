"""`swarm doctor`: whether this machine, and the way into a run, work."""
