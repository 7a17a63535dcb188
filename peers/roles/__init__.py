"""What a peer of each role does, over the ports and the runtime that all have in common."""
