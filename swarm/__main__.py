"""`python -m swarm`: the command `swarm`, where it is not on the path."""

import runpy

runpy.run_module("peers.cli", run_name="__main__")
