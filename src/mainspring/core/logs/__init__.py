"""Logs of runs: reading them from the store and from kept files."""
