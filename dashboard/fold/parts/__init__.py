"""The parts of a SwarmState, one for each concern: what it takes, what it keeps, bounded, and what it
shows."""
