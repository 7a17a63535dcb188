"""From a run's settings to a model, its engine and its learner."""
