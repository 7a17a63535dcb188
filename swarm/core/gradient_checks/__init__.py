"""Which gradients count in an average, and for how much."""
