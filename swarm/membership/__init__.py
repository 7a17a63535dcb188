"""Who a peer is and what lets it in: its key, sealed for another machine, and invites."""
