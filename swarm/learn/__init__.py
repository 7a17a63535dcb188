"""Turns groups into gradients, gradients into policies, policies into bytes."""

from swarm.learn.models import lean_transformers
from swarm.processes import allocation

allocation.large_pages()
lean_transformers.begin()
