"""What a peer says of itself to the terminal, its log and trackers."""
