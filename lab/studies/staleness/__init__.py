"""`swarm bench staleness`: whole trainings under delay, compared by objective."""
