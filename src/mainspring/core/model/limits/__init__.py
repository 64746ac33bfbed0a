"""Limits on how many runs there may be at a time or in a period."""
