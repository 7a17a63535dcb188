"""Commands that write a policy for others."""
