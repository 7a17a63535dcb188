"""How a token follows from its seed, and conclusions of a group's replay about its sampler."""
