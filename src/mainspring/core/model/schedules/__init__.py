"""Recurring jobs: when they fire, what is skipped, and which ticks come next."""
