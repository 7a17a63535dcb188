"""Weights as files: safetensors, releases and checkpoints."""
