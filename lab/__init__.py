"""What measures the project and is not part of it: rows of figures, studies, and the nemesis."""
