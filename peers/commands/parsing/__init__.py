"""Arguments of commands."""
