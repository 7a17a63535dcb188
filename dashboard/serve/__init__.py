"""The State over HTTP, in a terminal, and as metrics."""
