"""Turns groups into gradients, gradients into policies, policies into bytes."""

from swarm.learn import lean_transformers

lean_transformers.begin()
