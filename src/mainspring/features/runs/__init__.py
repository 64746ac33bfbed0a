"""Runs: list, inspect, cancel, retry, read logs."""
