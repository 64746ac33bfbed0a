"""Packaged data files: the published cost of a job, and example prices."""
