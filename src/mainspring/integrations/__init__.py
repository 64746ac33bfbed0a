"""Clients of external servers, one package each."""
