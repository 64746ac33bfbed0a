"""The task that makes a run for each item of a list."""
