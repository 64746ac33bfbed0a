"""Accepting jobs: the submit service and the task catalog."""
