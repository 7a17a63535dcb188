"""Programs that the rows start, each measured as a process of its own."""
