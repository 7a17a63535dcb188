"""Turns groups into gradients, gradients into policies, policies into bytes."""
