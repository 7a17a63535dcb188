"""What replays of a sampler's groups say of it, and accusations by others."""
