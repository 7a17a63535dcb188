"""What every peer does, whatever its role is."""
