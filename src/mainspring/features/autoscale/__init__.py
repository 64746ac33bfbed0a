"""Recommended numbers of workers and schedulers."""
