"""The way out for mail."""
