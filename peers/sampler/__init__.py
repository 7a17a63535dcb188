"""The sampler: tasks to groups of completions, and their delivery."""
