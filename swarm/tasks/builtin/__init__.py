"""Tasks that need no data."""
