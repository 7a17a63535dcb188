"""Commands that read journals: audits, replays, evidence and the page of a finished run."""
