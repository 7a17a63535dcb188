"""From settings or an invite to a running peer: its parts, in the order that they demand."""
