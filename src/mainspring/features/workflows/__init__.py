"""Workflows: submit, inspect, retry."""
