"""Turns groups into gradients, gradients into policies, policies into bytes."""

from swarm import allocation
from swarm.learn import lean_transformers

allocation.large_pages()
lean_transformers.begin()
