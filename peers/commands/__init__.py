"""Commands: what a line that somebody types does."""
