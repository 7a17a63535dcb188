"""FSDP2: a learner whose parameters are sharded over several GPUs; the learner, the driver of its ranks, the
ranks and their messages."""
