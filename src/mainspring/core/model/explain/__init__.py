"""Explanations: why a run does not start, and why a tick did not run."""
