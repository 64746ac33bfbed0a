"""Drills: revoke a scheduler's lease on purpose."""
