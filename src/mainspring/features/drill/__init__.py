"""Drills: taking a scheduler's lease away on purpose."""
