"""When a peer rests: pauses, and the limits of its machine."""
