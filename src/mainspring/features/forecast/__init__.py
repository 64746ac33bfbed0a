"""Runs per minute in the time to come."""
