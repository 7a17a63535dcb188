"""The roles: sampler, learner, evaluator, seed, observer, and the parts they are made of."""
