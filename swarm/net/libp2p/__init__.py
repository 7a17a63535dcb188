"""A node on libp2p: its daemon, its DHT, and the ways to other nodes."""
