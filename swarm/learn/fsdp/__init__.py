"""A learner whose parameters lie on several GPUs: the learner, its driver, its workers and what passes
between them."""
