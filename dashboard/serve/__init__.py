"""The SwarmState over HTTP, in a terminal, and as metrics."""
