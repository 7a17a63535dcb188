"""`swarm bench adversaries` and `band`: what samplers that cheat and learners that lie cost, and what honest
ones show."""
