"""How a token follows from its seed, and what a replay of a group says of its sampler."""
