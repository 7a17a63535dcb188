"""Commands on the peers of this machine."""
