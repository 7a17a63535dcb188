"""Events folded into a SwarmState."""
