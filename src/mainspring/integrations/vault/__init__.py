"""Secrets from Vault."""
