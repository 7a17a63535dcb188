"""FSDP2: a learner sharded over several GPUs, the driver of its ranks, the rank process and their
messages."""
