"""Tenants, roles, permissions and what is asked of credentials."""
