"""Counts and percentiles of jobs and runs."""
