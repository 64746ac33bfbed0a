"""Clients of other servers, opened from the addresses in the settings."""
