"""Messages between nodes: mail, gossip, the board, and the guard before them."""
