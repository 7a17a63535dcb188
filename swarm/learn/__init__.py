"""Turns groups into gradients, gradients into policies, policies into bytes."""

from swarm.processes import allocation

allocation.large_pages()
