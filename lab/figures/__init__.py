"""Figures, their table, and measurements of seconds, memory and energy."""
