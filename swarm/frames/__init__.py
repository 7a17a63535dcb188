"""Frames on the wire: their encoding, their limits, and the types of a run and of sites in them."""
