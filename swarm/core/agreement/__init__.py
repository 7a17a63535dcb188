"""Agreement on the next version: rounds, shares, turns, lineage of releases, and their steps."""
