"""Authentication: API keys and tokens."""
