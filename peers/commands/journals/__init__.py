"""Commands that read journals: audits, replays, evidence and the dashboard of a finished run."""
