"""From an invite to a member of the run."""
