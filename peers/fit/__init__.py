"""What fits on a machine: memory and speed, predicted from a model's shape and corrected by measurements."""
