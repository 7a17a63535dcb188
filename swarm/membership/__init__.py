"""A peer's identity and its admission: its key, sealed for another machine, and invites."""
