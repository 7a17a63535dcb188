"""Membership: renewals, revocations, keys and contacts."""
