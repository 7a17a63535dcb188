"""How groups reach a learner: opened, scored, kept on the disk, and trained once."""
