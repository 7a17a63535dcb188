"""The library: it decides (core), learns, samples and connects (net). It imports neither the programs nor the
window."""

__version__ = "0.1.0"

PROTOCOL = 2
"""Version of everything peers say to each other; peers of different protocols refuse each other at the
invite."""
