"""A peer's reports about itself: to the terminal, its log and trackers."""
