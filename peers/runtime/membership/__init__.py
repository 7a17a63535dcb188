"""Who is a member: renewals, revocations, keys and contacts."""
