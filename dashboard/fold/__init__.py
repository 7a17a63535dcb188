"""Events folded into a State, and the types that the page shows."""
