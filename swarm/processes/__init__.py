"""Child processes and this one: starting, asking and ending them, event loops, memory and cores."""
