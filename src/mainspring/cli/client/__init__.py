"""Connects commands to a store or an API, and waits for runs."""
