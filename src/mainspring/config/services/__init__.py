"""Builds the services of each role of a process."""
