"""Findings about the store, the brokers and the processes."""
