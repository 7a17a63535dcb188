"""A sampler in memory, for the line of status that it prints."""

from random import Random

from still_host import still_host

from peers.runtime.host import Host
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.links import SimLinks


def host() -> Host:
    network = MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1)))
    return still_host(network, "sampler-0", Role.SAMPLER)
