"""Submitting runs, declaring jobs, and the task catalog that supplies their defaults."""
