"""Events folded into a State."""
