"""The ports of a peer inside one process, for the simulator and for tests."""
