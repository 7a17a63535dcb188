"""Commands on members: invites, revocations, identities, pardons."""
