"""The learner: groups to gradients, steps and releases."""
