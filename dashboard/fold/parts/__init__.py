"""The parts of a State, one for each concern: what it takes, what it keeps, bounded, and what it shows."""
