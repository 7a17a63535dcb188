"""How learners agree on the next version: rounds, states and releases."""
