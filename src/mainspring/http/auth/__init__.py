"""Who is calling: API keys and tokens."""
