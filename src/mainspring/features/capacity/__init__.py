"""Processes, storage and cost of a planned load."""
