"""Which version is the next one: rounds, shares, turns, lineage of releases, and the steps that they are made
of."""
