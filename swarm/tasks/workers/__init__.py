"""Code of a run's tasks and rewards in processes of its own, and the sandbox around it."""
