"""Settings: their sections and ranges, the layers that they come from, and the files that hold them."""
