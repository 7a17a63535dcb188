"""Settings of all tests."""

from hypothesis import settings

# Machines that share their cores stall for longer than any deadline on one example; pytest's timeout ends
# what hangs.
settings.register_profile("swarm", deadline=None)
settings.load_profile("swarm")
