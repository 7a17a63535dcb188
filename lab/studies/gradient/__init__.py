"""`swarm bench gradient`: estimators of one gradient, compared on small decision processes."""
