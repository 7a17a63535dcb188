"""The roles: sampler, learner, evaluator, auditor, seed, observer, and the parts they are made of."""
