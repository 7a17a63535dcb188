"""Tasks from data sets."""
