"""Limits on concurrency and rates, queue policies and budgets."""
