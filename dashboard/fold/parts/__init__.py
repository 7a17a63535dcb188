"""The parts of a SwarmState, one for each concern: its inputs, its bounded state, and its view."""
