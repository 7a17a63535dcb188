"""Turns prompts and a policy into completions with the log-probabilities they were drawn at."""
