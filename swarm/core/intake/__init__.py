"""Which groups a learner takes: the draw of tasks, admission, quotas, and the batch."""
