"""Keeping the logs of runs in files."""
