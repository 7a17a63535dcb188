"""Rows that are measured in virtual time."""
