"""Workflows, fan-outs and dependencies between runs."""
